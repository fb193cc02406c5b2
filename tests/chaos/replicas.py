"""The controllers as schedules run them: processes behind proxies, which are started again whenever they end."""

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import yaml

from hack.localcluster import ControllerProcess, Environment, FaultProxy
from hack.localcluster.controllers import NAMESPACE
from tests.chaos.replica import agent
from tests.integration.test_estate import ACCOUNT

LOOK_INTERVAL = 0.05  # seconds between two looks at the processes


class Replica(ControllerProcess):
    """One process of all controllers, behind a proxy of its own and with a wall clock of its own."""

    def __init__(self, environment: Environment, name: str, proxy: FaultProxy, arguments: Sequence[str]) -> None:
        super().__init__(environment, package="all_in_one", account=ACCOUNT, name=name, arguments=arguments)
        self.agent = agent(name)
        self.proxy = proxy
        # Made once: a replica starts again while the server is down, too.
        self.direct = environment.kubeconfig_for(NAMESPACE, ACCOUNT)
        self._kubeconfig = through(proxy, self.direct, name)
        self._clock = environment.data_dir / f"{name}.clock"
        self.set_clock(0.0)

    def set_clock(self, wrong_by: float) -> None:
        """Makes its wall clock wrong by so many seconds."""
        draft = self._clock.with_suffix(".draft")
        draft.write_text(str(wrong_by))
        draft.replace(self._clock)

    def command(self) -> list[str]:
        own = (self.name, str(self._clock))
        return [sys.executable, "-m", "tests.chaos.replica", *own, *self.flags(self._kubeconfig)]


def through(proxy: FaultProxy, direct: Path, name: str) -> Path:
    """A kubeconfig like another one, but through a proxy."""
    document = yaml.safe_load(direct.read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
    own = direct.with_name(f"{name}.yaml")
    own.touch(mode=0o600)
    own.write_text(yaml.safe_dump(document))
    return own


def address(environment: Environment) -> tuple[str, int]:
    """Host and port of a cluster's API server."""
    document = yaml.safe_load(environment.admin_kubeconfig.read_text())
    url = urlsplit(document["clusters"][0]["cluster"]["server"])
    assert url.hostname is not None
    assert url.port is not None
    return url.hostname, url.port


class Supervisor:
    """Starts replicas again once they have ended, as a kubelet does, and remembers how they ended."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.exits: list[tuple[str, int]] = []
        self._replicas = replicas
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def __enter__(self) -> Self:
        for replica in self._replicas:
            replica.start(wait=False)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ending.wait(LOOK_INTERVAL):
            for replica in self._replicas:
                code = replica.environment.processes.exit_code(replica.name)
                if code is not None:
                    self.exits.append((replica.name, code))
                    replica.start(wait=False)
