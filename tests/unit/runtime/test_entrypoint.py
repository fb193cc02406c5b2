"""What a binary does around its manager: exit codes, log lines and signals, each in a process of its own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from controllers.runtime.entrypoint import _leaves
from controllers.runtime.errors import ConfigurationError, NotFound, RuntimeFault
from controllers.runtime.lease import Lease
from controllers.runtime.testing import connected
from controllers.sandbox import Sandbox

ROOT = Path(__file__).parents[3]

PROGRAM = """
import asyncio, sys
from controllers.runtime.entrypoint import run
from controllers.runtime.errors import RuntimeFault
from controllers.runtime.options import ManagerOptions

async def for_ever(*_):
    print("waiting", flush=True)
    await asyncio.Event().wait()

def setup(manager):
{body}

options = dict(kubeconfig={kubeconfig!r}, metrics_bind_address="0", health_probe_bind_address="0", grace_period=5.0)
sys.exit(run("a-binary", setup, ManagerOptions(**{{**options, **{options!r}}})))
"""


@pytest.fixture
def kubeconfig(tmp_path: Path) -> str:
    path = tmp_path / "config"
    path.write_text(
        json.dumps(
            {
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    return str(path)


def program(body: str, kubeconfig: str, **options: object) -> list[str]:
    text = PROGRAM.format(body=textwrap.indent(textwrap.dedent(body), "    "), kubeconfig=kubeconfig, options=options)
    return [sys.executable, "-c", text]


def started(command: list[str]) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def outcome(command: list[str]) -> tuple[int, str]:
    """Exit code and standard error of a program that ends by itself."""
    process = started(command)
    try:
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    return process.returncode, errors


def signalled(command: list[str], *signals: signal.Signals, pause: float = 0.3) -> tuple[int, str, float]:
    """The same for one that is sent signals once it says that it waits, with the seconds from the last one on."""
    process = started(command)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        for number, each in enumerate(signals):
            if number:
                time.sleep(pause)  # the two must arrive one after the other
            process.send_signal(each)
        began = time.monotonic()
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    return process.returncode, errors, time.monotonic() - began


# -- errors -----------------------------------------------------------------------------------------------------------


def test_an_error_deep_inside_gives_code_1_and_one_clear_line(kubeconfig: str) -> None:
    body = """
    async def fails():
        raise RuntimeFault("the disk is full: empty it")
    manager.add("x", fails)
    manager.add("y", for_ever)
    """
    code, errors = outcome(program(body, kubeconfig))
    assert code == 1
    assert [line for line in errors.splitlines() if "ERROR" in line] == errors.splitlines()[-1:]
    assert "the disk is full: empty it" in errors.splitlines()[-1]
    assert "binary=a-binary" in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_an_error_in_setup_gives_code_1_and_one_clear_line(kubeconfig: str) -> None:
    code, errors = outcome(program("manager.controller('a'); manager.controller('a')", kubeconfig))
    assert code == 1
    assert "there are two controllers named a" in errors
    assert "Traceback" not in errors


def test_a_controller_without_reconciler_gives_code_1(kubeconfig: str) -> None:
    code, errors = outcome(program("manager.controller('a')", kubeconfig))
    assert (code, "Traceback" in errors) == (1, False)
    assert "controller a has no reconciler" in errors


def test_a_programming_error_gives_a_traceback_and_a_code_that_is_not_0(kubeconfig: str) -> None:
    body = """
    async def bug():
        return {}["missing"]
    manager.add("x", bug)
    """
    code, errors = outcome(program(body, kubeconfig))
    assert code != 0
    assert "Traceback" in errors
    assert "KeyError: 'missing'" in errors


def test_beside_a_programming_error_an_expected_one_is_still_told(kubeconfig: str) -> None:
    body = """
    async def bug():
        return {}["missing"]
    async def fails():
        raise RuntimeFault("the disk is full: empty it")
    manager.add("x", bug)
    manager.add("y", fails)
    """
    code, errors = outcome(program(body, kubeconfig))
    assert code != 0
    assert "KeyError: 'missing'" in errors
    assert [line for line in errors.splitlines() if "ERROR" in line and "the disk is full" in line]


def test_a_missing_kubeconfig_is_named_with_code_1(tmp_path: Path) -> None:
    body = """
    from controllers.api.core import Node
    manager.informer(Node)
    """
    path = str(tmp_path / "absent")
    code, errors = outcome(program(body, path))
    assert (code, "Traceback" in errors) == (1, False)
    assert f"there is no kubeconfig {path}" in errors


def test_a_server_that_is_not_there_is_named_after_the_sync_timeout(kubeconfig: str) -> None:
    body = """
    from controllers.api.core import Node
    manager.informer(Node)
    """
    code, errors = outcome(program(body, kubeconfig, cache_sync_timeout=0.3))
    assert (code, "Traceback" in errors) == (1, False)
    last = errors.splitlines()[-1]
    assert "caches not filled within 0.3 s: nodes" in last


def test_a_taken_port_is_named_with_code_1(kubeconfig: str) -> None:
    code, errors = outcome(program("pass", kubeconfig, metrics_bind_address="203.0.113.1:80"))
    assert (code, "Traceback" in errors) == (1, False)
    assert "--metrics-bind-address" in errors


def test_a_lost_lease_gives_code_1_and_one_clear_line(kubeconfig: str) -> None:
    body = """
    from controllers.runtime.errors import LeadershipLost
    async def loses():
        raise LeadershipLost("somebody else has it")
    manager.add("x", loses)
    """
    code, errors = outcome(program(body, kubeconfig))
    assert (code, "Traceback" in errors) == (1, False)
    assert [line for line in errors.splitlines() if "ERROR" in line and "somebody else has it" in line]


def test_an_election_without_a_namespace_gives_code_1_and_names_the_flag(
    kubeconfig: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POD_NAMESPACE", raising=False)
    code, errors = outcome(program("pass", kubeconfig, leader_elect=True))
    assert (code, "Traceback" in errors) == (1, False)
    assert "--leader-elect-resource-namespace" in errors


def test_leaves_of_nested_groups_come_in_order() -> None:
    first, second, third = RuntimeFault("1"), ConfigurationError("2"), NotFound("3", code=404)
    inner: Any = ExceptionGroup("b", [second, third])
    assert _leaves(BaseExceptionGroup("a", [first, inner])) == [first, second, third]


def test_a_setup_that_is_a_coroutine_function_is_refused(kubeconfig: str) -> None:
    command = program("pass", kubeconfig)
    command[-1] = command[-1].replace("def setup(", "async def setup(")
    code, errors = outcome(command)
    assert (code, "Traceback" in errors, "never awaited" in errors) == (1, False, False)
    assert "setup is a coroutine function: make it a plain one" in errors


def test_an_unreadable_kubeconfig_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    code, errors = outcome(program("manager.add('x', for_ever)", str(path)))
    assert code == 1
    assert [f"{path} is empty" in line for line in errors.splitlines()] == [True]


def test_what_blocks_the_event_loop_is_told(kubeconfig: str) -> None:
    body = """
    import time
    async def blocks():
        await asyncio.sleep(0)
        time.sleep(1.5)
        await asyncio.sleep(0.5)
        raise RuntimeFault("enough")
    manager.add("x", blocks)
    """
    code, errors = outcome(program(body, kubeconfig))
    assert code == 1
    assert [line for line in errors.splitlines() if "WARN" in line and "the event loop stood still" in line]


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_stops_in_order(kubeconfig: str, number: signal.Signals) -> None:
    body = """
    async def orderly():
        try:
            await for_ever()
        finally:
            print("cleaned up", file=sys.stderr)
    manager.add("x", orderly)
    """
    code, errors, _ = signalled(program(body, kubeconfig), number)
    assert code == 0
    assert "cleaned up" in errors
    assert number.name in errors
    assert "Traceback" not in errors


def test_a_signal_while_preparing_stops_in_order(kubeconfig: str) -> None:
    code, errors, seconds = signalled(program("manager.prepare(for_ever)", kubeconfig), signal.SIGTERM)
    assert (code, "Traceback" in errors) == (0, False)
    assert seconds < 15.0


HANGS_AT_THE_END = """
async def hangs():
    try:
        await for_ever()
    finally:
        await asyncio.sleep(20)
