"""Rules in CEL: what they see, what they answer, and which are refused."""

from typing import Any

import pytest

from controllers.sandbox.cel import Condition, RuleError, compiled, escape
from controllers.sandbox.typeschema import MISSING, Rule, parse

THING = parse(
    {
        "type": "object",
        "properties": {
            "count": {"type": "integer"},
            "ratio": {"type": "number"},
            "when": {"type": "string", "format": "date-time"},
            "wait": {"type": "string", "format": "duration"},
            "names": {"type": "array", "items": {"type": "string"}},
            "namespace": {"type": "string"},
            "a-b": {"type": "string"},
            "port": {"x-kubernetes-int-or-string": True},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    }
)


def verdict(rule: Rule | str, new: Any, old: Any = MISSING) -> str | None:
    """What a rule says of a thing."""
    return compiled(Rule(rule) if isinstance(rule, str) else rule, THING).verdict(new, old)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("self.count > 1 && self.count < 3", {"count": 2}),
        ("self.ratio == 2.0", {"ratio": 2}),
        ("has(self.when) && self.when == self.when", {"when": "2026-01-01T00:00:00Z"}),
        ("self.names.all(n, n.startsWith('a')) && self.names.isSorted()", {"names": ["a", "ab"]}),
        ("self.__namespace__ == 'x' && self.a__dash__b == 'y'", {"namespace": "x", "a-b": "y"}),
        ("type(self.port) == int ? self.port < 10 : self.port == 'http'", {"port": "http"}),
        ("'a-b' in self.labels && self.labels['a-b'] == 'c'", {"labels": {"a-b": "c"}}),
        ("!has(self.count)", {}),
        ("self.names.map(n, n.size()).sum() == 3", {"names": ["a", "bc"]}),
        ("'a1b22'.findAll('[0-9]+') == ['1', '22'] && 'a1'.find('[0-9]') == '1'", {}),
        ("self.?count.orValue(7) == 7", {}),
        ("self.names.join(',') == 'a,b' && 'A'.lowerAscii() == 'a'", {"names": ["a", "b"]}),
    ],
)
def test_a_rule_that_holds_says_nothing(rule: str, value: Any) -> None:
    assert verdict(rule, value) is None
    assert verdict(f"!({rule})", value) == f"failed rule: !({rule})"


def test_a_broken_rule_says_its_message() -> None:
    assert verdict(Rule("self.count > 1", message=" too few "), {"count": 1}) == "too few"


def test_a_message_may_be_an_expression() -> None:
    rule = Rule("self.count > 1", message="too few", message_expression="'have ' + string(self.count)")
    assert verdict(rule, {"count": 1}) == "have 1"
    assert verdict(rule, {"count": 0}) == "have 0"


def test_a_message_expression_that_fails_leaves_the_message() -> None:
    rule = Rule("false", message="plain", message_expression="'have ' + string(self.count)")
    assert verdict(rule, {}) == "plain"


def test_a_rule_about_change_is_not_asked_of_a_new_object() -> None:
    assert verdict("self.count == oldSelf.count", {"count": 1}) is None
    assert verdict("self.count == oldSelf.count", {"count": 1}, {"count": 1}) is None
    assert verdict("self.count == oldSelf.count", {"count": 1}, {"count": 2}) is not None


def test_the_word_in_a_literal_makes_no_rule_about_change() -> None:
    assert verdict("self.names[0] != 'oldSelf.names'", {"names": ["oldSelf.names"]}) is not None


def test_a_missing_field_breaks_the_rule_that_reads_it() -> None:
    assert verdict("self.count > 1", {}) == "no such key: count evaluating rule: self.count > 1"


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("self.count >", "Syntax error"),
        ("self.nosuch == 1", "undefined field 'nosuch'"),
        ("nosuch(self)", "undeclared reference to 'nosuch'"),
        ("self.labels['a'] > 1 && quantity('1').isGreaterThan(quantity('2'))", "undeclared reference to 'quantity'"),
        ("self.when < timestamp('2026-02-01T00:00:00Z')", "format date-time only for equality"),
        ("self.wait == duration('90s')", "format duration only for equality"),
        ("1 + 2", "cel expression must evaluate to a bool"),
        ("self == 1", "no matching overload"),
    ],
)
def test_a_rule_that_cannot_be_evaluated_is_refused(rule: str, why: str) -> None:
    with pytest.raises(RuleError, match=why):
        compiled(Rule(rule), THING)


@pytest.mark.parametrize(
    ("name", "escaped"),
    [("plain", "plain"), ("in", "__in__"), ("a.b/c-d", "a__dot__b__slash__c__dash__d"), ("a__b", "a__underscores__b")],
)
def test_names_are_escaped_as_rules_write_them(name: str, escaped: str) -> None:
    assert escape(name) == escaped


@pytest.mark.parametrize(
    "source",
    [
        "d.driver == 'x' && d.n > 1",
        "d.memory.compareTo(quantity('80Gi')) == 0 && d.memory.isGreaterThan(quantity('79Gi'))",
        "d.memory == quantity('80Gi') && !d.memory.isLessThan(quantity('1'))",
        "d.version.isGreaterThan(semver('1.9.0')) && d.version.isLessThan(semver('1.10.1'))",
        "d.version.compareTo(semver('1.10.0')) == 0",
        "semver('1.0.0-rc.1').isLessThan(semver('1.0.0')) && semver('1.0.0-2').isLessThan(semver('1.0.0-10'))",
        "semver('1.0.0-10').isLessThan(semver('1.0.0-a')) && semver('1.0.0-a').isLessThan(semver('1.0.0-a.1'))",
        "semver('1.0.0+a').compareTo(semver('1.0.0+b')) == 0",
    ],
)
def test_a_condition_on_a_value_without_a_type(source: str) -> None:
    value = {"driver": "x", "n": 2, "memory": float(80 * 2**30), "version": "1.10.0"}
    assert Condition(source, "d").holds(value)
    assert not Condition(f"!({source})", "d").holds(value)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("d.absent == 1", "CEL runtime error: no such key: absent"),
        ("quantity('much') == quantity('1')", "'much' is not a quantity"),
        ("semver('1.0') == semver('1.0.0')", "'1.0' is not a semantic version"),
    ],
)
def test_a_condition_that_fails_is_not_false_but_an_error(source: str, why: str) -> None:
    with pytest.raises(RuleError, match=why):
        Condition(source, "d").holds({})
