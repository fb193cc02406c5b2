"""What comes from the server on its way into the store."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from controllers.runtime.cache import Change, Replacement, Store
from controllers.runtime.cache.intake import BATCH, Intake
from controllers.runtime.client import Undecodable, WatchEvent
from controllers.runtime.errors import DecodeError
from controllers.runtime.meta import Key, ObjectMeta
from controllers.runtime.testing import run_virtual
from tests.unit.runtime.cache.rig import Thing


def thing(name: str, version: int | str, size: int = 0, uid: str = "u", namespace: str = "a") -> Thing:
    metadata = ObjectMeta(name=name, namespace=namespace, uid=uid, resource_version=str(version))
    return Thing(metadata=metadata, size=size)


@dataclass
class Rig:
    transform: Callable[[Any], Any] | None = None
    namespace: str = ""
    store: Store[Thing] = field(default_factory=Store)
    reports: int = 0

    def __post_init__(self) -> None:
        self.intake = Intake(self.store, Thing.resource, self.namespace, self.transform, self.reported)

    def reported(self) -> None:
        self.reports += 1

    def take(self, type_: str, item: Thing | Undecodable) -> str:
        """What an event changes, in short."""
        if isinstance(item, Undecodable):
            event: WatchEvent[Thing] = WatchEvent(type_, None, item.resource_version, undecodable=item)
        else:
            event = WatchEvent(type_, item, item.metadata.resource_version)
        return told(self.intake.take(event))

    def replace(self, *items: Thing, undecodable: tuple[Undecodable, ...] = ()) -> list[str]:
        changes = run_virtual(self.intake.replace(Replacement(items, undecodable, "10"), initial=False))
        return [told(each) for each in changes]

    def versions(self) -> dict[str, str]:
        return {item.name: item.metadata.resource_version for item in self.store.list()}


def told(change: Change[Thing] | None) -> str:
    return "" if change is None else f"{change.type} {change.subject.name}"


def bad(name: str, version: int, uid: str = "u") -> Undecodable:
    return Undecodable(Key("a", name), uid, str(version), DecodeError("broken"))


# -- order ------------------------------------------------------------------------------------------------------------


def test_events_that_come_twice_or_late_never_take_an_object_back() -> None:
    rig = Rig()
    told_of = [
        rig.take("ADDED", thing("a", 9)),
        rig.take("MODIFIED", thing("a", 10)),
        rig.take("MODIFIED", thing("a", 9)),
    ]
    assert told_of == ["ADDED a", "UPDATED a", ""]
    assert rig.take("DELETED", thing("a", 9)) == ""
    assert rig.versions() == {"a": "10"}


def test_the_deletion_of_a_former_namesake_spares_the_object_that_is_there() -> None:
    rig = Rig()
    rig.take("ADDED", thing("a", 12, uid="new"))
    assert rig.take("DELETED", thing("a", 13, uid="old")) == ""
    assert rig.take("DELETED", bad("a", 13, uid="old")) == ""
    assert rig.versions() == {"a": "12"}
    assert rig.take("DELETED", thing("a", 14, uid="new")) == "DELETED a"


def test_versions_that_are_no_numbers_are_taken_as_they_come() -> None:
    rig = Rig()
    rig.take("ADDED", thing("a", "zz"))
    assert rig.take("MODIFIED", thing("a", "aa")) == "UPDATED a"


def test_a_list_takes_an_object_back_as_after_a_restore() -> None:
    rig = Rig()
    rig.take("ADDED", thing("a", 900))
    assert rig.replace(thing("a", 400)) == ["UPDATED a"]
    assert rig.versions() == {"a": "400"}


# -- objects that cannot be read --------------------------------------------------------------------------------------


def test_an_event_about_nothing_with_a_name_is_told_and_forgotten() -> None:
    rig = Rig()
    assert rig.take("ADDED", Undecodable(None, "", "", DecodeError("a Table"))) == ""
    assert (rig.reports, rig.intake.unreadable, len(rig.store)) == (1, 0, 0)


@pytest.mark.parametrize("listed", [True, False])
def test_an_unreadable_object_that_its_finalizers_keep_is_told_once_with_them(
    listed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def held(version: int, *finalizers: str) -> Undecodable:
        return Undecodable(Key("a", "a"), "u", str(version), DecodeError("broken"), finalizers)

    def comes(item: Undecodable) -> None:
        if listed:
            rig.replace(undecodable=(item,))
        else:
            rig.take("MODIFIED", item)

    rig = Rig()
    comes(held(1))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    comes(held(2, "example.com/ours", "example.com/theirs"))
    comes(held(3, "example.com/ours"))
    (error,) = [record.__dict__["fields"] for record in caplog.records if record.levelname == "ERROR"]
    assert (str(error["object"]), error["reason"]) == ("a/a", "broken")
    assert error["finalizers"] == "example.com/ours, example.com/theirs"
    rig.take("DELETED", held(4, "example.com/ours"))
    comes(held(5, "example.com/ours"))
    assert [record.levelname for record in caplog.records].count("ERROR") == 2


def test_a_deletion_that_a_transform_keeps_unread_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(Halved())
    item = thing("a", 1, size=13)
    metadata = msgspec.structs.replace(item.metadata, deletion_timestamp="2026-01-01T00:00:00Z", finalizers=("mine",))
    rig.take("ADDED", msgspec.structs.replace(item, metadata=metadata))
    assert [record.__dict__["fields"]["finalizers"] for record in caplog.records if record.levelname == "ERROR"] == [
        "mine"
    ]


def test_an_object_that_an_index_cannot_take_costs_itself_alone_in_events_and_in_lists() -> None:
    rig = Rig()
    rig.store.add_index("inverse", lambda item: [str(1 // (item.size - 7))])
    assert rig.replace(thing("a", 1), thing("b", 1, size=7)) == ["ADDED a", "ADDED b"]
    assert rig.take("MODIFIED", thing("a", 2, size=7)) == "UPDATED a"
    assert rig.take("ADDED", thing("c", 3, size=8)) == "ADDED c"
    assert (rig.versions(), rig.store.unindexed) == ({"a": "2", "b": "1", "c": "3"}, 2)
    assert [item.name for item in rig.store.by_index("inverse", "1")] == ["c"]
    assert rig.take("MODIFIED", thing("a", 4, size=8)) == "UPDATED a"
    assert rig.store.unindexed == 1


def test_a_long_list_is_filed_in_parts_and_shown_at_once() -> None:
    rig = Rig()
    rig.store.add_index("size", lambda item: [str(item.size)])
    old = [thing(f"old-{number}", 1, size=1) for number in range(10)]
    new = [thing(f"new-{number}", 2, size=2) for number in range(2 * BATCH + 1)]
    rig.replace(*old)
    seen: list[tuple[int, int, int]] = []

    async def look() -> None:
        while not rig.store.by_index("size", "2"):
            await asyncio.sleep(0)
            old_ones, new_ones = rig.store.by_index("size", "1"), rig.store.by_index("size", "2")
            seen.append((len(rig.store.list()), len(old_ones), len(new_ones)))

    async def scenario() -> list[str]:
        looking = asyncio.create_task(look())
        changes = await rig.intake.replace(Replacement(tuple(new), (), "10"), initial=False)
        await looking
        return [told(change) for change in changes]

    changes = run_virtual(scenario())
    assert seen.count((10, 10, 0)) >= 2
    assert set(seen) == {(10, 10, 0), (len(new), 0, len(new))}
    assert changes[: len(old)] == [f"DELETED {item.name}" for item in old]
    assert changes[len(old) :] == [f"ADDED {item.name}" for item in new]


def test_an_index_added_while_a_list_is_filed_is_complete() -> None:
    rig = Rig()

    async def scenario() -> None:
        replacing = asyncio.create_task(
            rig.intake.replace(Replacement((thing("a", 1, size=3),), (), "1"), initial=True)
        )
        await asyncio.sleep(0)
        rig.store.add_index("size", lambda item: [str(item.size)])
        await replacing

    run_virtual(scenario())
    assert [item.name for item in rig.store.by_index("size", "3")] == ["a"]


# -- transforms -------------------------------------------------------------------------------------------------------


class Halved:
    """Counts its calls; refuses what is 13."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, item: Thing) -> Thing:
        self.seen.append(item.name)
        if item.size == 13:
            raise ValueError("unlucky")
        return thing(item.name, item.metadata.resource_version, item.size // 2)


@pytest.mark.parametrize("answer", [None, "a", thing("other", 1)])
def test_a_transform_that_returns_something_else_costs_only_that_object(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(lambda item: answer if item.size else item)
    assert rig.replace(thing("a", 1, size=1), thing("b", 1)) == ["ADDED b"]
    assert rig.take("ADDED", thing("c", 2, size=1)) == ""
    assert (rig.versions(), rig.intake.unreadable) == ({"b": "1"}, 2)
    assert "the transform returned" in caplog.records[0].__dict__["fields"]["reason"]


def test_a_transform_is_asked_once_for_each_object_that_comes() -> None:
    halved = Halved()
    rig = Rig(halved)
    rig.replace(thing("a", 1, size=8), thing("b", 1, size=6))
    rig.take("MODIFIED", thing("a", 2, size=4))
    assert halved.seen == ["a", "b", "a"]
    assert {item.name: item.size for item in rig.store.list()} == {"a": 2, "b": 3}


def test_what_a_relist_finds_gone_is_not_transformed_again() -> None:
    halved = Halved()
    rig = Rig(halved)
    rig.replace(thing("a", 1, size=8))
    assert rig.replace() == ["DELETED a"]
    assert halved.seen == ["a"]


def test_a_transform_that_raises_is_told_and_costs_only_that_object(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(Halved())
    assert rig.replace(thing("a", 1, size=13), thing("b", 1, size=6)) == ["ADDED b"]
    assert rig.take("MODIFIED", thing("b", 2, size=13)) == ""
    assert rig.take("ADDED", thing("c", 3, size=2)) == "ADDED c"
    assert (rig.versions(), rig.intake.unreadable, rig.reports) == ({"b": "1", "c": "3"}, 2, 2)
    reasons = [record.__dict__["fields"]["reason"] for record in caplog.records]
    assert reasons[0] == "Thing a/a: the transform raised ValueError: unlucky"
