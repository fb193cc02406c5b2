"""Kubernetes quantities as exact numbers."""

import re
from fractions import Fraction

_SUFFIXES = {
    "": 1,
    **{suffix: 1024**power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{suffix: 1000**power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{suffix: Fraction(1, 1000**power) for power, suffix in enumerate(("m", "u", "n"), 1)},
}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)
MAX_LENGTH = 40  # characters; what is longer is a mistake


def parse(text: str) -> Fraction:
    """The number that a quantity means. Raises ValueError for text that is none."""
    match = _QUANTITY.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None:
        raise ValueError(f"{text!r} is not a quantity")
    number, exponent, suffix = match.groups()
    scale = Fraction(10) ** int(exponent) if exponent else _SUFFIXES[suffix or ""]
    return Fraction(number) * scale


def milli(number: Fraction) -> str:
    """A number of cores as Kubernetes writes it: whole, or in thousandths, which are cut off."""
    thousandths = number * 1000 // 1
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"


def binary(number: Fraction) -> str:
    """A number of bytes with the largest binary suffix that leaves it whole; fractions of a byte are cut off."""
    count, suffix = int(number // 1), ""
    for candidate in ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"):
        if count == 0 or count % 1024:
            break
        count, suffix = count // 1024, candidate
    return f"{count}{suffix}"
