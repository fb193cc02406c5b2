"""The ConfigMaps of nodes."""

from controllers.api.core import ConfigMap


class NodeTopology(ConfigMap, frozen=True, kw_only=True):
    """A ConfigMap ``topology-<node>``, which says what GPUs a node has and who uses them."""
