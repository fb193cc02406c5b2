"""A GPU that can be partitioned: whole or in MIG instances, whichever is allocated, out of what the GPU has.

Counters say what a GPU has and what each device would take of it, so that a scheduler gives away nothing twice: engines
and memory by their number, and memory slices each by itself, as an instance takes particular ones. Names are those of
NVIDIA's DRA driver with its feature gate DynamicMIG.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from controllers.api.dra import DraApi
from controllers.estate import Gpu, GpuModel, MigProfile, device_part, quantity, slices_of
from controllers.estate.profile import MIB
from controllers.gpu_slices.devices import Attributes, own_attributes, shared_attributes, whole_gpu

Amounts = Mapping[str, int]
"""How much there is of something, by the name that it has as a capacity."""

_COUNTERS = {
    "multiprocessors": "multiprocessors",
    "copyEngines": "copy-engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpegEngines": "jpeg-engines",
    "ofaEngines": "ofa-engines",
    "memory": "memory",
}
"""Capacities of devices, and the counters that they draw on."""


def counter_set(model: GpuModel, gpu: Gpu) -> dict[str, Any]:
    """All that a GPU has."""
    return {"name": _set_name(gpu), "counters": _counters(_most(model), range(slices_of(model.mig)))}


def devices(api: DraApi, model: GpuModel, gpu: Gpu) -> list[dict[str, Any]]:
    """Everything that a GPU can be: itself, where MIG needs no reset, and each instance at each place."""
    instances = [_instance(api, model, gpu, profile, start) for profile in model.mig for start in profile.starts]
    return [_whole(api, model, gpu), *instances] if model.partitioned_at_will else instances


def _whole(api: DraApi, model: GpuModel, gpu: Gpu) -> dict[str, Any]:
    most = _most(model)
    return whole_gpu(
        api, gpu, shared_attributes(model), _capacity(most), _consumption(gpu, most, range(slices_of(model.mig)))
    )


def _instance(api: DraApi, model: GpuModel, gpu: Gpu, profile: MigProfile, start: int) -> dict[str, Any]:
    amounts = _amounts(profile)
    name = f"gpu-{gpu.index}-mig-{device_part(profile.name)}-{profile.id}-{start}"
    consumed = _consumption(gpu, amounts, range(start, start + profile.slices))
    return api.device(name, _attributes(model, gpu, profile), _capacity(amounts), consumed)


def _attributes(model: GpuModel, gpu: Gpu, profile: MigProfile) -> Attributes:
    """Those of the GPU, but an instance that is not made yet has no id of its own."""
    own = own_attributes(gpu)
    parent = own.pop("uuid")
    mine: Attributes = {"type": {"string": "mig"}, "parentUUID": parent, "profile": {"string": profile.name}}
    return shared_attributes(model) | own | mine


def _set_name(gpu: Gpu) -> str:
    return f"gpu-{gpu.index}-counter-set"


def _amounts(profile: MigProfile) -> Amounts:
    return {
        "multiprocessors": profile.multiprocessors,
        "copyEngines": profile.copy_engines,
        "decoders": profile.decoders,
        "encoders": profile.encoders,
        "jpegEngines": profile.jpeg_engines,
        "ofaEngines": profile.ofa_engines,
        "memory": profile.memory * MIB,
    }


def _most(model: GpuModel) -> Amounts:
    """What a whole GPU has: of each thing as much as the instance that has most of it."""
    every = [_amounts(profile) for profile in model.mig]
    return {name: max(amounts[name] for amounts in every) for name in _COUNTERS}


def _capacity(amounts: Amounts) -> dict[str, str]:
    return {name: _text(name, amount) for name, amount in amounts.items()}


def _consumption(gpu: Gpu, amounts: Amounts, slices: range) -> list[dict[str, Any]]:
    return [{"counterSet": _set_name(gpu), "counters": _counters(amounts, slices)}]


def _counters(amounts: Amounts, slices: range) -> dict[str, dict[str, str]]:
    counted = {_COUNTERS[name]: {"value": _text(name, amount)} for name, amount in amounts.items()}
    return counted | {f"memory-slice-{number}": {"value": "1"} for number in slices}


def _text(name: str, amount: int) -> str:
    # In the server's own spelling, so that what is published compares equal with what was meant.
    return quantity.binary(Fraction(amount)) if name == "memory" else quantity.decimal(amount)
