"""The gpu-slices controller: the GPUs of simulated nodes as devices of ResourceSlices, for pools that offer them so."""

from controllers.gpu_slices.setup import DECLARATION, setup

__all__ = ["DECLARATION", "setup"]
