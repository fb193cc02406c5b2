"""A stand-in for what brings a cluster to life: scheduler, controller manager and kubelets, much simplified.

It is a client of the sandbox like any other, made of the project's own informers, queues and controllers, so that pods
run on simulated nodes where nothing else does it. It is for trying things out and for tests; nothing deploys it.
"""

from controllers.sandbox.stand_in.stand_in import StandIn

__all__ = ["StandIn"]
