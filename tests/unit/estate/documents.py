"""Topology documents as users of fake-gpu-operator have them, and short ways to read single blocks."""

from typing import Any

from controllers.estate import Estate, Pool, load

CHART_DEFAULT = """
nodePools:
  default:
    gpuProduct: Tesla-K80
    gpuCount: 2
    gpuMemory: 11441
nodePoolLabelKey: run.ai/simulated-gpu-node-pool
migStrategy: mixed
"""

LEGACY = """
nodePoolLabelKey: run.ai/simulated-gpu-node-pool
migStrategy: mixed
nodePools:
  default:
    gpuProduct: NVIDIA-A100-SXM4-40GB
    gpuCount: 8
    gpuMemory: 40960
    otherDevices:
    - name: nvidia.com/mig-1g.5gb
      count: 7
    - {name: rdma/hca, count: 1}
"""

NEW = """
nodePoolLabelKey: example.com/pool
migStrategy: none
nodePools:
  training:
    gpu:
      backend: fake
      profile: h100
      overrides:
        device_defaults:
          memory:
            total_bytes: 99857989632
          power: {limit: [1, 2.5], unknown: true}
        device_count: 4
    resources:
    - nvidia.com/gpu: 99
    - example.com/nic: 2
      rdma/hca: 1
    numa:
      zones: 2
      gpusPerZone: [3, 1]
      topologyManagerPolicy: restricted
      topologyManagerScope: pod
      cpuPerZone: "16"
      memPerZone: 64Gi
      distances: {self: 10, remote: 32}
  mocked:
    gpu: {backend: mock, profile: a100}
  plain:
    gpu:
      overrides:
        device_defaults: {name: Tesla-K80, memory: {total_bytes: 11996758016}}
        devices: [{}, {}]
gpuOperator: {version: v25.10.0, values: {driver: {enabled: false}}}
"""

MIXED = CHART_DEFAULT + "gpuOperator:\n"
MIXED = MIXED.replace("nodePoolLabelKey", "  highend:\n    gpu: {backend: fake, profile: gb200}\nnodePoolLabelKey", 1)

CUSTOM_PROFILE = """
version: "1.0"
system: {driver_version: "570.1.2", cuda_version: "12.8", nvml_version: "12.570.1"}
device_defaults:
  name: Custom GPU
  architecture: hopper
  brand: nvidia
  compute_capability: {major: 9, minor: 1}
  memory: {total_bytes: 1073741824, reserved_bytes: 0}
devices:
- {index: 0, uuid: GPU-0, pci: {bus_id: "0000:07:00.0"}}
- {index: 1}
- {index: 2}
"""


def pools(body: str, **profiles: str) -> Estate:
    """The estate of a ``nodePools`` block."""
    return load(f"nodePools:\n{body}", profiles)


def pool(block: str, **profiles: str) -> Pool:
    """The one pool, called p, that a block in flow style describes, where nothing is wrong with it."""
    estate = pools(f"  p: {block}\n", **profiles)
    assert estate.problems == ()
    return estate.pools["p"]


def refused(block: str, **profiles: str) -> tuple[str, str, str]:
    """Path, reason and fix of the one thing that is wrong with a pool called p; its neighbour stays."""
    estate = pools(f"  p: {block}\n  neighbour: {{gpu: {{profile: t4}}}}\n", **profiles)
    assert list(estate.pools) == ["neighbour"]
    (problem,) = estate.problems
    assert problem.pool == "p"
    return problem.path, problem.why, problem.fix


def wrong(block: str, **profiles: str) -> str:
    """The path of the one thing that is wrong with a pool."""
    return refused(block, **profiles)[0]


def values(pool: Pool) -> dict[str, Any]:
    """What a pool says of its GPUs, in one map."""
    gpu = pool.gpu
    return {"count": pool.gpu_count, "product": gpu.product, "memory": gpu.memory_mib, "driver": gpu.driver_version}
