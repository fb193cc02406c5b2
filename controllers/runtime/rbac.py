"""What a controller may do, declared once: the client enforces it and the RBAC manifests are generated from it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controllers.runtime.errors import ConfigurationError
from controllers.runtime.meta import KubeObject, Resource

GROUP = "rbac.authorization.k8s.io"

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
    """All that one controller may do: in the whole cluster, and in the driver namespace alone.

    The driver namespace is the one that the binary itself runs in. The client refuses what is in neither set; that what
    is in the second one alone happens in that namespace alone is for the server to enforce.
    """

    name: str
    cluster: frozenset[Permission]
    driver_namespace: frozenset[Permission] = frozenset()

    @property
    def everything(self) -> frozenset[Permission]:
        return self.cluster | self.driver_namespace


def manifests(account: str, namespace: str, declared: Iterable[Declaration]) -> list[dict[str, Any]]:
    """Roles and bindings that give a service account all that is declared; a role without rules is left out.

    ``namespace`` is the account's, and the driver namespace of what is declared.
    """
    declared = tuple(declared)
    cluster = frozenset[Permission]().union(*(declaration.cluster for declaration in declared))
    driver_namespace = frozenset[Permission]().union(*(declaration.driver_namespace for declaration in declared))
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    documents: list[dict[str, Any]] = []
    if cluster:
        documents += _role_and_binding("Cluster", {"name": account}, cluster, subject)
    # What may be done everywhere needs no second rule for one namespace.
    if local := driver_namespace - cluster:
        documents += _role_and_binding("", {"name": account, "namespace": namespace}, local, subject)
    return documents


def _role_and_binding(
    scope: str, metadata: Mapping[str, str], granted: frozenset[Permission], subject: Mapping[str, str]
) -> list[dict[str, Any]]:
    role = {
        "apiVersion": f"{GROUP}/v1",
        "kind": f"{scope}Role",
        "metadata": dict(metadata),
        "rules": rules(granted),
    }
    binding = {
        "apiVersion": f"{GROUP}/v1",
        "kind": f"{scope}RoleBinding",
        "metadata": dict(metadata),
        "roleRef": {"apiGroup": GROUP, "kind": f"{scope}Role", "name": metadata["name"]},
        "subjects": [dict(subject)],
    }
    return [role, binding]
