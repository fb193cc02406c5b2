"""The pods of what looks after pods: which there are, and how new ones are made."""

from collections.abc import Mapping
from typing import Any

from controllers.runtime import Manager
from controllers.runtime.cache import Reader
from controllers.sandbox.stand_in.kinds import Body, Job, Pod, ReplicaSet, controller_uid, owned_by

BY_CONTROLLER = "controller"


def pods_by_controller(manager: Manager) -> Reader[Pod]:
    """All pods, with those of one owner under the index BY_CONTROLLER."""
    store = manager.informer(Pod).store
    if BY_CONTROLLER not in store.index_sizes():
        store.add_index(BY_CONTROLLER, lambda pod: filter(None, (controller_uid(pod),)))
    return store


def pod_of(owner: ReplicaSet | Job, template: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> Body:
    """A pod from the template of what looks after it."""
    metadata = template.get("metadata", {})
    return {
        "metadata": {
            "generateName": f"{owner.name}-",
            "namespace": owner.namespace,
            "labels": {**metadata.get("labels", {}), **(labels or {})},
            "annotations": metadata.get("annotations", {}),
            "ownerReferences": [owned_by(owner)],
        },
        "spec": template.get("spec", {}),
    }
