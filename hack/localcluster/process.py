"""Child processes that never outlive this process, not even when it gets SIGKILL.

A small helper process (`hack.localcluster.reaper`) starts and owns them; this module is its client. `PR_SET_PDEATHSIG`
on direct children would not do: it fires when the starting *thread* ends, and tests start things from worker threads.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hack.localcluster import reaper
from hack.localcluster.polling import wait_until

REAPER_EXIT_TIMEOUT = 10.0  # seconds; it has only SIGKILLs to send


class ProcessError(Exception):
    """A process could not be started, or the helper process that owns them all is gone."""


class ProcessGroup:
    """Named processes tied to `directory`, of which only one group at a time can exist. Safe to use from any thread."""

    def __init__(self, directory: Path) -> None:
        """Start the helper. Raises ProcessError where another group has the directory."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = threading.Lock()
        self._names: set[str] = set()
        # Isolated mode and a path instead of -m: neither the working directory nor PYTHONPATH matters. Its own session
        # keeps a terminal's Ctrl-C from it, so that the order of an orderly stop is ours.
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", reaper.__file__, str(directory), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._receive()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> int:
        """Start a process whose output is appended to `log`, and return its process id.

        Raises ProcessError where `name` still runs or the command cannot be executed.
        """
        if name in self._names and self.exit_code(name) is None:
            raise ProcessError(f"{name} is already running: stop it before starting it again")
        log.parent.mkdir(parents=True, exist_ok=True)
        request = {
            "start": name,
            "command": list(command),
            "log": str(log),
            "environment": None if environment is None else dict(environment),
        }
        pid: int = self._ask(request)["pid"]
        self._names.add(name)
        return pid

    def exit_code(self, name: str) -> int | None:
        """The exit code of a process that was started, negative for a signal, None while it runs."""
        code: int | None = self._ask({"poll": name})["code"]
        return code

    def running(self) -> set[str]:
        """Names of the processes that run now."""
        return {name for name in self._names if self.exit_code(name) is None}

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process that was started; nothing happens where it has ended."""
        self._ask({"signal": name, "number": number})

    def stop(self, names: Iterable[str], grace: float) -> None:
        """End processes together: SIGTERM, and SIGKILL to those that are still there `grace` seconds later."""
        wanted = self._names & set(names)
        for name in wanted:
            self.signal(name, signal.SIGTERM)
        try:
            wait_until(lambda: not wanted & self.running(), grace, "the end of the processes")
        except TimeoutError:
            for name in wanted:
                self.signal(name, signal.SIGKILL)
            wait_until(lambda: not wanted & self.running(), REAPER_EXIT_TIMEOUT, "the end of killed processes")

    def close(self) -> None:
        """Kill what still runs and end the helper. May be called again."""
        assert self._reaper.stdin is not None
        assert self._reaper.stdout is not None
        try:
            # A request that a dead helper did not take is still in the buffer.
            with contextlib.suppress(BrokenPipeError):
                self._reaper.stdin.close()
            self._reaper.wait(REAPER_EXIT_TIMEOUT)
        finally:
            self._reaper.stdout.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            try:
                assert self._reaper.stdin is not None
                self._reaper.stdin.write(json.dumps(request).encode() + b"\n")
                self._reaper.stdin.flush()
            except (BrokenPipeError, ValueError) as error:
                raise ProcessError("the process that owns the cluster's processes has ended") from error
            return self._receive()

    def _receive(self) -> dict[str, Any]:
        assert self._reaper.stdout is not None
        line = self._reaper.stdout.readline()
        if not line:
            raise ProcessError("the process that owns the cluster's processes has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ProcessError(answer["error"])
        return answer
