"""The store: versions, order, the window of changes, and the past."""

from typing import Any

import msgspec
import pytest

from controllers.sandbox.storage import Forgotten, Store, key_of


def thing(name: str, **content: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": name}, **content}


def keys(store: Store, prefix: str = "", after: str = "", version: int | None = None) -> list[str]:
    return [key for key, _ in store.collection("things").select(prefix, after, version)]


def test_each_write_gets_the_next_version_of_the_whole_store() -> None:
    store = Store(version=7)
    written = [store.put("things", "a", thing("a")), store.put("others", "b", thing("b"))]
    written.append(store.remove("things", "a", thing("a")))
    assert [stored.version for stored in written] == [8, 9, 10]
    assert [stored.object["metadata"]["resourceVersion"] for stored in written] == ["8", "9", "10"]


def test_write_leaves_the_objects_before_it_alone() -> None:
    store = Store()
    first = store.put("things", "a", thing("a", n=1))
    store.put("things", "a", {**first.object, "n": 2})
    assert (first.object["n"], first.object["metadata"]["resourceVersion"]) == (1, "2")


def test_encoding_is_the_object_with_and_without_envelope() -> None:
    stored = Store().put("things", "a", thing("a", n=1))
    assert msgspec.json.decode(stored.encoded) == stored.object
    bare = {key: value for key, value in stored.object.items() if key not in {"kind", "apiVersion"}}
    assert msgspec.json.decode(stored.encoded_item) == bare


def test_selection_is_sorted_and_bounded_by_prefix_and_start() -> None:
    store = Store()
    for namespace, name in (("b", "2"), ("a", "9"), ("b", "1"), ("bb", "0")):
        store.put("things", key_of(namespace, name), thing(name))
    assert keys(store) == ["a/9", "b/1", "b/2", "bb/0"]
    assert keys(store, "b/") == ["b/1", "b/2"]
    assert keys(store, "b/", after="b/1") == ["b/2"]


def test_past_versions_are_the_present_with_changes_undone() -> None:
    store = Store()
    snapshots: dict[int, list[tuple[str, int]]] = {}

    def remember() -> None:
        found = store.collection("things").select()
        snapshots[store.version] = [(key, stored.object["n"]) for key, stored in found]

    for number, name in enumerate("abcab"):
        store.put("things", name, thing(name, n=number))
        remember()
    store.remove("things", "c", thing("c", n=2))
    remember()
    for version, expected in snapshots.items():
        found = store.collection("things").select(version=version)
        assert [(key, stored.object["n"]) for key, stored in found] == expected


def test_what_lies_before_the_window_is_forgotten() -> None:
    store = Store(window=10)
    for number in range(50):
        store.put("things", str(number), thing(str(number)))
    things = store.collection("things")
    assert 10 <= len(things.changes) <= 20
    assert len(things.changes_from(things.position_after(store.version - 10), 100)) == 10
    with pytest.raises(Forgotten):
        things.position_after(2)
    with pytest.raises(Forgotten):
        things.select(version=2)
    with pytest.raises(Forgotten):
        things.changes_from(0, 1)


def test_compaction_forgets_everything_but_the_present() -> None:
    store = Store()
    store.put("things", "a", thing("a"))
    store.compact()
    things = store.collection("things")
    assert things.position_after(store.version) == things.end
    with pytest.raises(Forgotten):
        things.position_after(store.version - 1)
    assert keys(store) == ["a"]


def test_listeners_hear_of_each_change_until_they_leave() -> None:
    store, heard = Store(), []
    listener = lambda: heard.append(store.version)  # noqa: E731 - the same function is taken out again
    store.collection("things").listeners.add(listener)
    store.put("things", "a", thing("a"))
    store.put("others", "a", thing("a"))
    store.collection("things").listeners.discard(listener)
    store.put("things", "a", thing("a"))
    assert heard == [2]
