"""Leader election on a Lease: of several replicas one is the leader, and it stops before another can begin.

``Election`` decides, told the time by its caller: which request comes next and what its outcome means. ``Elector``
sends. The leader counts its time from before it sent a renewal, the others count theirs from when they saw it, and the
leader's deadline is the shorter one; so two clocks may disagree about the hour, and even about the pace up to the ratio
of ``lease_duration`` to ``renew_deadline``, and still there is no moment with two leaders. The names and numbers are
client-go's.

What no lease can prevent: a request that was on its way when its sender lost the lease may still arrive. It is cut with
the worker that sent it, ``lease_duration - renew_deadline`` before anybody else may write.
"""

import asyncio
import os
import random as random_numbers
import socket
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from controllers.runtime import logs
from controllers.runtime.client import Client
from controllers.runtime.clock import Clock, SystemClock, rfc3339_micro
from controllers.runtime.errors import (
    ConfigurationError,
    Conflict,
    DecodeError,
    LeadershipLost,
    NotFound,
    ObjectGone,
    RuntimeFault,
)
from controllers.runtime.lease import PERMISSIONS, Lease, LeaseSpec
from controllers.runtime.meta import Key, without_nulls

JITTER = 1.2
"""Followers try again after one to ``1 + JITTER`` times the retry period, so that they do not come all at once."""

HEALTH_TOLERANCE = 20.0
"""Seconds beyond the lease for which a leader without renewals still counts as alive; kube-scheduler's number."""

RELEASED_DURATION = 1
"""Seconds in a record that nobody holds; the API demands a number above 0."""

SHARERS_ANNOTATION = "gpu-mirage/sharers"
"""On the Lease of a leader whose replicas share the keys by further Leases; whoever leads alone takes it off."""

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

logger = logs.get_logger(__name__)


def own_identity() -> str:
    """Host and a UUID: a process that starts again on the same host is another candidate."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


@dataclass(frozen=True, slots=True)
class ElectionOptions:
    """Which Lease, who asks for it, and how long things may take. Raises ConfigurationError for what cannot work."""

    name: str  # of the Lease
    namespace: str  # of the Lease
    identity: str = field(default_factory=own_identity)  # of this candidate; no other one may have the same
    lease_duration: float = 15.0  # whole seconds after the last sign of life before others may take over
    renew_deadline: float = 10.0  # seconds after the last renewal at which a leader gives up
    retry_period: float = 2.0  # seconds between two attempts
    release: bool = True  # whether a leader that stops in order lets go of the Lease at once

    def __post_init__(self) -> None:
        for option, text in (("name", self.name), ("namespace", self.namespace), ("identity", self.identity)):
            if not text:
                raise ConfigurationError(f"leader election: the {option} is empty: give one")
        if self.retry_period <= 0.0:
            raise ConfigurationError(f"leader election: retry period {self.retry_period:g} s must be above 0")
        if self.lease_duration != int(self.lease_duration):
            raise ConfigurationError(
                f"leader election: lease duration {self.lease_duration:g} s must be whole seconds, as Leases record it"
            )
        if not self.lease_duration > self.renew_deadline:
            raise ConfigurationError(
                f"leader election: lease duration {self.lease_duration:g} s must be longer than "
                f"renew deadline {self.renew_deadline:g} s"
            )
        if not self.renew_deadline > JITTER * self.retry_period:
            raise ConfigurationError(
                f"leader election: renew deadline {self.renew_deadline:g} s must be longer than "
                f"{JITTER:g} times retry period {self.retry_period:g} s"
            )

    @property
    def request_timeout(self) -> float:
        """Seconds for one request: a single one that hangs must not cost the lease."""
        return max(1.0, self.renew_deadline / 2)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


# -- what to do next --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before the monotonic time ``until``."""

    until: float


@dataclass(frozen=True, slots=True)
class Read:
    """GET the Lease."""


@dataclass(frozen=True, slots=True)
class Create:
    """POST this Lease, since there is none."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Update:
    """PUT this Lease, with the version that was seen last."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lost:
    """The leader is none any more."""

    reason: str


Action = Wait | Read | Create | Update | Lost


