"""Names that fit."""

from hypothesis import given
from hypothesis import strategies as st

from controllers.runtime.names import MAX_NAME, ending_in, fitting_name

NAMES = st.from_regex(r"[a-z]([-a-z0-9]*[a-z0-9])?(\.[a-z]([-a-z0-9]*[a-z0-9])?)*", fullmatch=True).filter(
    lambda name: len(name) <= MAX_NAME
)


def test_what_fits_is_kept_as_it_is() -> None:
    assert fitting_name("a" * 250, "-ab", unique="x") == "a" * 250 + "-ab"


def test_what_is_too_long_is_cut_and_told_apart_by_a_hash() -> None:
    first, second = (fitting_name("a" * 251, "-ab", unique=unique) for unique in ("x", "y"))

    # sha256 of "x", its first 16 digits
    assert first == "a" * (MAX_NAME - 20) + "-2d711642b726b044-ab"
    assert len(second) == MAX_NAME
    assert first != second


def test_a_cut_never_leaves_a_label_that_ends_in_a_dash_or_is_empty() -> None:
    assert ending_in("-ab", "a" * 249 + "-." * 5) == "a" * 249 + "-ab"


@given(NAMES, NAMES)
def test_names_are_never_too_long(stem: str, unique: str) -> None:
    assert len(fitting_name(stem, "-gpu.nvidia.com-12", unique=unique)) <= MAX_NAME
