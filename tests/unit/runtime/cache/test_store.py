"""The store: reads, indexes and replacement."""

import tracemalloc
from collections.abc import Iterable

import msgspec
import pytest

from controllers.runtime.cache import MutationDetector, Reader, Store
from controllers.runtime.errors import ConfigurationError
from controllers.runtime.meta import Key, KubeObject, ObjectMeta, Resource


class Thing(KubeObject, frozen=True, kw_only=True):
    resource = Resource("example.com", "v1", "things", "Thing", namespaced=True)

    colours: tuple[str, ...] = ()


def thing(name: str, *colours: str, namespace: str = "a") -> Thing:
    return Thing(metadata=ObjectMeta(name=name, namespace=namespace), colours=colours)


def colours_of(item: Thing) -> Iterable[str]:
    return item.colours


def names(items: Iterable[Thing]) -> set[str]:
    return {item.name for item in items}


def store_with(*items: Thing) -> Store[Thing]:
    store: Store[Thing] = Store()
    store.add_index("colour", colours_of)
    for item in items:
        store.put(item)
    return store


def test_put_returns_what_it_replaced() -> None:
    store = store_with()
    first, second = thing("x", "red"), thing("x", "blue")
    assert store.put(first) is None
    assert store.put(second) is first
    assert store.get(Key("a", "x")) is second
    assert len(store) == 1


def test_remove_returns_what_was_there_and_none_for_the_unknown() -> None:
    item = thing("x", "red")
    store = store_with(item)
    assert store.remove(Key("a", "x")) is item
    assert store.remove(Key("a", "x")) is None
    assert store.get(Key("a", "x")) is None
    assert store.list("a") == ()


def test_equal_names_in_two_namespaces_are_two_objects() -> None:
    store = store_with(thing("x", namespace="a"), thing("x", namespace="b"), thing("y", namespace="b"))
    assert len(store.list()) == 3
    assert names(store.list("a")) == {"x"}
    assert names(store.list("b")) == {"x", "y"}
    assert store.list("c") == ()


def test_an_object_is_found_under_each_of_its_index_values() -> None:
    store = store_with(thing("x", "red", "blue"), thing("y", "red"))
    assert names(store.by_index("colour", "red")) == {"x", "y"}
    assert names(store.by_index("colour", "blue")) == {"x"}
    assert store.by_index("colour", "green") == ()


def test_an_index_value_given_twice_counts_once() -> None:
    store = store_with(thing("x", "red", "red"))
    assert len(store.by_index("colour", "red")) == 1
    assert store.remove(Key("a", "x")) is not None
    assert store.by_index("colour", "red") == ()


def test_a_changed_object_leaves_its_former_buckets() -> None:
    store = store_with(thing("x", "red"))
    store.put(thing("x", "blue"))
    assert store.by_index("colour", "red") == ()
    assert names(store.by_index("colour", "blue")) == {"x"}


def test_empty_buckets_are_removed() -> None:
    store = store_with(*(thing(f"t{n}", f"colour-{n}") for n in range(100)))
    assert store.index_sizes() == {"colour": 100}
    for n in range(1, 100):
        store.remove(Key("a", f"t{n}"))
    assert store.index_sizes() == {"colour": 1}


def test_an_index_added_late_covers_what_is_there() -> None:
    store = store_with(thing("x"), thing("yy"))
    store.add_index("length", lambda item: [str(len(item.name))])
    assert names(store.by_index("length", "2")) == {"yy"}


def test_a_taken_index_name_is_refused_and_the_index_stays() -> None:
    store = store_with(thing("x", "red"))
    with pytest.raises(ConfigurationError, match="already an index 'colour'"):
        store.add_index("colour", lambda _: ())
    assert names(store.by_index("colour", "red")) == {"x"}


def test_an_unknown_index_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"no index 'color' \(known: colour\)"):
        store_with().by_index("color", "red")


def test_replace_swaps_objects_namespaces_and_indexes() -> None:
    store = store_with(thing("x", "red"), thing("gone", "red", namespace="b"))
    store.replace([thing("x", "blue"), thing("new", "blue", namespace="c")])
    assert names(store.list()) == {"x", "new"}
    assert store.list("b") == ()
    assert store.by_index("colour", "red") == ()
    assert names(store.by_index("colour", "blue")) == {"x", "new"}


def test_reads_are_snapshots() -> None:
    store = store_with(thing("x", "red"))
    before, by_colour, in_namespace = store.list(), store.by_index("colour", "red"), store.list("a")
    store.put(thing("y", "red"))
    store.remove(Key("a", "x"))
    assert names(before) == names(by_colour) == names(in_namespace) == {"x"}


def _refuse_bad(item: Thing) -> Iterable[str]:
    if "bad" in item.colours:
        raise ValueError("bad colour")
    return item.colours


