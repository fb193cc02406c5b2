"""Quantities of the API."""

from decimal import Decimal

import pytest

from controllers.api.quantity import parse_quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", "2"),
        (3, "3"),
        ("0.5", "0.5"),
        (".5", "0.5"),
        ("-1", "-1"),
        ("500m", "0.5"),
        ("1k", "1000"),
        ("1Ki", "1024"),
        ("1.5Gi", "1610612736"),
        ("2E", "2e18"),
        ("1Ei", "1152921504606846976"),
        ("12e3", "12000"),
        ("1E-3", "0.001"),
        ("100n", "1e-7"),
    ],
)
def test_quantity_is_its_number(text: str | int, number: str) -> None:
    assert parse_quantity(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "much", "1 Gi", "1gi", "1KB", "Gi", "1e", "1e999999999", "--1", "0x10", "1\n"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)
