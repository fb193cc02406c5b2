"""Kubernetes quantities: what they mean, and how they are written."""

from fractions import Fraction

import pytest

from controllers.estate import quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("16", 16),
        ("500m", Fraction(1, 2)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("+2k", 2000),
        ("-1", -1),
        ("64Gi", 64 * 2**30),
        ("1.5Ki", 1536),
        ("2E", 2 * 10**18),
        ("2e3", 2000),
        ("2E3", 2000),
        ("2e-3", Fraction(1, 500)),
        ("7n", Fraction(7, 10**9)),
        ("1Ei", 2**60),
        ("0", 0),
    ],
)
def test_a_quantity_is_an_exact_number(text: str, number: Fraction) -> None:
    assert quantity.parse(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "m",
        "1 Gi",
        "Gi",
        "1GB",
        "1ki",
        "1K",
        "1mi",
        "1e",
        "1e3Gi",
        "0x1",
        "1_0",
        "\uff11",
        ".",
        "nan",
        "9" * 41,
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity.parse(text)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Fraction(16), "16"),
        (Fraction(1, 2), "500m"),
        (Fraction("1.2345"), "1234m"),
        (Fraction(0), "0"),
        (Fraction(3, 2), "1500m"),
    ],
)
def test_cores_are_whole_or_in_thousandths(number: Fraction, text: str) -> None:
    assert quantity.milli(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (1, "1"),
        (1000, "1k"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1536, "1536"),
        (24_564_000_000, "24564M"),
        (80_000_000_000, "78125000Ki"),
        (64 * 2**30, "64Gi"),
        (2**60, "1Ei"),
        (2**70, "1024Ei"),
    ],
)
def test_bytes_have_the_largest_suffix_that_leaves_them_whole(number: int, text: str) -> None:
    assert quantity.binary(Fraction(number)) == text


def test_fractions_of_a_byte_are_cut_off() -> None:
    assert quantity.binary(Fraction("1024.9")) == "1Ki"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (7, "7"), (999, "999"), (1000, "1k"), (1500, "1500"), (10**18, "1E")]
)
def test_counts_have_the_suffix_that_the_server_gives_them(count: int, text: str) -> None:
    assert quantity.decimal(count) == text
