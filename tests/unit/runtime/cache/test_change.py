"""Changes, and several of them as one."""

from controllers.runtime.cache import Change, ChangeType
from controllers.runtime.cache.change import change_between, changes_of_list, merged
from controllers.runtime.meta import ObjectMeta
from tests.unit.runtime.cache.rig import Thing


def thing(version: int, size: int = 0, name: str = "a", namespace: str = "a", uid: str = "u") -> Thing:
    metadata = ObjectMeta(name=name, namespace=namespace, uid=uid, resource_version=str(version))
    return Thing(metadata=metadata, size=size)


ONE, TWO, THREE = thing(1), thing(2), thing(3)
ADDED = Change(ChangeType.ADDED, None, ONE, initial=True)
UPDATED = Change(ChangeType.UPDATED, ONE, TWO)
DELETED = Change(ChangeType.DELETED, TWO, None)


def test_a_repeated_state_is_no_change() -> None:
    assert change_between(ONE, thing(1)) is None


def test_a_version_that_a_restored_backup_gave_out_again_is_a_change() -> None:
    restored = thing(1, size=7)
    assert change_between(ONE, restored) == Change(ChangeType.UPDATED, ONE, restored)


def test_what_a_list_lacks_is_told_first() -> None:
    other = thing(1, name="b")
    assert list(changes_of_list({ONE.key: ONE}, {other.key: other}, initial=False)) == [
        Change(ChangeType.DELETED, ONE, None, final_state_unknown=True),
        Change(ChangeType.ADDED, None, other),
    ]


def test_two_changes_of_one_object_are_one() -> None:
    assert merged(ADDED, UPDATED) == Change(ChangeType.ADDED, None, TWO, initial=True)
    assert merged(UPDATED, Change(ChangeType.UPDATED, TWO, THREE)) == Change(ChangeType.UPDATED, ONE, THREE)
    assert merged(UPDATED, DELETED) == DELETED


def test_what_came_and_went_is_nothing() -> None:
    assert merged(ADDED, DELETED) is None


def test_what_went_and_came_back_is_an_update() -> None:
    again = thing(5, uid="other")
    assert merged(DELETED, Change(ChangeType.ADDED, None, again)) == Change(ChangeType.UPDATED, TWO, again)


def test_only_a_change_from_an_object_to_itself_is_a_resync() -> None:
    assert Change(ChangeType.UPDATED, ONE, ONE).resync
    assert not UPDATED.resync
    assert not ADDED.resync
    assert not DELETED.resync
