"""The ConfigMap of a node: what it should be, and whether it is."""

from collections.abc import Mapping
from typing import Any

from controllers.api.core import KWOK_ANNOTATION, Node
from controllers.estate import Pool, config_map_labels, statuses_of, topology_text
from controllers.node_pool.kinds import NodeTopology
from controllers.runtime import owner_reference
from controllers.runtime.names import fitting_name
from controllers.topology import DATA_KEY, TopologyOptions


def name_of(node: str, options: TopologyOptions) -> str:
    """``topology-<node>``; where that is too long it is cut, and has a hash of the node's name."""
    return fitting_name(f"{options.name}-{node}", unique=node)


def desired_config_map(
    node: Node, pool: Pool, present: NodeTopology | None, options: TopologyOptions
) -> Mapping[str, Any]:
    """The ConfigMap of a node, in which the usage of GPUs that stay is kept.

    It is written over exactly the state that was read, since others write usage into the same text.
    """
    kwok = node.metadata.annotations.get(KWOK_ANNOTATION)
    return {
        "metadata": {
            "name": name_of(node.name, options),
            "namespace": options.namespace,
            "labels": config_map_labels(node.name),
            **({} if kwok is None else {"annotations": {KWOK_ANNOTATION: kwok}}),
            "ownerReferences": [owner_reference(node)],
            **({"resourceVersion": present.metadata.resource_version} if present else {}),
        },
        "data": {DATA_KEY: _text(node.name, pool, present.data.get(DATA_KEY, "") if present else "")},
    }


def _text(node: str, pool: Pool, present: str) -> str:
    """The text for a node, with the usage that ``present`` tells."""
    unused = topology_text(node, pool)
    # Reading YAML is dear, and most nodes are as they were first written.
    return unused if present in ("", unused) else topology_text(node, pool, statuses_of(present))


def is_as(present: NodeTopology | None, desired: Mapping[str, Any]) -> bool:
    """Whether a ConfigMap has everything that it should have."""
    if present is None:
        return False
    metadata, (owner,) = desired["metadata"], desired["metadata"]["ownerReferences"]
    return (
        present.data == desired["data"]
        and metadata["labels"].items() <= present.metadata.labels.items()
        and metadata.get("annotations", {}).items() <= present.metadata.annotations.items()
        and any(each.uid == owner["uid"] for each in present.metadata.owner_references)
    )
