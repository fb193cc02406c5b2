"""Definitions as the sandbox serves them, and those that it cannot honour."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from controllers.sandbox import crd
from controllers.sandbox.errors import StatusError

CRDS = Path(__file__).resolve().parents[3] / "crds"


def manifest(**spec: Any) -> dict[str, Any]:
    """A definition that is valid but for what is asked for."""
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    names = {"kind": "Thing", "plural": "things"}
    base = {"group": "x.example.com", "scope": "Cluster", "names": names, "versions": [version]}
    return {"metadata": {"name": "things.x.example.com"}, "spec": {**base, **spec}}


@pytest.mark.parametrize("name", ["computedomains", "computedomaincliques"])
def test_the_definitions_of_the_project_are_served(name: str) -> None:
    compiled = crd.compile(yaml.safe_load((CRDS / f"{name}.yaml").read_text()))
    assert compiled.plural == name
    assert compiled.storage.columns


def test_names_that_are_left_out_follow_from_the_kind() -> None:
    compiled = crd.compile(manifest())
    assert (compiled.list_kind, compiled.singular, compiled.namespaced) == ("ThingList", "thing", False)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"conversion": {"strategy": "Webhook"}}, "spec.conversion.strategy"),
        ({"preserveUnknownFields": True}, "spec.preserveUnknownFields"),
    ],
)
def test_what_the_sandbox_cannot_honour_is_refused(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(StatusError) as refused:
        crd.compile(manifest(**spec))
    assert refused.value.code == 422
    assert [cause.field for cause in refused.value.causes] == [field]
