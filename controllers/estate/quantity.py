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
    """A number of bytes with the largest binary suffix that leaves it whole; fractions of a byte are cut off.

    One that no binary suffix divides is written as the server writes it, with the largest decimal one.
    """
    count = int(number // 1)
    for power, suffix in reversed(list(enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1))):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{suffix}"
    return decimal(count)


def decimal(count: int) -> str:
    """A whole number with the largest decimal suffix that leaves it whole, as the server writes it."""
    for power, suffix in reversed(list(enumerate("kMGTPE", start=1))):
        if count and count % 1000**power == 0:
            return f"{count // 1000**power}{suffix}"
    return str(count)
