"""The extended-resource controller: GPUs and other devices of simulated nodes as resources in their status."""

from controllers.extended_resource.setup import DECLARATION, setup

__all__ = ["DECLARATION", "setup"]
