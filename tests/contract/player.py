"""Cases of the contract: sequences of requests that are played against a server, and what kube-apiserver answered.

`cases/<file>.yaml` has the requests, `cases/<file>.json` the answers. What differs from run to run (uids, versions,
times, the namespace) is replaced by words before answers are compared; a version becomes `same` or `changed`.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

CASES = Path(__file__).parent / "cases"
GADGETS = CASES / "gadgets.yaml"
FILES = ("apply", "patch", "custom")

KINDS: Mapping[str, tuple[str, str, bool]] = {
    "configmaps": ("v1", "ConfigMap", True),
    "customresourcedefinitions": ("apiextensions.k8s.io/v1", "CustomResourceDefinition", False),
    "deployments": ("apps/v1", "Deployment", True),
    "gadgets": ("contract.example.com/v1", "Gadget", True),
    "leases": ("coordination.k8s.io/v1", "Lease", True),
    "nodes": ("v1", "Node", False),
    "pods": ("v1", "Pod", True),
    "resourceclaimtemplates": ("resource.k8s.io/v1", "ResourceClaimTemplate", True),
    "resourceslices": ("resource.k8s.io/v1", "ResourceSlice", False),
}
"""The API version and kind of a resource, and whether its objects are in namespaces."""

METHODS: Mapping[str, tuple[str, str]] = {
    "create": ("POST", "application/json"),
    "put": ("PUT", "application/json"),
    "get": ("GET", "application/json"),
    "delete": ("DELETE", "application/json"),
    "apply": ("PATCH", "application/apply-patch+yaml"),
    "json": ("PATCH", "application/json-patch+json"),
    "merge": ("PATCH", "application/merge-patch+json"),
    "strategic": ("PATCH", "application/strategic-merge-patch+json"),
}

Answer = dict[str, Any]
"""`code` and `body` of an answer, made comparable."""


@dataclass(frozen=True)
class Step:
    """One request."""

    do: str
    resource: str
    body: Any = None
    manager: str = ""
    subresource: str = ""
    force: bool = False
    query: str = ""
    by_server: bool = False
    """Whether the answer is not one of apply, patch or validation but of what stands before or behind them."""


@dataclass(frozen=True)
class Case:
    """A sequence of requests for one object."""

    name: str
    steps: tuple[Step, ...] = field(default=())

    @property
    def object_name(self) -> str:
        return self.name.replace("_", "-")[:60].rstrip("-")


class Api(Protocol):
    """Sends a request and returns the code and the JSON of the answer."""

    def __call__(self, method: str, path: str, body: bytes | None, content_type: str) -> tuple[int, Any]: ...


@functools.cache
def cases(file: str) -> tuple[Case, ...]:
    """The cases of a file."""
    entries = yaml.safe_load((CASES / f"{file}.yaml").read_text())
    return tuple(Case(entry["case"], tuple(_step(step) for step in entry["steps"])) for entry in entries)


def _step(entry: Mapping[str, Any]) -> Step:
    return Step(
        do=entry["do"],
        resource=entry["in"],
        body=entry.get("body"),
        manager=entry.get("as", ""),
        subresource=entry.get("sub", ""),
        force=entry.get("force", False),
        query=entry.get("query", ""),
        by_server=entry.get("by") == "server" or entry["do"] == "get",
    )


@functools.cache
def recorded(file: str) -> Mapping[str, list[Answer]]:
    """What kube-apiserver answered, by the name of the case."""
    answers: Mapping[str, list[Answer]] = json.loads((CASES / f"{file}.json").read_text())
    return answers


def play(api: Api, case: Case, namespace: str) -> Iterator[Answer]:
    """The comparable answers to the requests of a case."""
    last: dict[str, Any] = {}
    for step in case.steps[:1]:
        if not KINDS[step.resource][2] and step.do != "delete":
            # What is in no namespace may be left from another run.
            first = Step("delete", step.resource)
            api("DELETE", path(first, case, namespace), None, "application/json")
    for step in case.steps:
        body = full_body(step, case, namespace, last)
        encoded = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        method, content_type = METHODS[step.do]
        code, answer = api(method, path(step, case, namespace), encoded, content_type)
        yield {"code": code, "body": comparable(answer, namespace, last)}
        if code < 300:
            last = answer


def path(step: Step, case: Case, namespace: str) -> str:
    """Where a request goes, with its query."""
    version, _, namespaced = KINDS[step.resource]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    scope = f"/namespaces/{namespace}" if namespaced else ""
    name = "" if step.do == "create" else f"/{case.object_name}"
    below = f"/{step.subresource}" if step.subresource else ""
    query = "&".join(filter(None, (_manager(step), "force=true" if step.force else "", step.query)))
    return f"{root}{scope}/{step.resource}{name}{below}" + (f"?{query}" if query else "")


def _manager(step: Step) -> str:
    return f"fieldManager={step.manager}" if step.manager and step.do not in ("get", "delete") else ""


def full_body(step: Step, case: Case, namespace: str, last: Mapping[str, Any]) -> Any:
    """The body of a request with what every object says of itself."""
    body = _substitute(step.body, last.get("metadata", {}))
    if step.do not in ("create", "put", "apply") or not isinstance(body, dict):
        return body
    version, kind, namespaced = KINDS[step.resource]
    scope = {"namespace": namespace} if namespaced else {}
    metadata = {"name": case.object_name, **scope, **body.get("metadata", {})}
    return {"apiVersion": version, "kind": kind, **body, "metadata": metadata}


def _substitute(value: Any, metadata: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {name: _substitute(member, metadata) for name, member in value.items()}
    if isinstance(value, list):
        return [_substitute(item, metadata) for item in value]
    return (
        {"$uid": metadata.get("uid"), "$version": metadata.get("resourceVersion")}.get(value, value)
        if isinstance(value, str)
        else value
    )


def comparable(answer: Any, namespace: str, last: Mapping[str, Any]) -> Any:
    """An answer without what differs from run to run; `last` is the object that was answered before."""
    if not isinstance(answer, dict):
        return answer
    known = last.get("metadata", {})
    text = json.dumps(answer, sort_keys=True)
    words = {namespace: "<namespace>", known.get("uid"): "<uid>"}
    for found, word in words.items():
        if found:
            text = text.replace(found, word)
    clean = json.loads(text)
    if answer.get("kind") == "Status":
        causes = clean.get("details", {}).get("causes")
        if causes:
            causes.sort(key=lambda cause: (cause.get("field", ""), cause.get("message", "")))
        return clean
    metadata = clean.get("metadata", {})
    metadata["uid"] = "<uid>"
    same = known.get("resourceVersion") == answer["metadata"].get("resourceVersion")
    metadata["resourceVersion"] = "same" if same else "changed"
    for name in ("creationTimestamp", "deletionTimestamp"):
        if name in metadata:
            metadata[name] = "<time>"
    entries = [entry for entry in metadata.get("managedFields", ()) if not entry["manager"].startswith("kube-")]
    metadata["managedFields"] = entries
    for entry in entries:
        if "time" in entry:
            entry["time"] = "<time>"
    _blur_times(clean.get("status"))
    return clean


def _blur_times(value: Any) -> None:
    if isinstance(value, dict):
        for name, member in value.items():
            if name == "lastTransitionTime" and isinstance(member, str):
                value[name] = "<time>"
            _blur_times(member)
    elif isinstance(value, list):
        for item in value:
            _blur_times(item)
