"""Amounts of resources as the API writes them, such as ``500m`` and ``80Gi``."""

import functools
import re
from decimal import Decimal
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
