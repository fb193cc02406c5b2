"""Which operations of a JSON patch put a finalizer on an object, and take it off.

``Client.add_finalizer`` and ``Client.remove_finalizer`` send them after tests of uid and resourceVersion, so that they
reach exactly the object that was observed, in the state in which it was observed. An apply could not take off what it
did not put on.

A finalizer holds up the deletion of its object until somebody takes it off. Only a controller that keeps something
outside of what owner references clean up needs one; it has to be uninstalled after the last such object.
"""

from collections.abc import Mapping
from typing import Any

from controllers.runtime.errors import ConfigurationError
from controllers.runtime.meta import KubeObject

_PATH = "/metadata/finalizers"

Operations = list[Mapping[str, Any]]


def addition(observed: KubeObject, finalizer: str) -> Operations:
    """The operations that put a finalizer on an object; none where it is there.

    Raises ConfigurationError for an object under deletion, which the API lets have no new finalizers.
    """
    finalizers = observed.metadata.finalizers
    if finalizer in finalizers:
        return []
    if observed.deleting:
        raise ConfigurationError(
            f"{observed.resource.kind} {observed.key} is being deleted and can get no finalizer {finalizer}: "
            "look at .deleting first"
        )
    if finalizers:
        return [{"op": "add", "path": f"{_PATH}/-", "value": finalizer}]
    # A projection that leaves finalizers out would replace those of others: where there are any, the test fails.
    return [{"op": "test", "path": _PATH, "value": None}, {"op": "add", "path": _PATH, "value": [finalizer]}]


def removal(observed: KubeObject, finalizer: str) -> Operations:
    """The operations that take a finalizer off an object; none where it is not there."""
    finalizers = observed.metadata.finalizers
    if finalizer not in finalizers:
        return []
    path = f"{_PATH}/{finalizers.index(finalizer)}"
    return [{"op": "test", "path": path, "value": finalizer}, {"op": "remove", "path": path}]
