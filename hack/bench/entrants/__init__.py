"""Processes that do the same with different libraries, so that each library's time and memory are its own.

Each is started as ``COMMAND URL MODE OBJECTS EVENTS`` against ``hack.bench.canned``, and prints its figures as lines of
JSON. In the mode ``list`` the one line comes once ``OBJECTS`` pods are known to a handler. In the modes ``watch`` and
``latency`` an empty first line says that everything is listed, and the second one comes after ``EVENTS`` events. Then
it waits to be ended, so that its memory can be read.
"""
