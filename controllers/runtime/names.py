"""Names of objects: how long they may be, and how a longer one is made to fit."""

import hashlib

MAX_NAME = 253
"""Characters in an object's name at most (RFC 1123 subdomain, as the API server checks it)."""


def fitting_name(stem: str, suffix: str = "", *, unique: str) -> str:
    """``stem`` and ``suffix``; where that is too long the stem is cut, and a hash of ``unique`` stands for the rest."""
    if len(stem) + len(suffix) <= MAX_NAME:
        return stem + suffix
    return ending_in(f"-{hashlib.sha256(unique.encode()).hexdigest()[:16]}{suffix}", stem)


def ending_in(suffix: str, stem: str) -> str:
    """As much of ``stem`` as fits before ``suffix``."""
    # A label of a DNS name must not end in a dash, nor be empty.
    return stem[: MAX_NAME - len(suffix)].rstrip("-.") + suffix
