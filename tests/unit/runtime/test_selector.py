"""Label selectors."""

import pytest

from controllers.runtime.errors import ConfigurationError
from controllers.runtime.selector import parse_labels


@pytest.mark.parametrize(
    ("selector", "matching", "other"),
    [
        ("", {}, None),
        ("a=1", {"a": "1"}, {"a": "2"}),
        ("a==1,b", {"a": "1", "b": ""}, {"a": "1"}),
        ("a!=1", {}, {"a": "1"}),
        ("a in (1, 2)", {"a": "2"}, {}),
        ("a notin (1,2)", {}, {"a": "2"}),
        ("!example.com/a", {"a": ""}, {"example.com/a": ""}),
        ("a>3", {"a": "4"}, {"a": "3"}),
        ("a<3", {"a": "-4"}, {"a": "three"}),
        ("a=", {"a": ""}, {}),
    ],
)
def test_terms_match_as_the_api_has_it(selector: str, matching: dict[str, str], other: dict[str, str] | None) -> None:
    terms = parse_labels(selector)
    assert all(term.matches(matching) for term in terms)
    assert other is None or not all(term.matches(other) for term in terms)


@pytest.mark.parametrize("selector", ["a in 1", "a in (1", "a=1,", "=1", "a>b", "-a", "a=-", "a b", "a$"])
def test_what_is_no_selector_is_refused(selector: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_labels(selector)
