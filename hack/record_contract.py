"""Learns from a real API server what the contract's cases answer, and writes it beside them.

`python -m hack.record_contract` starts a control plane, plays `tests/contract/cases/*.yaml` and writes the `.json`
files of the same names; `--kubeconfig` plays them on a running cluster instead.
"""

import argparse
import base64
import contextlib
import json
import ssl
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from hack.localcluster import ControlPlane, Options
from tests.contract.player import CASES, FILES, GADGETS, Api, cases, play

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ESTABLISHED_TIMEOUT = 20.0  # seconds


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m hack.record_contract", description="record the contract")
    parser.add_argument("--kubeconfig", type=Path, help="play on this cluster (default: a new control plane)")
    parser.add_argument("file", nargs="*", default=FILES, help=f"which of {', '.join(FILES)} (default: all)")
    options = parser.parse_args(arguments)
    with _kubeconfig(options.kubeconfig) as kubeconfig:
        api = connect(kubeconfig)
        namespace = prepare(api)
        for file in options.file:
            answers = {case.name: list(play(api, case, namespace)) for case in cases(file)}
            (CASES / f"{file}.json").write_text(render(answers))
            print(f"{file}: {len(answers)} cases, {sum(map(len, answers.values()))} answers")
        api("DELETE", f"/api/v1/namespaces/{namespace}", None, "application/json")
    return 0


@contextlib.contextmanager
def _kubeconfig(given: Path | None) -> Iterator[Path]:
    if given:
        yield given
        return
    with (
        tempfile.TemporaryDirectory() as directory,
        ControlPlane(Path(directory), Options(start_kwok=False)) as plane,
    ):
        yield plane.admin_kubeconfig


def render(answers: Any) -> str:
    """The text of a file of answers: one line for each answer."""
    blocks = []
    for name, listed in answers.items():
        lines = ",\n".join(f"  {json.dumps(answer, separators=(',', ':'), sort_keys=True)}" for answer in listed)
        blocks.append(f"{json.dumps(name)}: [\n{lines}\n]")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def prepare(api: Api) -> str:
    """A new namespace, with the contract's custom kind served; returns the namespace's name."""
    for definition in ("as.b.example.com", "gadgets.contract.example.com"):
        while api("DELETE", f"{DEFINITIONS}/{definition}", None, "application/json")[0] != 404:
            time.sleep(0.2)
    namespace = f"contract-{uuid.uuid4().hex[:8]}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    api("POST", "/api/v1/namespaces", json.dumps(body).encode(), "application/json")
    definition_body = json.dumps(yaml.safe_load(GADGETS.read_text())).encode()
    until = time.monotonic() + ESTABLISHED_TIMEOUT
    api("POST", DEFINITIONS, definition_body, "application/json")
    probe = f"/apis/contract.example.com/v1/namespaces/{namespace}/gadgets"
    while api("GET", probe, None, "application/json")[0] != 200:
        if time.monotonic() > until:
            raise TimeoutError("the contract's custom kind is not served")
        time.sleep(0.2)
    # Only what makes this account lets pods be created.
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    while api("GET", account, None, "application/json")[0] != 200 and time.monotonic() < until:
        time.sleep(0.2)
    return namespace


def connect(kubeconfig: Path) -> Api:
    """An API that talks as the kubeconfig's current user does."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    tls = ssl.create_default_context(cadata=_content(cluster, "certificate-authority"))
    headers = {"Accept": "application/json"}
    if "token" in user:
        headers["Authorization"] = f"Bearer {user['token']}"
    else:
        _load_client_certificate(tls, user)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))

    def api(method: str, path: str, body: bytes | None, content_type: str) -> tuple[int, Any]:
        request = urllib.request.Request(cluster["server"] + path, body, headers, method=method)
        if body is not None:
            request.add_header("Content-Type", content_type)
        try:
            with opener.open(request, timeout=30) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _parsed(error.read())

    return api


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode()


def _content(holder: dict[str, str], key: str) -> str:
    if f"{key}-data" in holder:
        return base64.b64decode(holder[f"{key}-data"]).decode()
    return Path(holder[key]).read_text()


def _load_client_certificate(tls: ssl.SSLContext, user: dict[str, str]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(_content(user, "client-certificate") + "\n" + _content(user, "client-key"))
        file.flush()
        tls.load_cert_chain(file.name)


if __name__ == "__main__":
    sys.exit(main())
