"""Amounts of resources as the API writes them, such as ``500m`` and ``80Gi``."""

import functools
import re
from decimal import ROUND_UP, Decimal
from typing import Final

MAX_LENGTH: Final = 40  # characters; what is longer is a mistake

_QUANTITY: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {name: Decimal(1024) ** (power + 1) for power, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}
_FACTORS: Final = {**{name: Decimal(10) ** power for name, power in _DECIMAL.items()}, **_BINARY}


@functools.lru_cache(maxsize=4096)
def parse_quantity(text: str | int | float) -> Decimal:
    """The number that a quantity stands for. Raises ValueError for what is none."""
    written = str(text)
    found = _QUANTITY.fullmatch(written) if len(written) <= MAX_LENGTH else None
    if found is None:
        raise ValueError(f"{text!r} is not a quantity such as 2, 500m or 80Gi")
    number, exponent, suffix = found.groups()
    return Decimal(number).scaleb(int(exponent)) if exponent else Decimal(number) * _FACTORS[suffix or ""]


@functools.lru_cache(maxsize=4096)
def canonical_quantity(text: str | int | float) -> str:
    """A quantity as the server writes it back: without a fraction, and with the largest suffix of its sort that allows.

    ``0.5`` is ``500m`` then, ``2048Ki`` is ``2Mi``, and the number 4 is the text ``4``. Raises ValueError for others.
    """
    number = parse_quantity(text)
    written = str(text)
    if written.endswith("i"):
        return _with_suffix(_whole(number), 1024, ("", *_BINARY))
    if "e" in written or written[:-1].find("E") >= 0:
        return _with_exponent(number)
    return _with_suffix(_whole(number.scaleb(9)), 1000, tuple(_DECIMAL))


def _whole(number: Decimal) -> int:
    """The next whole number away from zero: what is asked for must not become less."""
    return int(number.to_integral_value(ROUND_UP))


def _with_suffix(count: int, base: int, suffixes: tuple[str, ...]) -> str:
    if count == 0:
        return "0"
    place = 0
    while count % base == 0 and place < len(suffixes) - 1:
        count, place = count // base, place + 1
    return f"{count}{suffixes[place]}"


def _with_exponent(number: Decimal) -> str:
    count, exponent = _whole(number.scaleb(9)), -9
    while count and count % 1000 == 0:
        count, exponent = count // 1000, exponent + 3
    return f"{count}e{exponent}" if count and exponent else str(count)
