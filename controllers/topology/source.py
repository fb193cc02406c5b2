"""Keeps an estate equal to its ConfigMaps, and says what is wrong with them.

A pool that has become unreadable stays as it was last; one that was never readable is *undecided*: its nodes are left
exactly as they are, so that a mistake in the document, or its loss, takes nothing away that is there.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from controllers.api.core import Node
from controllers.estate import Estate, Pool, Problem, load
from controllers.runtime import Key, Manager, Selection, logs
from controllers.runtime.controller import Controller
from controllers.runtime.rbac import permissions
from controllers.runtime.reconcile import Request
from controllers.runtime.recorder import RecorderOptions
from controllers.topology.kinds import DATA_KEY, PROFILE_KEY, PROFILE_LABEL, PROFILE_PREFIX, GpuProfile, TopologyConfig
from controllers.topology.options import TopologyOptions

PERMISSIONS = permissions(TopologyConfig, "list", "watch")
"""What a controller declares for its driver namespace to have a topology."""

LABEL_FIELD = "nodePoolLabelKey"

MAX_TOLD = 50
"""Mistakes of one reading that become Events; the rest is one more."""

REFILL = 10.0
"""Seconds for one more Event about the document, once twice as many were written as one reading may have."""

logger = logs.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Undecided:
    """What a node should be cannot be told; ``why`` is the problem that stands against it."""

    why: str


class TopologySource:
    """The estate of one cluster, for all controllers of one manager."""

    def __init__(self, manager: Manager, options: TopologyOptions) -> None:
        here = options.namespace
        configs = manager.informer(TopologyConfig, Selection(namespace=here, fields=f"metadata.name={options.name}"))
        profiles = manager.informer(GpuProfile, Selection(namespace=here, labels=f"{PROFILE_LABEL}=true"))
        self._key = Key(here, options.name)
        self._informers = (configs, profiles)
        self._configs = configs.store
        self._profiles = profiles.store
        # Mistakes differ from each other, and whoever corrects them reads them: none is to be combined with others.
        told = RecorderOptions(alike=MAX_TOLD + 1, burst=2 * MAX_TOLD, refill=REFILL)
        self._recorder = manager.recorder("topology", told)
        self._stale = asyncio.Event()
        self._stale.set()
        self._good: dict[str, Pool] = {}
        self._unreadable = ""  # why nothing of the present document can be read
        self._labels: set[str] = set()  # every pool label that was ever read
        self._estate = Estate()
        self._metric = manager.metrics.gauge(
            "gpu_mirage_topology_problems", "Mistakes in the topology document and its profiles."
        )
        configs.add_handler(lambda _change: self._stale.set())
        profiles.add_handler(lambda _change: self._stale.set())
        # On followers, too: a pool that cannot be read any more keeps the state that somebody has read before.
        manager.add("topology", self._follow, needs_leader=False)
        manager.readiness.add("topology", self._missing, public=True, note=self._mistakes)

    @property
    def estate(self) -> Estate:
        """The estate as it is configured now, with unreadable pools as they were last."""
        self._refresh()
        return self._estate

    def pool_of(self, node: Node) -> Pool | Undecided | None:
        """The pool of a node, None where it is in none."""
        estate = self.estate
        if not self._labels:
            # Which nodes are in pools at all is not known.
            return Undecided(str(estate.problems[0]))
        name = node.labels.get(estate.pool_label)
        if name is None:
            return None
        if pool := estate.pools.get(name):
            return pool
        found = next((problem for problem in estate.problems if problem.pool in ("", name)), None)
        return Undecided(str(found)) if found else None

    def nodes(self, nodes: Iterable[Node]) -> list[Request]:
        """The requests of all nodes that carry the pool label, or one that was it: what a change may concern."""
        self._refresh()
        return [node.key for node in nodes if not self._labels.isdisjoint(node.labels)]

    def wakes(self, controller: Controller, requests: Callable[[], Iterable[Request]]) -> None:
        """Has a controller look again at these requests whenever the estate may be another one."""
        controller.watches(TopologyConfig, maps_to=lambda _: requests())
        controller.watches(GpuProfile, maps_to=lambda _: requests())

    def warn(self, reason: str, note: str, action: str) -> None:
        """Records an Event about the document: of something that is sound in it and cannot be served here."""
        config = self._configs.get(self._key)
        if config is not None:
            self._recorder.event(config, "Warning", reason, note, action)

    async def _follow(self) -> None:
        """Reads every state of the ConfigMaps, also where nobody asks: the next one may be unreadable."""
        while True:
            await self._stale.wait()
            self._refresh()

    def _refresh(self) -> None:
        # Before both are listed, what is not there may only not have come yet.
        if self._stale.is_set() and all(informer.synced for informer in self._informers):
            self._stale.clear()
            self._reload()

    def _missing(self) -> str | None:
        """Why no pool can be read. One bad pool makes nobody not ready, as the others are served."""
        if not all(informer.synced for informer in self._informers):
            return None
        self._refresh()
        return self._unreadable or None

    def _mistakes(self) -> str | None:
        """What is wrong with single pools."""
        return "; ".join(map(str, self._estate.problems)) or None

    def _reload(self) -> None:
        config = self._configs.get(self._key)
        read = self._read(config)
        self._good = {**self._kept(read), **read.pools}
        estate = Estate(self._label_of(read), self._good, read.problems)
        if estate.problems != self._estate.problems:
            self._report(config, estate.problems)
        self._metric.set(len(estate.problems))
        self._unreadable = "; ".join(map(str, read.problems)) if _is_unreadable(read) else ""
        self._estate = estate

    def _read(self, config: TopologyConfig | None) -> Estate:
        if config is None:
            why = f"there is no ConfigMap {self._key}"
            return Estate(self._estate.pool_label, problems=(Problem(DATA_KEY, why, "make it, with a topology in it"),))
        text = config.data.get(DATA_KEY)
        if text is None:
            why = f"ConfigMap {self._key} has no such key"
            return Estate(self._estate.pool_label, problems=(Problem(DATA_KEY, why, "put the topology there"),))
        return load(text, {p.name.removeprefix(PROFILE_PREFIX): p.data.get(PROFILE_KEY, "") for p in self._custom()})

    def _custom(self) -> list[GpuProfile]:
        return [profile for profile in self._profiles.list() if profile.name.startswith(PROFILE_PREFIX)]

    def _label_of(self, read: Estate) -> str:
        """The pool label; the last good one where the document does not tell."""
        if any(problem.path.startswith(LABEL_FIELD) for problem in read.problems) or _is_unreadable(read):
            return self._estate.pool_label
        self._labels.add(read.pool_label)
        return read.pool_label

    def _kept(self, read: Estate) -> dict[str, Pool]:
        """The last good state of the pools that cannot be read now."""
        spoilt = {problem.pool for problem in read.problems}
        whole = _is_unreadable(read)
        return {name: pool for name, pool in self._good.items() if whole or name in spoilt}

    def _report(self, config: TopologyConfig | None, problems: Sequence[Problem]) -> None:
        for problem in problems:
            logger.warning("mistake in the topology", path=problem.path, why=problem.why, fix=problem.fix)
        notes = [str(problem) for problem in problems[:MAX_TOLD]]
        if len(problems) > MAX_TOLD:
            notes.append(f"there are {len(problems) - MAX_TOLD} more mistakes: see the log, or /readyz?verbose")
        if config is not None:
            for note in notes:
                self._recorder.event(config, "Warning", "InvalidTopology", note, "ReadTopology")


def _is_unreadable(read: Estate) -> bool:
    """Whether a document says nothing at all of pools, not even which are wrong."""
    return not read.pools and bool(read.problems) and not any(problem.pool for problem in read.problems)
