"""Kubernetes quantities as exact numbers that can be divided."""

from fractions import Fraction

from controllers.api.quantity import parse_quantity


def parse(text: str) -> Fraction:
    """The number that a quantity means. Raises ValueError for text that is none."""
    return Fraction(parse_quantity(text))


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