@pytest.mark.parametrize("way", ["put", "replace", "add_index"])
def test_an_object_that_an_index_cannot_take_is_left_out_of_that_index_alone(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_with(thing("x", "red"))
    if way != "add_index":
        store.add_index("strict", _refuse_bad)
    if way == "replace":
        store.replace([thing("x", "red"), thing("y", "bad", "red")])
    else:
        store.put(thing("y", "bad", "red"))
    if way == "add_index":
        store.add_index("strict", _refuse_bad)
    assert names(store.list()) == names(store.by_index("colour", "red")) == {"x", "y"}
    assert (names(store.by_index("strict", "red")), store.unindexed) == ({"x"}, 1)
    (told,) = [record.__dict__["fields"] for record in caplog.records]
    assert (str(told["object"]), told["index"], told["reason"]) == ("a/y", "strict", "ValueError: bad colour")
    store.put(thing("y", "red"))
    assert (names(store.by_index("strict", "red")), store.unindexed) == ({"x", "y"}, 0)


def test_an_object_that_an_index_cannot_take_is_told_once_for_each_version(caplog: pytest.LogCaptureFixture) -> None:
    store = store_with()
    store.add_index("strict", _refuse_bad)
    bad = thing("y", "bad")
    store.put(bad)
    store.put(bad)
    store.replace([bad])
    store.replace([bad, thing("x", "red")])
    assert (len(caplog.records), store.unindexed) == (1, 1)
    store.put(msgspec.structs.replace(bad, metadata=msgspec.structs.replace(bad.metadata, resource_version="2")))
    assert (len(caplog.records), store.unindexed) == (2, 1)
    store.remove(bad.key)
    assert store.unindexed == 0


def test_an_index_function_that_gives_a_str_for_several_values_is_told(caplog: pytest.LogCaptureFixture) -> None:
    store = store_with(thing("x", "red"))
    store.add_index("letters", lambda item: item.colours[0])
    assert (store.by_index("letters", "r"), store.unindexed) == ((), 1)
    assert (
        "it returned 'red': return a list of values, such as ['red']" in caplog.records[0].__dict__["fields"]["reason"]
    )


def test_an_index_function_that_no_longer_takes_what_it_took_costs_a_search_and_no_more() -> None:
    store = store_with(thing("x", "red"), thing("y", "red"))
    fails = False

    def moody(item: Thing) -> tuple[str, ...]:
        if fails:
            raise ValueError("not today")
        return item.colours

    store.add_index("moody", moody)
    fails = True
    store.remove(thing("x").key)
    assert names(store.by_index("moody", "red")) == {"y"}


def test_a_store_can_be_handed_out_as_a_reader() -> None:
    reader: Reader[KubeObject] = store_with(thing("x", "red"))
    assert reader.get(Key("a", "x")) == thing("x", "red")


def test_replacing_one_namespace_leaves_the_others_alone() -> None:
    store = store_with(thing("x", "red"), thing("gone", "red"), thing("other", "red", namespace="b"))
    store.replace([thing("x", "blue"), thing("new", "blue")], "a")
    assert names(store.list("a")) == {"x", "new"}
    assert names(store.list("b")) == {"other"}
    assert names(store.by_index("colour", "red")) == {"other"}
    assert len(store) == 3


def test_objects_in_a_store_cannot_be_assigned_to() -> None:
    store = store_with(thing("x", "red"))
    with pytest.raises(AttributeError):
        store.list()[0].colours = ("blue",)  # type: ignore[misc]


def test_a_changed_map_inside_a_stored_object_is_detected_and_named() -> None:
    store = store_with(thing("x"), thing("y"))
    detector = MutationDetector(store)
    detector.check()
    store.put(thing("y", "blue"))
    store.remove(Key("a", "x"))
    detector.check()
    labels = store.list()[0].metadata.labels
    assert isinstance(labels, dict)
    labels["l"] = "1"
    with pytest.raises(AssertionError, match=r"Thing a/y was changed inside the cache: change a copy"):
        detector.check()


def test_memory_returns_to_what_the_rest_needs_once_most_objects_are_deleted() -> None:
    store = store_with()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for n in range(6_000):
            store.put(thing(f"t{n}", f"colour-{n % 500}"))
        full = tracemalloc.get_traced_memory()[0] - before
        for n in range(5_940):
            store.remove(Key("a", f"t{n}"))
        rest = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(store) == 60
    assert rest < full / 10, f"{rest} of {full} bytes are still held"


def test_a_store_that_shrank_is_complete() -> None:
    store = store_with(*(thing(f"t{n}", f"colour-{n % 7}", namespace=f"ns-{n % 3}") for n in range(3000)))
    for n in range(2900):
        store.remove(Key(f"ns-{n % 3}", f"t{n}"))
    expected = {f"t{n}" for n in range(2900, 3000)}
    assert names(store.list()) == expected
    assert names(item for n in range(3) for item in store.list(f"ns-{n}")) == expected
    assert names(item for n in range(7) for item in store.by_index("colour", f"colour-{n}")) == expected