manager.add("x", hangs)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_stops_at_once(kubeconfig: str, number: signal.Signals) -> None:
    code, errors, seconds = signalled(program(HANGS_AT_THE_END, kubeconfig), signal.SIGTERM, number)
    assert code == 128 + number
    assert seconds < 15.0
    assert "Traceback" not in errors


async def lease_of(sandbox: Sandbox, name: str) -> Lease:
    async with connected(sandbox.kubeconfig) as client:
        return await client.get(Lease, name, "default")


def test_a_second_signal_leaves_the_lease_to_run_out() -> None:
    elected = {"leader_elect": True, "leader_elect_resource_namespace": "default"}
    with Sandbox() as sandbox:
        command = program(HANGS_AT_THE_END, str(sandbox.kubeconfig), **elected)
        code, _, _ = signalled(command, signal.SIGTERM, signal.SIGTERM)
        lease = asyncio.run(lease_of(sandbox, "a-binary"))

    assert code == 143
    assert lease.spec.holder_identity


def test_a_process_that_is_stuck_ends_all_the_same_with_code_1(kubeconfig: str) -> None:
    body = """
    from controllers.runtime import stage
    stage.STUCK_AFTER = 0.2
    async def swallows():
        print("waiting", flush=True)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
    manager.add("swallows", swallows)
    """
    code, errors, _ = signalled(program(body, kubeconfig), signal.SIGTERM)
    assert code == 1
    assert "tasks do not end though they were cancelled" in errors
    assert "names=swallows" in errors
