"""Whatever is written to a store, what its database gives back is that store."""

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.sandbox.database import Database
from controllers.sandbox.storage import State, Store

RESOURCES = st.sampled_from(["pods", "nodes", "resource.k8s.io/resourceclaims"])
KEYS = st.sampled_from(["a", "default/a", "default/b", "ä/ö"])
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)
CONTENT = st.dictionaries(TEXT, st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)))
WRITES = st.lists(st.tuples(RESOURCES, KEYS, st.none() | CONTENT), max_size=30)


def play(store: Store, resource: str, key: str, content: dict[str, Any] | None) -> None:
    """Puts an object, or removes it where there is no content."""
    held = store.get(resource, key)
    if content is not None:
        store.put(resource, key, {"kind": "Thing", "apiVersion": "v1", "metadata": {"name": key}, "spec": content})
    elif held is not None:
        store.remove(resource, key, held.object)


def present(state: State) -> State:
    """Without the resources of which nothing is left."""
    return State(state.version, {resource: found for resource, found in state.objects.items() if found})


@given(WRITES, st.integers(0, 30))
@settings(deadline=None, max_examples=30)  # each opens three files
def test_database_gives_back_the_store(
    writes: list[tuple[str, str, dict[str, Any] | None]], restart_after: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = Store()
        for part in (writes[:restart_after], writes[restart_after:]):
            with closing(Database(Path(directory))) as database:
                assert database.load() == present(store.state())
                store.journal = database.write
                for write in part:
                    play(store, *write)
        with closing(Database(Path(directory))) as database:
            assert database.load() == present(store.state())
