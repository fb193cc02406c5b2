"""The database of a sandbox: what was written is there again, and what cannot be read or written is told clearly."""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from controllers.runtime.errors import ConfigurationError
from controllers.sandbox import Sandbox, SandboxOptions
from controllers.sandbox.cluster import Cluster, WriteOptions
from controllers.sandbox.database import FILE, Database
from controllers.sandbox.errors import StatusError
from controllers.sandbox.lifecycle import Deletion
from controllers.sandbox.registry import ResourceInfo
from controllers.sandbox.storage import State, Store

NOBODY = 65534
MARK = "find-me-in-the-file"


def thing(name: str, **content: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": name}, **content}


@contextmanager
def opened(directory: Path) -> Iterator[Database]:
    with closing(Database(directory)) as database:
        yield database


@contextmanager
def kept(directory: Path) -> Iterator[Store]:
    """A store as it is in a directory, which keeps its changes there."""
    with opened(directory) as database:
        state, store = database.load(), Store()
        for resource, found in state.objects.items():
            for key, stored in sorted(found.items()):
                store.load(resource, key, stored)
        store.version = state.version
        store.journal = database.write
        yield store


@contextmanager
def cluster_in(directory: Path) -> Iterator[Cluster]:
    with opened(directory) as database:
        cluster = Cluster()
        cluster.load(database.load())
        cluster.store.journal = database.write
        yield cluster


def info(cluster: Cluster, group: str, plural: str) -> ResourceInfo:
    found = cluster.registry.find(group, "v1", plural)
    assert found is not None
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A data directory with two objects; a third was removed last."""
    with kept(tmp_path / "data") as store:
        store.put("things", "a", thing("a", text=MARK))
        store.put("others", "space/b", thing("b"))
        removed = store.put("things", "c", thing("c"))
        store.remove("things", "c", removed.object)
    return tmp_path / "data"


def loaded(directory: Path) -> State:
    with opened(directory) as database:
        return database.load()


def test_objects_are_there_with_their_versions_when_it_is_opened_again(directory: Path) -> None:
    state = loaded(directory)
    assert {resource: list(found) for resource, found in state.objects.items()} == {
        "things": ["a"],
        "others": ["space/b"],
    }
    found = state.objects["things"]["a"]
    assert (found.version, found.object["text"], found.object["metadata"]["resourceVersion"]) == (2, MARK, "2")


def test_version_of_a_removal_is_not_given_out_again(directory: Path) -> None:
    with kept(directory) as store:
        assert store.version == 5
        assert store.put("things", "d", thing("d")).version == 6


def test_past_before_the_start_is_forgotten(tmp_path: Path) -> None:
    with cluster_in(tmp_path) as cluster:
        cluster.ensure("Namespace", "", {"metadata": {"name": "default"}})
        version = cluster.store.version
    with cluster_in(tmp_path) as cluster:
        assert cluster.store.collection("namespaces").floor == cluster.store.version == version > 1


def test_secret_is_made_once(directory: Path) -> None:
    with opened(directory) as database:
        assert database.secret("tokens", lambda: b"first") == b"first"
    with opened(directory) as database:
        assert database.secret("tokens", lambda: b"second") == b"first"


def test_replaced_secret_stays_replaced(directory: Path) -> None:
    with opened(directory) as database:
        database.secret("tokens", lambda: b"first")
        database.keep_secret("tokens", b"second")
    with opened(directory) as database:
        assert database.secret("tokens", lambda: b"third") == b"second"


def test_restored_state_is_all_that_is_kept(directory: Path) -> None:
    with kept(directory) as store:
        before = store.state()
        store.put("things", "d", thing("d"))
        store.remove("things", "a", store.collection("things").objects["a"].object)
    with opened(directory) as database:
        database.restore(before)
    assert loaded(directory) == before


def test_a_sandbox_that_was_restored_and_whose_tokens_were_revoked_is_so_after_its_end(tmp_path: Path) -> None:
    with Sandbox(SandboxOptions(data_dir=tmp_path)) as sandbox:
        first = sandbox.admin_token
        sandbox.checkpoint()
        version = sandbox.call(lambda cluster: cluster.store.version)
        sandbox.call(lambda cluster: cluster.ensure("Namespace", "", {"metadata": {"name": "later"}}))
        sandbox.restart(restore=True)
        sandbox.revoke_tokens()
        second = sandbox.admin_token
    with Sandbox(SandboxOptions(data_dir=tmp_path)) as sandbox:
        assert sandbox.admin_token == second != first
        assert sandbox.call(lambda cluster: cluster.store.get("namespaces", "later")) is None
        assert sandbox.call(lambda cluster: cluster.store.version) == version


def test_file_and_directory_are_for_their_owner_only(directory: Path) -> None:
    with kept(directory) as store:
        store.put("things", "a", thing("a"))
        modes = {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
        assert (stat.S_IMODE(directory.stat().st_mode), modes) == (0o700, {0o600})


def test_directory_in_use_is_refused_by_its_name(directory: Path) -> None:
    with opened(directory), pytest.raises(ConfigurationError, match=f"{directory}: another process uses it"):
        Database(directory)
    assert loaded(directory).version == 5


def test_other_programs_cannot_change_an_open_file(directory: Path) -> None:
    connected = closing(sqlite3.connect(directory / FILE, timeout=0.0))
    with opened(directory), connected as other, pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("DELETE FROM objects")


def test_file_that_another_program_holds_is_refused(directory: Path) -> None:
    with closing(sqlite3.connect(directory / FILE, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ConfigurationError, match=f"{FILE}: another process uses it"):
            Database(directory)


def garbage(path: Path) -> None:
    path.write_bytes(b"no database at all " * 1000)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE objects (x)")


def from_the_future(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 99")


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    content = path.read_bytes()
    assert content.count(MARK.encode()) == 1
    path.write_bytes(content.replace(MARK.encode(), MARK.upper().encode()))


def renamed_row(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE objects SET resource = 'nothings' WHERE resource = 'things'")


def without_version(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DELETE FROM removals")


def without_table(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DROP TABLE objects")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (garbage, "no database of gpu-mirage-sandbox"),
        (empty, "it is empty"),
        (foreign, "no database of gpu-mirage-sandbox"),
        (from_the_future, "it has format 99"),
        (cut_off, "it is damaged"),
        (flipped, "things a in it is damaged"),
        (renamed_row, "nothings a in it is damaged"),
        (without_version, "it is damaged"),
        (without_table, "no such table"),
    ],
)
def test_damaged_file_is_named_and_left_alone(directory: Path, damage: Callable[[Path], None], told: str) -> None:
    damage(directory / FILE)
    before = (directory / FILE).read_bytes()
    with pytest.raises(ConfigurationError, match=told) as refused:
        loaded(directory)
    assert str(refused.value).startswith(str(directory / FILE))
    assert (directory / FILE).read_bytes() == before


def test_missing_file_whose_log_is_there_is_not_replaced(directory: Path) -> None:
    (directory / FILE).unlink()
    (directory / f"{FILE}-wal").write_bytes(b"changes")
    with pytest.raises(ConfigurationError, match=f"it is missing, although {FILE}-wal is there"):
        Database(directory)


def test_start_that_was_interrupted_while_it_made_the_file_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / f"{FILE}.draft").write_bytes(b"half a")
    assert loaded(tmp_path) == State(1, {})


def test_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigurationError, match=f"--data-dir {path}: .*choose a directory"):
            Database(path)


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Permissions mean nothing to root."""
    own = os.geteuid()
    if own == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(own)


def test_file_without_permission_is_refused_by_its_name(tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    directory = tmp_path / "data"
    loaded(directory)
    directory.chmod(0o755)
    for mode in (0o000, 0o444):
        (directory / FILE).chmod(mode)
        with (
            as_somebody_else(),
            pytest.raises(ConfigurationError, match=f"{directory / FILE}: .*give this user the right"),
        ):
            Database(directory)
    (directory / FILE).chmod(0o666)
    with as_somebody_else(), pytest.raises(ConfigurationError, match=f"{directory / FILE}: .*give this user the right"):
        Database(directory)
    directory.chmod(0o000)
    with as_somebody_else(), pytest.raises(ConfigurationError, match=f"--data-dir {directory}: Permission denied"):
        Database(directory)


def limit_pages(database: Database, pages: int) -> None:
    database._connection.execute(f"PRAGMA max_page_count = {pages}")


def test_write_for_which_there_is_no_space_is_refused_and_not_visible(tmp_path: Path) -> None:
    with opened(tmp_path) as database:
        cluster = Cluster()
        cluster.ensure("Namespace", "", {"metadata": {"name": "default"}})
        cluster.store.journal = database.write
        maps, version = info(cluster, "", "configmaps"), cluster.store.version
        limit_pages(database, 1)
        with pytest.raises(StatusError, match="there is no space left") as refused:
            cluster.create(maps, "default", {"metadata": {"name": "a"}, "data": {"x": "y" * 9000}}, WriteOptions())
        assert (refused.value.code, refused.value.reason) == (500, "InternalError")
        assert f"configmaps default/a cannot be stored in {tmp_path / FILE}" in refused.value.message
        assert (cluster.store.version, cluster.store.get("configmaps", "default/a")) == (version, None)
        limit_pages(database, 1000)
        cluster.create(maps, "default", {"metadata": {"name": "a"}}, WriteOptions())
    assert list(loaded(tmp_path).objects["configmaps"]) == ["default/a"]


def create(cluster: Cluster, group: str, plural: str, name: str, **metadata: Any) -> dict[str, Any]:
    found = info(cluster, group, plural)
    body = {"metadata": {"name": name, **metadata}}
    return cluster.create(found, "default" if found.namespaced else "", body, WriteOptions()).object


def names(cluster: Cluster, collection: str) -> list[str]:
    return list(cluster.store.collection(collection).objects)


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
def test_garbage_that_was_not_collected_is_collected_after_a_restart(tmp_path: Path, propagation: str) -> None:
    with cluster_in(tmp_path) as cluster:
        cluster.ensure("Namespace", "", {"metadata": {"name": "default"}})
        owner = create(cluster, "", "secrets", "owner")
        reference = {"apiVersion": "v1", "kind": "Secret", "name": "owner", "uid": owner["metadata"]["uid"]}
        for number in range(3):
            create(cluster, "", "services", f"owned-{number}", ownerReferences=[reference])
        create(cluster, "", "services", "free")
        cluster.delete(
            info(cluster, "", "secrets"), "default", "owner", Deletion(propagation=propagation), dry_run=False
        )
        assert len(names(cluster, "services")) == 4
    with cluster_in(tmp_path) as cluster:
        cluster.collector.settle()
        assert (names(cluster, "secrets"), names(cluster, "services")) == ([], ["default/free"])


def test_namespace_that_was_being_emptied_ends_after_a_restart(tmp_path: Path) -> None:
    with cluster_in(tmp_path) as cluster:
        for name in ("default", "other"):
            cluster.ensure("Namespace", "", {"metadata": {"name": name}})
        cluster.collector.settle()
        create(cluster, "", "services", "inside")
        cluster.delete(info(cluster, "", "namespaces"), "", "default", Deletion(), dry_run=False)
        assert names(cluster, "services") == ["default/inside"]
    with cluster_in(tmp_path) as cluster:
        cluster.collector.settle()
        assert (names(cluster, "namespaces"), names(cluster, "services")) == (["other"], [])


def test_collector_tries_again_what_could_not_be_stored(tmp_path: Path) -> None:
    with cluster_in(tmp_path) as cluster:
        cluster.ensure("Namespace", "", {"metadata": {"name": "default"}})
        cluster.collector.settle()
        create(cluster, "", "services", "inside")
        cluster.delete(info(cluster, "", "namespaces"), "", "default", Deletion(), dry_run=False)
        write = cluster.store.journal

        def refuse(*_: object) -> None:
            raise StatusError(500, "InternalError", "no space")

        cluster.store.journal = refuse
        with pytest.raises(StatusError, match="no space"):
            cluster.collector.settle()
        cluster.store.journal = write
        cluster.collector.settle()
        assert (names(cluster, "namespaces"), names(cluster, "services")) == ([], [])
