"""Several replicas that share the keys of their controllers: each key is in one shard, each shard has one holder.

A shard is a Lease, so no key is ever worked on by two replicas. A replica that ends, or that has more than its share
when another one comes, gives its shards up one by one: nothing new begins in a shard that is given up, what runs in it
ends, and only then its Lease is released. Whoever gets a shard looks at all of its keys, as a process does that has
just started. Nobody assigns shards: each replica takes free ones up to its share, and a share follows from how many
replicas say that they are alive. They say so in the annotation of one Lease that they all write, and are believed for
as long as what they say keeps changing; no clock but one's own is looked at.
"""

import asyncio
import random as random_numbers
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import xxhash

from controllers.runtime import logs
from controllers.runtime.client import Client
from controllers.runtime.clock import Clock, SystemClock, rfc3339_micro
from controllers.runtime.errors import Conflict, LeadershipLost, ObjectGone, RuntimeFault
from controllers.runtime.leader_election import (
    ElectionObserver,
    ElectionOptions,
    Elector,
    find_lease,
    is_shared,
    reason_of,
)
from controllers.runtime.lease import PERMISSIONS, Lease
from controllers.runtime.meta import Key
from controllers.runtime.stage import Runnable

MEMBERS_ANNOTATION = "gpu-mirage/members"

CONFLICTS = 8
"""Times in a row that another member may be faster to write the common Lease before an attempt counts as failed."""

CONFLICT_PAUSE = 0.2
"""Seconds before the next try after a conflict, at most; a random part of it, so that members do not stay in step."""

logger = logs.get_logger(__name__)

_current: ContextVar[int | None] = ContextVar("shard_in_work", default=None)


