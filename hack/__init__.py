"""Tools for people who work on the project; nothing here is shipped in the wheel."""
