"""Runs the entrants, one process each, and reads what they tell. Those whose library is not installed are left out."""

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from hack.bench.report import Comparison
from hack.bench.usage import usage_of

OURS, OFFICIAL, CLIENT_GO, KOPF = "ours", "kubernetes.informer", "client-go", "kopf"

CLIENT_GO_SOURCE = Path(__file__).with_name("clientgo")
BUILD_TIMEOUT = 900.0  # seconds; a first build compiles all that client-go needs
TIMEOUT = 300.0  # seconds for the longest answer of the server


class EntrantError(RuntimeError):
    """An entrant could not be built, or ended before it was done."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """One library, and how its process is started."""

    name: str
    command: tuple[str, ...]


class Standings:
    """One figure of every entrant, a value per repeat."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, entrant: Entrant, value: float) -> None:
        self._values.setdefault(entrant.name, []).append(value)

    @property
    def ours(self) -> list[float]:
        return self._values[OURS]

    def rows(
        self, name: str, unit: str, goals: Mapping[str, float] | None = None, *, higher_is_better: bool = False
    ) -> list[Comparison]:
        """Ours beside each of the others; ``goals`` are the limits of the ratio."""
        return [
            Comparison(
                f"{name} beside {other}".strip(), unit, self.ours, values, (goals or {}).get(other), higher_is_better
            )
            for other, values in self._values.items()
            if other != OURS
        ]


@dataclass(frozen=True, slots=True)
class Figures:
    """What one process told of itself, and its resident memory in MiB when it was done."""

    told: Mapping[str, float]
    resident: float


def python(module: str) -> tuple[str, ...]:
    """The command that runs one of the modules in ``entrants``."""
    return (sys.executable, "-m", f"hack.bench.entrants.{module}")


FRAMEWORK = Entrant(OURS, python("ours"))


def entrants() -> tuple[list[Entrant], dict[str, str]]:
    """Who takes part, and why anyone else does not."""
    present = [FRAMEWORK, Entrant(OFFICIAL, python("official"))]
    absent: dict[str, str] = {}
    try:
        present.append(Entrant(CLIENT_GO, (str(build_client_go()),)))
    except EntrantError as error:
        absent[CLIENT_GO] = str(error)
    if importlib.util.find_spec("kopf") is None:
        absent[KOPF] = "kopf is not installed: pip install -e '.[bench]'"
    else:
        present.append(Entrant(KOPF, python("kopf_operator")))
    return present, absent


def build_client_go() -> Path:
    """The program in ``clientgo``, built with Go into the cache once for each state of its source.

    Raises EntrantError where there is no Go, or where the build fails.
    """
    sources = [CLIENT_GO_SOURCE / name for name in ("go.mod", "go.sum", "main.go")]
    key = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    program = cache_directory() / "bench" / f"clientgo-{key}"
    if program.exists():
        return program
    if shutil.which("go") is None:
        raise EntrantError("Go is not on the PATH, and is needed to build hack/bench/clientgo")
    print("building hack/bench/clientgo", file=sys.stderr, flush=True)
    program.parent.mkdir(parents=True, exist_ok=True)
    draft = program.with_suffix(f".{os.getpid()}")
    built = subprocess.run(
        ["go", "build", "-trimpath", "-o", str(draft), "."],
        cwd=CLIENT_GO_SOURCE,
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT,
        check=False,
    )
    if built.returncode:
        raise EntrantError(f"hack/bench/clientgo cannot be built: {built.stderr.strip()[-500:]}")
    draft.rename(program)
    return program


def cache_directory() -> Path:
    """Where built programs are kept: the same place as the control plane's."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("GPU_MIRAGE_CACHE") or f"{home}/gpu-mirage")


class Server:
    """The server of prepared answers, from outside of its process."""

    def __init__(self, url: str) -> None:
        self.url = url

    def tell(self, what: str, **query: float) -> None:
        """Tells it what to send, and returns once it has."""
        request = Request(f"{self.url}/bench/{what}?{urlencode(query)}", method="POST")
        with urlopen(request, timeout=TIMEOUT):
            pass


@contextlib.contextmanager
def canned(*, pods: int = 0, nodes: int = 0) -> Iterator[Server]:
    """Runs a server that holds so many objects."""
    command = [sys.executable, "-m", "hack.bench.canned", "--pods", str(pods), "--nodes", str(nodes)]
    with _running(command) as process:
        yield Server(_line_of(process, command))


def run(
    entrant: Entrant, server: Server, mode: str, *, objects: int, events: int = 0, rate: float | None = None
) -> Figures:
    """One mode of one entrant in a fresh process; with ``events``, at ``rate`` per second or as fast as it goes.

    Raises EntrantError where the process ends too early.
    """
    command = [*entrant.command, server.url, mode, str(objects), str(events)]
    with _running(command) as process:
        if events:
            _line_of(process, command)
            if rate is None:
                server.tell("burst", count=events)
            else:
                server.tell("pace", count=events, rate=rate)
        told = json.loads(_line_of(process, command))
        return Figures(told, usage_of(process.pid).resident)


@contextlib.contextmanager
def _running(command: list[str]) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        # Killed and not asked: an entrant stands still, and some would first wait for what they have begun.
        process.kill()
        process.communicate()


def _line_of(process: "subprocess.Popen[str]", command: list[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise EntrantError(f"{' '.join(command)} ended with code {process.wait()} before it was done")
    return line.strip()
