"""The pure functions make of every request of the contract what kube-apiserver made of it."""

import pytest
import yaml

from controllers.sandbox import crd, validation
from controllers.sandbox.errors import StatusError
from tests.contract.player import FILES, Case, cases, recorded
from tests.unit.sandbox.replay import Played, expected, outcome, refusal, schema_of, steps

DEFINITIONS = "customresourcedefinitions"
REWRITTEN = frozenset({"pods", "nodes", "deployments", "resourceslices", "leases", "resourceclaimtemplates"})
"""Kinds whose content the real server also changes by controllers or conversion: only their owners are compared."""


def _all() -> list[tuple[str, Case]]:
    return [(file, case) for file in FILES for case in cases(file)]


def _played(played: Played) -> bool:
    return not played.step.by_server and played.step.resource != DEFINITIONS


@pytest.mark.parametrize(("file", "case"), [pytest.param(*item, id=item[1].name) for item in _all()])
def test_functions_answer_as_the_real_server_did(file: str, case: Case) -> None:
    for played in filter(_played, steps(file, case)):
        got, wanted = outcome(played), expected(played)
        if played.step.resource in REWRITTEN:
            got.pop("content", None)
            wanted.pop("content", None)
        assert got == wanted


def test_the_recorded_answers_are_those_of_the_cases() -> None:
    for file in FILES:
        assert {case.name: len(case.steps) for case in cases(file)} == {
            name: len(answers) for name, answers in recorded(file).items()
        }


def test_most_steps_are_played_on_the_functions() -> None:
    every = [played for file, case in _all() for played in steps(file, case)]
    assert sum(map(_played, every)) > 0.8 * len(every) > 150


@pytest.mark.parametrize(
    "played",
    [
        pytest.param(played, id=f"{case.name}-{index}")
        for case in cases("custom")
        for index, played in enumerate(steps("custom", case))
        if played.step.resource == DEFINITIONS
    ],
)
def test_definitions_are_judged_as_by_the_real_server(played: Played) -> None:
    if played.answer["code"] < 300:
        compiled = crd.compile(played.body)
        names = played.answer["body"]["spec"]["names"]
        assert (compiled.list_kind, compiled.singular) == (names["listKind"], names["singular"])
        return
    with pytest.raises(StatusError) as refused:
        crd.compile(played.body)
    assert refusal(refused.value.status()) == refusal(played.answer["body"])


def test_strict_validation_names_what_pruning_takes_out() -> None:
    case = next(case for case in cases("custom") if case.name == "strict_validation_names_unknown_fields")
    played = next(steps("custom", case))
    dropped = validation.prune(yaml.safe_load(yaml.safe_dump(played.body)), schema_of("gadgets"))
    named = ", ".join(f'unknown field "{path}"' for path in dropped)
    assert str(played.answer["body"]["message"]).endswith(f"strict decoding error: {named}")