def shard_of(key: Key, shards: int) -> int:
    """The shard of a key, from 0 on: the same one in every process, and in all of them equally many keys.

    Jump consistent hashing (Lamping and Veach, 2014): of one shard more, only the keys that it gets move.
    """
    state = xxhash.xxh3_64_intdigest(f"{key.namespace}/{key.name}".encode())
    shard, jump = 0, 0
    while jump < shards:
        shard = jump
        state = (state * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        jump = int((shard + 1) * (2**31 / ((state >> 33) + 1)))
    return shard


# -- who takes what ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What one replica does next: which free shards it asks for, and which of its own it gives up."""

    take: frozenset[int]
    give: frozenset[int]


def plan(me: str, holders: Mapping[int, str], members: Iterable[str], shards: int) -> Plan:
    """Towards equal shares, moving as little as possible.

    ``holders`` lacks the free shards; ``members`` are the living replicas. A shard moves only where its holder is dead,
    or where somebody has fewer than an equal share and its holder more.
    """
    alive = sorted({*members, me})
    held = Counter(holders.values())
    least, most = shards // len(alive), -(-shards // len(alive))
    missing = {member: max(0, least - held[member]) for member in alive}
    free = sorted(set(range(shards)) - set(holders), key=lambda shard: _preference(me, shard))
    if free:
        # First what somebody lacks, or who has just given a shard up would be the first to take it again.
        room = missing[me] if any(missing.values()) else most - held[me]
        return Plan(frozenset(free[: max(0, room)]), frozenset())
    surplus = max(_donations(held, alive, least, sum(missing.values()))[me], held[me] - most, 0)
    mine = sorted((s for s, holder in holders.items() if holder == me), key=lambda shard: _preference(me, shard))
    return Plan(frozenset(), frozenset(mine[len(mine) - surplus :]))


def _donations(held: Mapping[str, int], alive: Iterable[str], least: int, missing: int) -> Counter[str]:
    """How many each member gives, so that ``missing`` come together: always whoever has most."""
    left = {member: held[member] for member in alive if held[member] > least}
    given: Counter[str] = Counter()
    for _ in range(missing):
        donor = max(left, key=lambda member: (left[member], member), default=None)
        if donor is None or left[donor] <= least:
            break
        left[donor] -= 1
        given[donor] += 1
    return given


def _preference(member: str, shard: int) -> int:
    # Any order will do, as long as each member has another one: they would all race for the same shard otherwise.
    return xxhash.xxh3_64_intdigest(f"{shard}/{member}".encode())


# -- who is alive -----------------------------------------------------------------------------------------------------


class Member(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a replica says of itself."""

    beat: int  # changes with each sign of life
    joined: int  # later members have higher numbers
    shards: int  # into how many it splits the keys


class Membership:
    """Who is alive, going by whose entries change: a state machine that is told the time."""

    def __init__(self, me: str, shards: int, lifetime: float) -> None:
        self._me = me
        self._shards = shards
        self._lifetime = lifetime
        self._members: dict[str, Member] = {}
        self._changed_at: dict[str, float] = {}

    def observe(self, text: str, now: float) -> None:
        """Takes in the annotation; what cannot be read counts as empty, and is soon written anew."""
        members = _decoded(text)
        self._changed_at = {
            name: self._changed_at[name] if self._members.get(name) == member else now
            for name, member in members.items()
        }
        self._members = members

    def beaten(self, now: float) -> str:
        """The annotation with a sign of life of our own, and without the dead."""
        living = {name: self._members[name] for name in self.living(now) if name in self._members}
        mine = self._members.get(self._me)
        joined = mine.joined if mine else 1 + max((m.joined for m in living.values()), default=0)
        living[self._me] = Member(beat=(mine.beat if mine else 0) + 1, joined=joined, shards=self._shards)
        return _encoded(living)

    def left(self) -> str:
        """The annotation without us."""
        return _encoded({name: member for name, member in self._members.items() if name != self._me})

    def living(self, now: float) -> list[str]:
        """Those who have changed their entry within a lifetime; we ourselves are always there."""
        return sorted(name for name in {*self._members, self._me} if name == self._me or self._lives(name, now))

    def _lives(self, name: str, now: float) -> bool:
        return now < self._changed_at[name] + self._lifetime

    def peers(self, now: float) -> list[str]:
        """The living who split the keys as we do, without those who wait for others: they take no share."""
        return [n for n in self.living(now) if n == self._me or (self._is_alike(n) and not self._before(n, now))]

    def in_the_way(self, now: float) -> list[str]:
        """Earlier members with another number of shards: where keys are split in two ways, nobody knows who has one."""
        return self._before(self._me, now)

    def _is_alike(self, name: str) -> bool:
        return self._members[name].shards == self._shards

    def _before(self, alike: str, now: float) -> list[str]:
        """Those of another number than ours who came before one of ours."""
        member = self._members.get(alike)
        return [
            name
            for name in self.living(now)
            if name != self._me
            and not self._is_alike(name)
            and (member is None or self._members[name].joined < member.joined)
        ]


MISSING = '{"unknown":{"beat":0,"joined":0,"shards":0}}'
"""What stands for a list of members that should be there and is not: somebody who is believed for a lifetime."""


class Sharers:
    """For a replica that works on all keys alone: whether others still share them. It asks only where they did."""

    def __init__(self, client: Client, options: ElectionOptions, *, clock: Clock | None = None) -> None:
        self._client = client.restricted_to(PERMISSIONS)
        self._options = options
        self._clock = clock or SystemClock()
        self._membership = Membership(options.identity, 1, options.lease_duration)
        self._waiting = Waiting()

    async def in_use(self, lease: Mapping[str, Any] | None) -> bool:
        """Whether a leader's ``lease``, None where there is none, may not be taken yet. Raises RuntimeFault."""
        if lease is not None and not is_shared(lease):
            return self._waiting.for_members([])
        members = await find_members(self._client, self._options)
        if members is None and lease is None:
            return False
        now = self._clock.monotonic()
        self._membership.observe(MISSING if members is None else _annotation(members), now)
        return self._waiting.for_members([n for n in self._membership.living(now) if n != self._options.identity])


class Waiting:
    """Says for whom a replica waits, each time that it is for others."""

    def __init__(self) -> None:
        self._told: list[str] = []

    def for_members(self, members: list[str]) -> bool:
        """Whether there are any."""
        if members and members != self._told:
            logger.warning("waiting for the end of replicas with another number of shards", members=",".join(members))
        self._told = members
        return bool(members)


async def find_members(client: Client, options: ElectionOptions) -> dict[str, Any] | None:
    """The Lease that all members write, ready to be written again."""
    return await find_lease(client, f"{options.name}-members", options.namespace)


def _annotation(whole: Mapping[str, Any]) -> str:
    return str((whole["metadata"].get("annotations") or {}).get(MEMBERS_ANNOTATION, ""))


def _decoded(text: str) -> dict[str, Member]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Member])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        logger.warning("the list of members cannot be read", reason=str(error))
        return {}


