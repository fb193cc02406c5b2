"""The ConfigMaps that describe an estate: two kinds here, since each is selected in its own way."""

from controllers.api.core import ConfigMap

DATA_KEY = "topology.yml"
PROFILE_KEY = "profile.yaml"
PROFILE_LABEL = "fake-gpu-operator/gpu-profile"
PROFILE_PREFIX = "gpu-profile-"
"""Names and keys are those of fake-gpu-operator."""


class TopologyConfig(ConfigMap, frozen=True, kw_only=True):
    """The ConfigMap with the topology document."""


class GpuProfile(ConfigMap, frozen=True, kw_only=True):
    """A ConfigMap with the profile of a GPU."""
