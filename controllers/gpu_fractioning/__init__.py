"""The gpu-fractioning controller: a node condition that says when fractions of a node's GPUs can be asked for."""

from controllers.gpu_fractioning.setup import DECLARATION, setup

__all__ = ["DECLARATION", "setup"]