class Election:
    """One candidate, as a state machine without input or output. ``random`` gives numbers in [0, 1).

    One that is ``sharing`` leads replicas that hold further Leases, and says so on its own.

    Its shell asks ``next_action``, does it, and reports the outcome by one of ``found``, ``written``, ``conflicted``
    and ``failed``. ``now`` is monotonic, in seconds.
    """

    def __init__(
        self, options: ElectionOptions, *, sharing: bool = False, random: Callable[[], float] = random_numbers.random
    ) -> None:
        self._options = options
        self._sharing = sharing
        self._random = random
        self._leading = False
        self._renewed_at = 0.0
        self._due = 0.0
        # What the next write starts from: the whole Lease, None where it must be read, ABSENT where there is none.
        self._base: Mapping[str, Any] | None = None
        self._record = LeaseSpec()
        self._record_seen_at = 0.0
        self._seen = False
        self._shared = False
        self._reason = "no renewal has succeeded"
        self.candidate = True
        """Whether to ask for the Lease; one that does not only watches who holds it."""

    @property
    def leading(self) -> bool:
        """Whether this candidate has the Lease; ``valid_at`` says whether that still holds."""
        return self._leading

    @property
    def seen(self) -> bool:
        """Whether it is known at all who holds the Lease."""
        return self._seen

    @property
    def holder(self) -> str:
        """The holder on the last record seen, "" where there is none."""
        return self._record.holder_identity

    @property
    def valid_until(self) -> float:
        """When a leader stops being one, unless it renews before."""
        return self._renewed_at + self._options.renew_deadline

    def valid_at(self, now: float) -> bool:
        return self._leading and now < self.valid_until

    @property
    def shared(self) -> bool:
        """Whether the last Lease seen is one of replicas that share the keys."""
        return self._shared

    def held_by_other_at(self, now: float) -> bool:
        """Whether another candidate may be the leader, going by the duration that it recorded."""
        return self.holder not in ("", self._options.identity) and now < self._record_seen_at + self._recorded_duration

    def overdue_at(self, now: float, tolerance: float = HEALTH_TOLERANCE) -> bool:
        """Whether this candidate still takes itself for the leader long after its lease ran out."""
        return self._leading and now >= self._renewed_at + self._options.lease_duration + tolerance

    @property
    def _recorded_duration(self) -> float:
        return float(self._record.lease_duration_seconds or self._options.lease_duration)

    # -- asking -------------------------------------------------------------------------------------------------------

    def next_action(self, now: float, wall: datetime) -> Action:
        """What to do at ``now``; ``wall`` is what goes into the record for people to read."""
        if self._leading and now >= self.valid_until:
            return self._lose(f"it was not renewed for {self._options.renew_deadline:g} s: {self._reason}")
        if self._leading and self.held_by_other_at(now):
            return self._lose(f"{self.holder} has it")
        if now < self._due:
            return Wait(min(self._due, self.valid_until) if self._leading else self._due)
        if self._base is None:
            return Read()
        metadata = self._base.get("metadata", {})
        if not metadata:
            return Create(self._body({"name": self._options.name, "namespace": self._options.namespace}, wall))
        body = self._body(metadata, wall)
        return Update({**self._base, **body, "spec": {**(self._base.get("spec") or {}), **body["spec"]}})

    def _lose(self, reason: str) -> Lost:
        self._leading = False
        self._base = None
        return Lost(reason)

    def _body(self, metadata: Mapping[str, Any], wall: datetime) -> dict[str, Any]:
        moment, old = rfc3339_micro(wall), self._record
        ours = old.holder_identity == self._options.identity
        fresh = not metadata.get("uid")
        spec = {
            "holderIdentity": self._options.identity,
            "leaseDurationSeconds": int(self._options.lease_duration),
            "acquireTime": old.acquire_time if ours and old.acquire_time else moment,
            "renewTime": moment,
            "leaseTransitions": 0 if fresh else old.lease_transitions + (0 if ours else 1),
        }
        return {"metadata": self._marked(metadata), "spec": spec}

    def _marked(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        annotations = dict(metadata.get("annotations") or {})
        if self._sharing:
            annotations.setdefault(SHARERS_ANNOTATION, self._options.identity)
        elif annotations.pop(SHARERS_ANNOTATION, None) is None:
            return dict(metadata)
        return {**metadata, "annotations": annotations}

    # -- being told ---------------------------------------------------------------------------------------------------

    def found(self, whole: Mapping[str, Any] | None, now: float, *, taken: bool = False) -> None:
        """The answer to ``Read``: the whole Lease, or None where there is none. Raises DecodeError for nonsense.

        ``taken`` says that what it stands for is in use, whether or not somebody holds it.
        """
        self.saw(whole, now)
        # A Lease that vanished has not run out: whoever held it may not know yet.
        if self.candidate_at(now) and not taken:
            self._base, self._due = whole if whole is not None else {}, now
        else:
            self._retry_later(now)

    def saw(self, whole: Mapping[str, Any] | None, now: float) -> None:
        """The Lease as it is, which nobody has asked for to write it next. Raises DecodeError for nonsense."""
        if whole is not None:
            self._observe(whole, now)
        self._seen = True

    def candidate_at(self, now: float) -> bool:
        """Whether to write now."""
        return (self.candidate or self._leading) and not self.held_by_other_at(now)

    def written(self, whole: Mapping[str, Any], sent_at: float, now: float) -> None:
        """A write that was sent at ``sent_at`` succeeded and left ``whole`` behind."""
        self._observe(whole, now)
        self._base = whole
        # From before it was sent: the server may have carried it out at any moment since, and others count from then.
        self._renewed_at = sent_at
        self._leading = now < self.valid_until
        self._due = now + self._options.retry_period
        self._reason = "no renewal has succeeded"

    def conflicted(self, now: float) -> None:
        """A write met another version: a leader looks at once who wrote, a follower has lost the race."""
        self._base = None
        if self._leading:
            self._due = now
        else:
            self._retry_later(now)

    def failed(self, reason: str, now: float) -> None:
        """No usable answer. Whether a write was carried out is not known, so the Lease is read before the next one."""
        self._reason = reason
        self._retry_later(now)

    def released(self, now: float) -> None:
        """The Lease is given back, or was not ours any more."""
        self._leading = False
        self._record = LeaseSpec()
        self._retry_later(now)

    def _retry_later(self, now: float) -> None:
        self._base = None
        factor = 1.0 if self._leading else 1.0 + JITTER * self._random()
        self._due = now + self._options.retry_period * factor

    def _observe(self, whole: Mapping[str, Any], now: float) -> None:
        try:
            record = msgspec.convert(without_nulls(whole.get("spec") or {}), LeaseSpec)
        except msgspec.ValidationError as error:
            raise DecodeError(f"Lease {self._options}: {error}") from error
        self._shared = is_shared(whole)
        if record != self._record:
            self._record, self._record_seen_at = record, now


def is_shared(lease: Mapping[str, Any]) -> bool:
    """Whether a Lease is that of replicas that share the keys."""
    return SHARERS_ANNOTATION in (lease["metadata"].get("annotations") or {})


def released_record(record: Mapping[str, Any], wall: datetime) -> dict[str, Any]:
    """The spec of a Lease that nobody holds; how often the holder changed stays."""
    return {
        **record,
        "holderIdentity": "",
        "leaseDurationSeconds": RELEASED_DURATION,
        "acquireTime": rfc3339_micro(wall),
        "renewTime": rfc3339_micro(wall),
    }


# -- doing it ---------------------------------------------------------------------------------------------------------


class ElectionObserver(Protocol):
    """Told what metrics count."""

    def leading(self, leading: bool) -> None: ...

    def slow_path(self) -> None:
        """A leader had to read the Lease before it could renew it."""
        ...


class NoObserver:
    """Ignores everything."""

    def leading(self, leading: bool) -> None:
        pass

    def slow_path(self) -> None:
        pass


NewLeader = Callable[[str], None]

Users = Callable[[Mapping[str, Any] | None], Awaitable[bool]]
"""Whether anybody uses, by further Leases, what this Lease stands for; asked before it is taken, if it is there."""


class Elector:
    """Asks for a Lease and keeps it, for as long as ``run`` runs."""

    def __init__(
        self,
        client: Client,
        options: ElectionOptions,
        *,
        clock: Clock | None = None,
        observer: ElectionObserver | None = None,
        on_new_leader: NewLeader | None = None,
        sharing: bool = False,
        in_use: Users | None = None,
        random: Callable[[], float] = random_numbers.random,
    ) -> None:
        self.options = options
        self.election = Election(options, sharing=sharing, random=random)
        self._in_use = in_use
        self._client = client.restricted_to(PERMISSIONS)
        self._clock = clock or SystemClock()
        self._observer: ElectionObserver = observer or NoObserver()
        self._on_new_leader = on_new_leader
        self._reported = ""
        self._started = asyncio.Event()
        self._busy = asyncio.Lock()
        self._may_have_written = False
        self._is_lost = False
        self._last_error = ""
        self._failing_since: float | None = None
        self._observer.leading(False)

    # -- what others ask ----------------------------------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        """Whether this replica is the leader at this moment."""
        return self.election.valid_at(self._clock.monotonic())

    async def wait_leading(self) -> None:
        """Waits for the Lease."""
        await self._started.wait()

    def require_leadership(self) -> None:
        """Raises LeadershipLost unless this replica is the leader at this moment; see ``Client.guarded_by``."""
        if not self.leading:
            raise LeadershipLost(f"{self.options.identity} does not hold the Lease {self.options}: nothing is written")

    def unhealthy(self) -> str | None:
        """For a liveness check: a leader that has lost the Lease, and has not ended or not even noticed."""
        if self._is_lost:
            return f"the Lease {self.options} was lost, and this process has not ended"
        if not self.election.overdue_at(self._clock.monotonic()):
            return None
        return f"the Lease {self.options} ran out more than {HEALTH_TOLERANCE:g} s ago, and this process still leads"

    @property
    def last_error(self) -> str:
        """Why the last attempt failed, or ""."""
        return self._last_error

    @property
    def failing_for(self) -> float:
        """Seconds for which no attempt has succeeded, 0 while they do."""
        return 0.0 if self._failing_since is None else self._clock.monotonic() - self._failing_since

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Asks until cancelled. Raises LeadershipLost once a Lease that was held is lost; no other failure ends it."""
        while True:
            async with self._busy:
                action = self.election.next_action(self._clock.monotonic(), self._clock.utcnow())
                match action:
                    case Lost(reason=reason):
                        self._lost(reason)
                    case Read() | Create() | Update():
                        await self._attempt(action)
            if isinstance(action, Wait):
                await self._clock.sleep(action.until - self._clock.monotonic())

    async def share(self) -> bool:
        """Makes sure that nobody begins to lead alone without having seen what was written before; once is enough.

        False where replicas that share do not have the Lease. Raises RuntimeFault where that is not known.
        """
        async with self._busy:
            if self.leading:
                return True
            whole = await self._find()
            self.election.saw(whole, self._clock.monotonic())
            if whole is None or not is_shared(whole):
                return False
            annotations = {**whole["metadata"]["annotations"], SHARERS_ANNOTATION: self.options.identity}
            await self._put({**whole, "metadata": {**whole["metadata"], "annotations": annotations}})
            return True

    async def release(self) -> None:
        """Gives the Lease back if it is still ours; to be called after all guarded work has ended.

        A failure is logged: the Lease then runs out by itself.
        """
        if self.options.release:
            await self.give_back()

    async def give_back(self) -> None:
        """The same, whatever the options say: for who goes on running."""
        async with self._busy:
            try:
                if self._may_have_written:
                    async with asyncio.timeout(self.options.request_timeout):
                        await self._release()
            except (RuntimeFault, TimeoutError) as error:
                logger.warning("the lease could not be released", lease=self.options, reason=reason_of(error))
            self._may_have_written = False
            self.election.released(self._clock.monotonic())
            self._started.clear()
            self._observer.leading(False)

    async def _release(self) -> None:
        whole = await self._find()
        if whole is None or _holder(whole) != self.options.identity:
            return
        await self._put({**whole, "spec": released_record(whole["spec"], self._clock.utcnow())})
        logger.info("the lease is released", lease=self.options)

    def _lost(self, reason: str) -> None:
        self._is_lost = True
        self._started.clear()
        self._observer.leading(False)
        raise LeadershipLost(f"{self.options.identity} has lost the Lease {self.options}: {reason}")

    async def _attempt(self, action: Read | Create | Update) -> None:
        try:
            async with asyncio.timeout(self._time_for_a_request()):
                await self._send(action)
        except (Conflict, ObjectGone):
            # Also where another one was faster to create it: somebody has it, which is no error.
            self._answered()
            self.election.conflicted(self._clock.monotonic())
        except (RuntimeFault, TimeoutError) as error:
            self._failed(reason_of(error))
        else:
            self._answered()
            self._report()

    def _time_for_a_request(self) -> float:
        if not self.election.leading:
            return self.options.request_timeout
        return min(self.options.request_timeout, self.election.valid_until - self._clock.monotonic())

    async def _send(self, action: Read | Create | Update) -> None:
        sent_at = self._clock.monotonic()
        match action:
            case Read():
                if self.election.leading:
                    self._observer.slow_path()
                whole = await self._find()
                # After the Lease was read: who begins to use it later changes it, and our write conflicts.
                taken = not self.election.leading and self._in_use is not None and await self._in_use(whole)
                self.election.found(whole, self._clock.monotonic(), taken=taken)
            case Create(body=body):
                self._may_have_written = True
                made = await self._client.create(Lease, body)
                self.election.written(_after(body, made), sent_at, self._clock.monotonic())
            case Update(body=body):
                self._may_have_written = True
                self.election.written(await self._put(body), sent_at, self._clock.monotonic())

    async def _find(self) -> dict[str, Any] | None:
        return await find_lease(self._client, self.options.name, self.options.namespace)

    async def _put(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return _after(body, await self._client.update(Lease, body))

    def _answered(self) -> None:
        self._last_error, self._failing_since = "", None

    def _failed(self, reason: str) -> None:
        now = self._clock.monotonic()
        if reason != self._last_error:
            logger.warning("the lease could not be read or written", lease=self.options, reason=reason)
        self._last_error = reason
        self._failing_since = now if self._failing_since is None else self._failing_since
        self.election.failed(reason, now)

    def _report(self) -> None:
        holder = self.election.holder
        if holder and holder != self._reported:
            self._reported = holder
            logger.info("there is a new leader", lease=self.options, leader=holder)
            if self._on_new_leader is not None:
                self._on_new_leader(holder)
        if self.election.leading and not self._started.is_set():
            logger.info("leading", lease=self.options, identity=self.options.identity)
            self._observer.leading(True)
            self._started.set()


class LeaderGate:
    """For a controller: lets work begin only on the leader, at this moment; a lost Lease may not be noticed yet."""

    def __init__(self, elector: Elector) -> None:
        self._elector = elector

    def admits(self, key: Key) -> bool:  # noqa: ARG002 - named as in Gate
        """All is queued: a replica that is to lead fills its queue before."""
        return True

    def enter(self, key: Key) -> bool:  # noqa: ARG002 - named as in Gate
        return self._elector.leading

    def leave(self, key: Key) -> None:
        pass


async def find_lease(client: Client, name: str, namespace: str) -> dict[str, Any] | None:
    """A Lease as it is, ready to be written again; None where there is none. Raises RuntimeFault."""
    try:
        whole = await client.get_dict(Lease, name, namespace)
    except NotFound:
        return None
    # Left out, managedFields stay as the server has them; sent, an old copy of them would be taken for a change.
    whole["metadata"].pop("managedFields", None)
    return whole


def _holder(whole: Mapping[str, Any]) -> str:
    return (whole.get("spec") or {}).get("holderIdentity") or ""


def _after(body: Mapping[str, Any], written: Lease) -> dict[str, Any]:
    """The Lease that a write left behind, ready to be written again."""
    metadata = {**body["metadata"], "uid": written.uid, "resourceVersion": written.metadata.resource_version}
    return {**body, "metadata": metadata}


def reason_of(error: Exception) -> str:
    """Why a request has failed, for the log; a TimeoutError has no text of its own."""
    return str(error) or "no answer in time"


def own_namespace(flag: str) -> str:
    """The namespace that this process runs in: ``$POD_NAMESPACE``, or the service account's.

    Raises ConfigurationError, naming the flag, outside of a cluster: guessing would make a leader per guess.
    """
    if namespace := os.environ.get("POD_NAMESPACE", ""):
        return namespace
    try:
        return NAMESPACE_FILE.read_text().strip()
    except OSError:
        raise ConfigurationError(
            f"the namespace of the leader's Lease is not known outside of a cluster: give {flag}"
        ) from None
