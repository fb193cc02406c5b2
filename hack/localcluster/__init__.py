"""Kubernetes clusters with simulated nodes on 127.0.0.1, for tests, demos and benches.

`ControlPlane` runs etcd, kube-apiserver, kube-controller-manager, kube-scheduler and KWOK, `SandboxEnvironment` the
sandbox with its stand-in: plain processes with TLS, RBAC and an audit log; no container engine and no real node is
needed. All state lives in one data directory.
"""

from hack.localcluster.binaries import Binaries, BinariesMissing, find_binaries
from hack.localcluster.components import Component, Options
from hack.localcluster.control_plane import ControlPlane, ControlPlaneError
from hack.localcluster.controllers import ControllerProcess, install
from hack.localcluster.environment import LOCAL, SANDBOX, ClusterError, Environment, KubectlError
from hack.localcluster.fault_proxy import FaultProxy
from hack.localcluster.nodes import delete_nodes, make_nodes, node_manifest, set_ready, wait_ready
from hack.localcluster.sandbox import SandboxEnvironment

__all__ = [
    "LOCAL",
    "SANDBOX",
    "Binaries",
    "BinariesMissing",
    "ClusterError",
    "Component",
    "ControlPlane",
    "ControlPlaneError",
    "ControllerProcess",
    "Environment",
    "FaultProxy",
    "KubectlError",
    "Options",
    "SandboxEnvironment",
    "delete_nodes",
    "find_binaries",
    "install",
    "make_nodes",
    "node_manifest",
    "set_ready",
    "wait_ready",
]
