"""Plays the contract's cases on the pure functions: each step starts from what kube-apiserver answered before it.

What a real server does beside them (conversion through Go types, validation by hand-written code) is not played.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from controllers.sandbox import crd, patch, typeschema, validation
from controllers.sandbox.apply import apply, causes_of_nulls, track_write
from controllers.sandbox.errors import Cause, StatusError, invalid
from controllers.sandbox.typeschema import TypeSchema
from tests.contract.player import GADGETS, KINDS, Answer, Case, Step, full_body, recorded

NAMESPACE = "<namespace>"
NOW = "<time>"
SERVER_FIELDS = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")
STATUS_KINDS = frozenset({"gadgets", "pods", "nodes", "deployments"})
"""Resources of the cases that have a status subresource."""


@dataclass(frozen=True)
class Played:
    """One step: what was answered before it and to it, and the request."""

    name: str
    step: Step
    body: Any
    live: dict[str, Any] | None
    answer: Answer


def steps(file: str, case: Case) -> Iterator[Played]:
    """The steps of a case, each with the state that it met."""
    live: dict[str, Any] | None = None
    for step, answer in zip(case.steps, recorded(file)[case.name], strict=True):
        body = full_body(step, case, NAMESPACE, live or {})
        yield Played(case.object_name, step, body, live, answer)
        if answer["code"] < 300:
            live = answer["body"]


def schema_of(resource: str) -> TypeSchema:
    """The schema of a resource that the cases use."""
    version, kind, _ = KINDS[resource]
    if resource == "gadgets":
        return crd.compile(yaml.safe_load(GADGETS.read_text())).storage.schema
    group, _, number = version.rpartition("/")
    return typeschema.builtin(group, number, kind)


def written(played: Played) -> dict[str, Any]:
    """What the functions make of a step. Raises StatusError."""
    schema, step = schema_of(played.step.resource), played.step
    live = copy.deepcopy(played.live)
    common: Mapping[str, Any] = {
        "manager": step.manager,
        "api_version": KINDS[step.resource][0],
        "subresource": step.subresource,
        "schema": schema,
        "now": NOW,
    }
    if step.do == "apply":
        merged = apply(live, played.body, force=step.force, **common)
        refuse_for(causes_of_nulls(merged, live, step.subresource, schema), merged)
        return judged(written_part(merged, live, step), live, schema, step)
    wanted = judged(written_part(changed(played, live, schema), live, step), live, schema, step)
    return track_write(live, wanted, **common)


def changed(played: Played, live: dict[str, Any] | None, schema: TypeSchema) -> dict[str, Any]:
    """The object that a request other than apply asks for."""
    step, body = played.step, played.body
    if step.do in ("create", "put"):
        return kept(body, live)
    assert live is not None
    if step.do == "json":
        return patch.json_patch(live, body)
    if step.do == "merge":
        merged: dict[str, Any] = patch.merge_patch(live, body)
        return merged
    return patch.strategic_merge_patch(live, body, schema)


def kept(body: dict[str, Any], live: dict[str, Any] | None) -> dict[str, Any]:
    """A body with what the server keeps of the live object."""
    held = {name: value for name, value in (live or {}).get("metadata", {}).items() if name in SERVER_FIELDS}
    status = {"status": live["status"]} if live and "status" in live else {}
    return {**body, "metadata": {**held, **body["metadata"]}, **status}


def written_part(wanted: dict[str, Any], live: dict[str, Any] | None, step: Step) -> dict[str, Any]:
    """What an endpoint writes of an object: the status or all but the status."""
    if step.resource not in STATUS_KINDS:
        return wanted
    if step.subresource == "status" and live is not None:
        metadata = wanted["metadata"] if step.resource != "gadgets" else live["metadata"]
        metadata = {**metadata, "managedFields": wanted["metadata"].get("managedFields")}
        rest = {name: value for name, value in live.items() if name != "status"}
        return {**rest, "metadata": metadata, **({"status": wanted["status"]} if "status" in wanted else {})}
    rest = {name: value for name, value in wanted.items() if name != "status"}
    return {**rest, **({"status": live["status"]} if live and "status" in live else {})}


def judged(wanted: dict[str, Any], live: dict[str, Any] | None, schema: TypeSchema, step: Step) -> dict[str, Any]:
    """The object pruned and defaulted, a custom one also validated."""
    wanted = copy.deepcopy(wanted)
    validation.prune(wanted, schema)
    validation.default(wanted, schema)
    if step.resource != "gadgets":
        return wanted
    refuse_for(validation.validate(wanted, live, schema), wanted)
    return wanted


def refuse_for(causes: list[Cause], wanted: dict[str, Any]) -> None:
    """Raises StatusError 422 if there are any causes."""
    if causes:
        raise invalid("contract.example.com", "Gadget", wanted["metadata"]["name"], causes)


def outcome(played: Played) -> Answer:
    """The comparable part of what the functions make of a step."""
    try:
        body = written(played)
    except StatusError as error:
        return refusal(error.status())
    return {"code": 0, "entries": blurred(body), "content": content(body)}


def expected(played: Played) -> Answer:
    """The comparable part of what kube-apiserver answered."""
    body = played.answer["body"]
    if played.answer["code"] >= 300:
        return refusal(body)
    return {"code": 0, "entries": blurred(body), "content": content(body)}


def refusal(status: Mapping[str, Any]) -> Answer:
    """Code, reason, message and causes; where there are several, in no order."""
    causes = status.get("details", {}).get("causes", [])
    texts = sorted(f"{cause.get('field')}|{cause.get('reason')}|{cause.get('message')}" for cause in causes)
    message = status["message"] if len(texts) < 2 or status["code"] == 409 else ""
    return {"code": status["code"], "reason": status.get("reason", ""), "message": message, "causes": texts}


def blurred(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """managedFields without the order that only times give."""
    entries = body["metadata"].get("managedFields") or []
    return sorted(
        entries, key=lambda entry: (entry["operation"], entry.get("manager", ""), entry.get("subresource", ""))
    )


def content(body: Mapping[str, Any]) -> dict[str, Any]:
    """All that the server does not set itself."""
    metadata = {name: value for name, value in body["metadata"].items() if name not in SERVER_FIELDS}
    return {**body, "metadata": metadata}
