"""Apply, patches and custom kinds: every server answers the cases as kube-apiserver did when they were recorded."""

import functools
import time
from typing import Any

import pytest
import yaml

from tests.contract.api_server import ApiServer
from tests.contract.player import FILES, GADGETS, Answer, Case, cases, play, recorded

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SERVED_TIMEOUT = 20.0  # seconds until a new definition must be served
REWRITTEN = frozenset({"Pod", "Node", "Deployment"})
"""Kinds that a real cluster's controllers change meanwhile: of these codes and owners are compared, not contents."""


@functools.cache
def serve_gadgets(server: ApiServer) -> None:
    """Define the contract's custom kind and wait until it is served."""
    server.create(DEFINITIONS, yaml.safe_load(GADGETS.read_text()))
    end = time.monotonic() + SERVED_TIMEOUT
    while server.get("/apis/contract.example.com/v1/gadgets").code != 200:
        assert time.monotonic() < end, "the contract's custom kind is not served"
        time.sleep(0.05)


def weighed(answer: Answer) -> Answer:
    """What must be equal of an answer: all of it, but for kinds that controllers change."""
    body = answer["body"]
    if not isinstance(body, dict):
        return answer
    if body.get("kind") == "Status":
        # Where several rules are broken their order is that of a map in the real server.
        many = len(body.get("details", {}).get("causes", ())) > 1 and answer["code"] == 422
        return {**answer, "body": {name: part for name, part in body.items() if not (many and name == "message")}}
    entries = sorted(body["metadata"].get("managedFields") or (), key=_order)
    if body["kind"] in REWRITTEN:
        return {"code": answer["code"], "entries": entries}
    metadata = {**body["metadata"], "managedFields": entries}
    # Whether a definition is served already is a matter of time.
    return {
        **answer,
        "body": {**body, "metadata": metadata, **({"status": {}} if "status" in body and _crd(body) else {})},
    }


def _crd(body: dict[str, Any]) -> bool:
    return bool(body["kind"] == "CustomResourceDefinition")


def _order(entry: dict[str, Any]) -> tuple[str, str, str]:
    return entry["operation"], entry.get("manager", ""), entry.get("subresource", "")


@pytest.mark.parametrize(
    ("file", "case"), [pytest.param(file, case, id=case.name) for file in FILES for case in cases(file)]
)
def test_answers_are_those_of_the_real_server(server: ApiServer, namespace: str, file: str, case: Case) -> None:
    serve_gadgets(server)

    def api(method: str, path: str, body: bytes | None, content_type: str) -> tuple[int, Any]:
        reply = server.send(method, path, body, content_type=content_type)
        return reply.code, reply.body

    for number, (got, wanted) in enumerate(zip(play(api, case, namespace), recorded(file)[case.name], strict=True)):
        assert weighed(got) == weighed(wanted), f"step {number}"