def _encoded(members: Mapping[str, Member]) -> str:
    return msgspec.json.encode(members, order="sorted").decode()


# -- doing it ---------------------------------------------------------------------------------------------------------

Opened = Callable[[int], None]
Observe = Callable[[str], ElectionObserver]


class Shards:
    """The shards of one replica: which it holds, what runs in them. Their Leases are named after that of ``leader``.

    ``leader`` is this replica's elector of what is not shared, and runs beside; a replica that is the only one to work,
    since it shares nothing, has that Lease, too, so that each sees the other there.
    ``opened`` is told of each shard that is got, in the moment from which on its keys are let through.
    """

    def __init__(
        self,
        client: Client,
        leader: Elector,
        shards: int,
        opened: Opened,
        *,
        clock: Clock | None = None,
        observe: Observe | None = None,
        random: Callable[[], float] = random_numbers.random,
    ) -> None:
        options = leader.options
        self.count = shards
        self._leader = leader
        self.electors = [_elector(client, options, n, clock, observe, random) for n in range(shards)]
        self._client = client.restricted_to(PERMISSIONS)
        self._options = options
        self._clock = clock or SystemClock()
        self._random = random
        self._opened = opened
        self._open: set[int] = set()
        self._running: Counter[int] = Counter()
        self._give_up = [asyncio.Event() for _ in range(shards)]
        self._membership = Membership(options.identity, shards, options.lease_duration)
        self._waiting = Waiting()
        self._beaten_at = float("-inf")
        self._joined = asyncio.Event()
        self._cleared = False
        for elector in self.electors:
            elector.election.candidate = False

    @property
    def held(self) -> frozenset[int]:
        """The shards in which something may begin at present."""
        return frozenset(shard for shard in self._open if self._has(shard))

    def _has(self, shard: int) -> bool:
        # Whoever splits the keys in another way goes by our signs of life, and not by the Lease of a shard.
        return self.electors[shard].leading and self._clock.monotonic() < self._beaten_at + self._deadline

    # -- what controllers ask -----------------------------------------------------------------------------------------

    def admits(self, key: Key) -> bool:
        """Whether a key is ours at present."""
        shard = shard_of(key, self.count)
        return shard in self._open and self._has(shard)

    def enter(self, key: Key) -> bool:
        """Begins the work on a key in the current task; False where it is not ours. After True, ``leave`` must come."""
        if not self.admits(key):
            return False
        shard = shard_of(key, self.count)
        self._running[shard] += 1
        _current.set(shard)
        return True

    def leave(self, key: Key) -> None:
        """Ends the work on a key."""
        self._running[shard_of(key, self.count)] -= 1
        _current.set(None)

    def require_shard(self) -> bool:
        """Raises LeadershipLost where the current task works in a shard that is not ours; False where it is in none."""
        shard = _current.get()
        if shard is not None:
            self.electors[shard].require_leadership()
            if not self._has(shard):
                raise LeadershipLost(f"{self._silence}: nothing is written")
        return shard is not None

    # -- running ------------------------------------------------------------------------------------------------------

    def runnables(self) -> Iterator[tuple[str, Runnable]]:
        """The tasks that hold shards; one of them raises LeadershipLost where a shard is lost, or nobody is heard."""
        yield "shard-members", self._stay_member
        yield "shard-members-alone", self._keep_others_out
        for shard, elector in enumerate(self.electors):
            yield f"shard-{shard}", elector.run
            yield f"shard-{shard}-work", partial(self._work, shard)

    async def release(self) -> None:
        """Gives everything back; to be called after all work has ended and the runnables have been cancelled."""
        self._open.clear()
        await asyncio.gather(*(elector.release() for elector in self.electors))
        if not self._options.release:
            return
        try:
            async with asyncio.timeout(self._options.request_timeout):
                await self._write(lambda: self._membership.left())
        except (RuntimeFault, TimeoutError) as error:
            logger.warning("leaving the members failed", reason=reason_of(error))

    async def _work(self, shard: int) -> None:
        elector, give_up = self.electors[shard], self._give_up[shard]
        while True:
            await elector.wait_leading()
            give_up.clear()
            self._open.add(shard)
            self._opened(shard)
            logger.info("a shard is ours", shard=shard)
            await give_up.wait()
            self._open.discard(shard)
            elector.election.candidate = False
            while self._running[shard]:
                await self._clock.sleep(self._options.retry_period / 10)
            await elector.give_back()
            logger.info("a shard is given up", shard=shard)

    async def _stay_member(self) -> None:
        began_at = self._clock.monotonic()
        while True:
            beaten_at = max(began_at, self._beaten_at)
            sent_at = self._clock.monotonic()
            try:
                async with asyncio.timeout(min(self._options.request_timeout, beaten_at + self._deadline - sent_at)):
                    await self._write(lambda: self._membership.beaten(self._clock.monotonic()))
            except (RuntimeFault, TimeoutError) as error:
                logger.warning("no sign of life could be given", reason=reason_of(error))
            else:
                beaten_at = self._beaten_at = sent_at
                self._joined.set()
                self._follow_plan()
            if self._clock.monotonic() >= beaten_at + self._deadline:
                raise LeadershipLost(self._silence)
            await self._clock.sleep(self._options.retry_period)

    async def _keep_others_out(self) -> None:
        """Takes no shard while one replica has all, and then watches that nobody begins to without having waited."""
        await self._joined.wait()
        while not await self._is_shared():
            await self._clock.sleep(self._options.retry_period)
        self._cleared = True
        self._follow_plan()
        while not (rivals := self._alone()):
            await self._clock.sleep(self._options.retry_period)
        raise LeadershipLost(f"{rivals[0]} has the Lease {self._options}, and does not share the keys")

    async def _is_shared(self) -> bool:
        try:
            async with asyncio.timeout(self._options.request_timeout):
                return await self._leader.share()
        except (RuntimeFault, TimeoutError):
            # Tried again; where the server does not answer, the signs of life and the elector say so.
            return False

    def _alone(self) -> list[str]:
        """Who works on all keys by himself, as far as that is known."""
        election = self._leader.election
        held = election.held_by_other_at(self._clock.monotonic())
        return [election.holder] if held and not election.shared else []

    @property
    def _silence(self) -> str:
        return f"{self._options.identity} gave no sign of life for {self._deadline:g} s"

    @property
    def _deadline(self) -> float:
        return self._options.renew_deadline

    def _follow_plan(self) -> None:
        now = self._clock.monotonic()
        next_plan = plan(self._options.identity, self._holders(now), self._membership.peers(now), self.count)
        if self._waiting.for_members(self._alone() or self._membership.in_the_way(now)) or not self._cleared:
            next_plan = Plan(frozenset(), frozenset())
        for shard, elector in enumerate(self.electors):
            elector.election.candidate = elector.leading or shard in next_plan.take
            if shard in next_plan.give:
                self._give_up[shard].set()

    def _holders(self, now: float) -> dict[int, str]:
        elections = [elector.election for elector in self.electors]
        return {
            shard: e.holder for shard, e in enumerate(elections) if e.leading or e.held_by_other_at(now) or not e.seen
        }

    async def _write(self, annotation: Callable[[], str]) -> None:
        """Changes the common Lease; what others write at the same time is read again first."""
        for _ in range(CONFLICTS):
            whole = await find_members(self._client, self._options)
            self._membership.observe(_annotation(whole) if whole else "", self._clock.monotonic())
            written = annotation()
            try:
                await self._put(whole, written)
            except (Conflict, ObjectGone):
                await self._clock.sleep(CONFLICT_PAUSE * self._random())
            else:
                self._membership.observe(written, self._clock.monotonic())
                return
        raise RuntimeFault(f"other members have changed the Lease {CONFLICTS} times in a row")

    async def _put(self, whole: Mapping[str, Any] | None, annotation: str) -> None:
        found = whole or {"metadata": {"name": f"{self._options.name}-members", "namespace": self._options.namespace}}
        annotations = {**found["metadata"].get("annotations", {}), MEMBERS_ANNOTATION: annotation}
        body = {
            **found,
            "metadata": {**found["metadata"], "annotations": annotations},
            "spec": {"renewTime": rfc3339_micro(self._clock.utcnow())},
        }
        await (self._client.update(Lease, body) if whole else self._client.create(Lease, body))


def _elector(
    client: Client,
    options: ElectionOptions,
    shard: int,
    clock: Clock | None,
    observe: Observe | None,
    random: Callable[[], float],
) -> Elector:
    own = replace(options, name=f"{options.name}-shard-{shard}")
    return Elector(client, own, clock=clock, observer=observe(own.name) if observe else None, random=random)
