"""The labels that GPU feature discovery would give a node, and those that fake-gpu-operator adds to them."""

from controllers.estate.fabric import Fabric
from controllers.estate.mig import MigProfile
from controllers.estate.names import label_value
from controllers.estate.pool import MOCK, Pool
from controllers.estate.profile import GpuModel

CLIQUE = "nvidia.com/gpu.clique"
_COMPLETE = Pool(
    "complete",
    gpu=GpuModel("product", "architecture", "1.0", 2**30, "1.2.3", "1.2", mig=(MigProfile("1g.1gb", 0, (0,), 1, 1),)),
    gpu_count=1,
    fabric=Fabric("00000000-0000-0000-0000-000000000001", 1),
)


def node_labels(pool: Pool, clique: str = "") -> dict[str, str]:
    """The labels of a node of a pool, in the rack ``clique`` if any.

    What a profile does not say has no label: a selector should rather find nothing than something made up. That goes
    for ``nvidia.com/gpu.machine``, too, which is the model of a host. A node whose GPUs a driver mock makes gets none,
    as the real feature discovery runs there; so does one without GPUs, as there.
    """
    if pool.backend == MOCK or pool.gpu_count == 0:
        return {}
    labels = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": str(pool.gpu_count),
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mig.capable": "true" if pool.gpu.mig else "",
        "nvidia.com/mig.strategy": pool.mig_strategy,
        "nvidia.com/gpu.product": pool.gpu.product,
        "nvidia.com/gpu.memory": str(pool.gpu.memory_mib or ""),
        "nvidia.com/gpu.family": pool.gpu.architecture.lower().replace("_", "-"),
        **_versions(pool),
        CLIQUE: clique,
        "nvidia.com/gpu.deploy.dcgm-exporter": "true",
        "run.ai/fake.gpu": "true",
    }
    return {key: label for key, value in labels.items() if (label := label_value(value))}


def _versions(pool: Pool) -> dict[str, str]:
    """Versions and their parts; those of driver and CUDA also under the names of earlier releases."""
    gpu = pool.gpu
    capability, driver, cuda = (
        text.split(".") for text in (gpu.compute_capability, gpu.driver_version, gpu.cuda_version)
    )
    return {
        **_parts("nvidia.com/gpu.compute", capability, ("major", "minor")),
        "nvidia.com/cuda.driver-version.full": gpu.driver_version,
        **_parts("nvidia.com/cuda.driver-version", driver, ("major", "minor", "revision")),
        **_parts("nvidia.com/cuda.driver", driver, ("major", "minor", "rev")),
        "nvidia.com/cuda.runtime-version.full": gpu.cuda_version,
        **_parts("nvidia.com/cuda.runtime-version", cuda, ("major", "minor")),
        **_parts("nvidia.com/cuda.runtime", cuda, ("major", "minor")),
    }


def _parts(prefix: str, version: list[str], names: tuple[str, ...]) -> dict[str, str]:
    return {f"{prefix}.{name}": part for name, part in zip(names, version, strict=False)}


def label_keys() -> frozenset[str]:
    """Every label that a node of any pool may get."""
    return frozenset(node_labels(_COMPLETE, "clique"))
