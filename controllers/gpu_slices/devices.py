"""GPUs as devices of the driver ``gpu.nvidia.com``, with the attributes and the capacity of the real driver's devices.

Names of attributes, their types and the spelling of values are those of NVIDIA's DRA driver, so that device classes and
claims that were written for it select these devices.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from controllers.api.dra import DraApi
from controllers.estate import Gpu, GpuModel, quantity

DRIVER = "gpu.nvidia.com"
MAX_TEXT = 64  # characters of an attribute

_ARCHITECTURES = {"ada_lovelace": "Ada Lovelace"}
_LAST = re.compile(r"\d+")

Attributes = dict[str, dict[str, Any]]


def devices(api: DraApi, model: GpuModel, gpus: Iterable[Gpu]) -> list[dict[str, Any]]:
    """A device for each GPU, named ``gpu-<index>``."""
    shared = shared_attributes(model)
    # In the server's own spelling, so that what is published compares equal with what was meant.
    capacity = {"memory": quantity.binary(Fraction(model.memory))} if model.memory else None
    return [whole_gpu(api, gpu, shared, capacity) for gpu in gpus]


def whole_gpu(
    api: DraApi,
    gpu: Gpu,
    shared: Attributes,
    capacity: Mapping[str, str] | None,
    consumed: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The device of one GPU: ``shared`` are the attributes of its model, ``consumed`` the counters it draws on."""
    attributes = {"type": {"string": "gpu"}, **shared, **own_attributes(gpu)}
    return api.device(f"gpu-{gpu.index}", attributes, capacity, consumed)


def own_attributes(gpu: Gpu) -> Attributes:
    return {
        "uuid": {"string": gpu.uuid},
        "resource.kubernetes.io/pciBusID": {"string": gpu.pci_bus_id},
        "resource.kubernetes.io/pcieRoot": {"string": gpu.pcie_root},
    }


def shared_attributes(model: GpuModel) -> Attributes:
    """What all devices of a model have; an attribute without a value is left out."""
    texts = {
        "productName": model.product,
        "brand": model.brand,
        "architecture": _ARCHITECTURES.get(model.architecture, model.architecture.capitalize()),
        "addressingMode": model.addressing_mode,
    }
    versions = {
        "cudaComputeCapability": model.compute_capability,
        "cudaDriverVersion": model.cuda_version,
        "driverVersion": model.driver_version,
    }
    return {
        **{name: {"string": text[:MAX_TEXT]} for name, text in texts.items() if text},
        **{name: {"version": version} for name, text in versions.items() if (version := semantic_version(text))},
    }


def semantic_version(text: str) -> str:
    """A version as the API takes it, with three parts and no leading zeros; "" for text that has no number.

    ``550.163.01`` is ``550.163.1`` then, and ``12.4`` is ``12.4.0``.
    """
    numbers = [str(int(part)) for part in _LAST.findall(text)[:3]]
    return ".".join([*numbers, "0", "0"][:3]) if numbers else ""
