"""What a controller may do, declared once: the client enforces it and the RBAC manifests are generated from it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from controllers.runtime.errors import ConfigurationError
from controllers.runtime.meta import KubeObject, Resource

READ_CACHED = ("get", "list", "watch")
"""What an informer needs, with ``get`` for the live look before a guarded write."""

VERBS = (*READ_CACHED, "create", "update", "patch", "delete", "deletecollection")
SPECIAL_VERBS = ("use", "bind", "escalate", "impersonate", "approve", "sign", "attest")
"""Verbs of requests, and those that some resources have beside them
(https://kubernetes.io/docs/reference/access-authn-authz/authorization/)."""


@dataclass(frozen=True, slots=True, order=True)
class Permission:
    """One verb on one resource, or on one of its subresources (``nodes/status``). Versions do not matter to RBAC."""

    group: str
    resource: str
    verb: str

    @classmethod
    def of(cls, resource: Resource, verb: str, subresource: str = "") -> "Permission":
        """Raises ConfigurationError for an unknown verb, which RBAC would take and never allow anything for."""
        if verb not in VERBS + SPECIAL_VERBS:
            raise ConfigurationError(f"{resource}: there is no verb {verb!r}: use one of {', '.join(VERBS)}")
        return cls(resource.group, f"{resource.plural}/{subresource}" if subresource else resource.plural, verb)


def permissions(kind: type[KubeObject], *verbs: str, subresource: str = "") -> frozenset[Permission]:
    """Several verbs on one kind. Raises ConfigurationError for an unknown one."""
    return frozenset(Permission.of(kind.resource, verb, subresource) for verb in verbs)


def rules(granted: Iterable[Permission]) -> list[dict[str, Any]]:
    """RBAC rules, as few as the permissions allow, always in the same order."""
    verbs: dict[tuple[str, str], set[str]] = {}
    for permission in granted:
        verbs.setdefault((permission.group, permission.resource), set()).add(permission.verb)
    by_verbs: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (group, resource), allowed in sorted(verbs.items()):
        by_verbs.setdefault((group, tuple(sorted(allowed))), []).append(resource)
    return [
        {"apiGroups": [group], "resources": resources, "verbs": list(allowed)}
        for (group, allowed), resources in by_verbs.items()
    ]


@dataclass(frozen=True, slots=True)
class Declaration:
    """All that one controller may do: in the whole cluster, and in the driver namespace alone."""

    name: str
    cluster: frozenset[Permission]
    driver_namespace: frozenset[Permission] = frozenset()

    @property
    def everything(self) -> frozenset[Permission]:
        return self.cluster | self.driver_namespace
