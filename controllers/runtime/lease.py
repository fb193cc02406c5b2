"""The Lease of coordination.k8s.io/v1: who holds something at present, and for how long he said that he would."""

from typing import ClassVar

from controllers.runtime.meta import KubeObject, Projection, Resource
from controllers.runtime.rbac import Declaration, permissions


class LeaseSpec(Projection, frozen=True, kw_only=True):
    """A record of the holder. Times are the holder's wall clock, for people: nothing is ever decided on them."""

    holder_identity: str = ""  # "" where nobody holds it
    lease_duration_seconds: int = 0  # seconds from when an observer saw the record change; 0 where none is recorded
    acquire_time: str = ""
    renew_time: str = ""
    lease_transitions: int = 0  # how often the holder has changed


class Lease(KubeObject, frozen=True, kw_only=True):
    """A Lease, as far as elections read it."""

    resource: ClassVar[Resource] = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True)

    spec: LeaseSpec = LeaseSpec()


PERMISSIONS = permissions(Lease, "get", "create", "update")

DECLARATION = Declaration(name="leader-election", cluster=frozenset(), driver_namespace=PERMISSIONS)
"""What an election needs, in the namespace of its Lease alone."""
