"""A sandbox in a process of its own, for tests that kill it or that must not share a core with it."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

START_TIMEOUT = 30.0  # seconds; it takes less than one, but the machine may be busy
STOP_TIMEOUT = 10.0  # seconds that the process gets to end before it is killed
POLL = 0.02  # seconds between two looks at whether it serves
LOG_LINES = 8  # of the log that an error shows


class SandboxProcess:
    """``gpu-mirage-sandbox`` on a free port of 127.0.0.1: a context manager, or ``start`` and ``stop``.

    ``directory`` gets the kubeconfig and the log; ``arguments`` are further flags, such as ``--admin`` or
    ``--data-dir``. One that is started again has the port of the first start; with ``--data-dir`` its kubeconfigs and
    objects are still good then. It outlives a process that is killed before it leaves the block.
    """

    def __init__(self, directory: Path, arguments: Sequence[str] = ()) -> None:
        self._arguments = tuple(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self.kubeconfig = directory / "sandbox.kubeconfig"
        self.log = directory / "sandbox.log"

    @property
    def url(self) -> str:
        """The server's address. Raises FileNotFoundError before the first start."""
        document = yaml.safe_load(self.kubeconfig.read_text())
        return str(document["clusters"][0]["cluster"]["server"])

    def start(self) -> None:
        """Returns when it serves. Raises RuntimeError with the end of its log where it ends instead."""
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        self.kubeconfig.unlink(missing_ok=True)
        flags = (f"--port={self._port}", f"--kubeconfig={self.kubeconfig}", *self._arguments)
        # It must find the code that this process runs, be that installed or not.
        variables = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program, with flags that a test chose
                [sys.executable, "-m", "controllers.sandbox", *flags],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self._wait(self._process)
        except BaseException:
            self.stop()
            raise
        self._port = int(self.url.rpartition(":")[2])

    def _wait(self, process: "subprocess.Popen[bytes]") -> None:
        end = time.monotonic() + START_TIMEOUT
        # The kubeconfig is written once the server listens.
        while not self.kubeconfig.is_file():
            if process.poll() is not None:
                raise RuntimeError(f"the sandbox ended with exit code {process.returncode}: {self._last_words()}")
            if time.monotonic() > end:
                raise RuntimeError(f"the sandbox does not serve after {START_TIMEOUT:g} s: {self._last_words()}")
            time.sleep(POLL)

    def _last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])

    def kill(self) -> None:
        """Ends it as a crash does: without a chance to clean up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Ends it in order; one that does not end is killed. Does nothing where it has ended."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
