"""A Kubernetes API server in one process, for trying things out and for tests; never part of a deployment.

``Sandbox`` runs one in a thread, ``RunningSandbox`` in the running event loop; ``gpu-mirage-sandbox`` runs one alone.
"""

from controllers.sandbox.faults import Fault
from controllers.sandbox.sandbox import RunningSandbox, Sandbox, SandboxOptions

__all__ = ["Fault", "RunningSandbox", "Sandbox", "SandboxOptions"]
