"""How fast and how frugal the controllers are, beside what the API server itself can do in the same run."""
