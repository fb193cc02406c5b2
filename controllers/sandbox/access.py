"""Who may do what: authentication by bearer token, and authorization by the Roles and bindings in the cluster.

RBAC is evaluated for every request, as a real cluster does, so that a controller's own permissions are tested here
too. Two things are simpler: aggregated ClusterRoles are not filled in, and nobody is kept from granting more than he
may do himself.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from controllers.sandbox.cluster import Cluster
from controllers.sandbox.errors import StatusError, qualified, unauthorized
from controllers.sandbox.requests import Target
from controllers.sandbox.storage import Stored, key_of
from controllers.sandbox.tokens import ANONYMOUS, ISSUER, MASTERS, Account, Identity, Tokens

RBAC = "rbac.authorization.k8s.io"
DISCOVERY_PATHS = ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", "/version", "/version/"]
HEALTH_PATHS = ["/healthz", "/livez", "/readyz", "/healthz/*", "/livez/*", "/readyz/*"]


class Attributes(msgspec.Struct, frozen=True):
    """What a request wants to do: a verb on a resource, or on a ``path`` that is none."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


def attributes_of(verb: str, target: Target) -> Attributes:
    """What a verb on a resource needs. A namespace counts as being in itself, as the API has it."""
    if target.resource == "namespaces" and target.name:
        return Attributes(verb, "", "namespaces", target.subresource, target.name, target.name)
    return Attributes(verb, target.group, target.resource, target.subresource, target.namespace, target.name)


class Bearer(msgspec.Struct, frozen=True):
    """Who comes with a token, and for whom it was issued; no ``audiences`` are all."""

    identity: Identity
    audiences: tuple[str, ...] = ()


class Access:
    """Decides on the requests to one cluster."""

    def __init__(self, cluster: Cluster, tokens: Tokens) -> None:
        self._cluster = cluster
        self.tokens = tokens

    def authenticate(self, header: str | None) -> Identity:
        """Whom an Authorization header stands for; nobody in particular without a token. Raises StatusError 401."""
        scheme, _, token = (header or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return ANONYMOUS
        bearer = self.bearer(token.strip())
        if bearer is None or (bearer.audiences and ISSUER not in bearer.audiences):
            raise unauthorized()
        return bearer.identity

    def bearer(self, token: str) -> Bearer | None:
        """Whom a token stands for, be it meant for this server or not; None where it is not, or no longer, good."""
        read = self.tokens.read(token, self._cluster.clock.utcnow().timestamp())
        if not isinstance(read, Account):
            return Bearer(read) if read else None
        found = self._cluster.store.get("serviceaccounts", key_of(read.namespace, read.name))
        if found is None or found.object["metadata"]["uid"] != read.uid:
            return None
        return Bearer(read.identity(), read.audiences)

    def check(self, identity: Identity, attributes: Attributes) -> None:
        """Raises the 403."""
        if not self.allowed(identity, attributes):
            raise _forbidden(identity, attributes)

    def allowed(self, identity: Identity, attributes: Attributes) -> bool:
        """Whether any role that is bound to the user allows it."""
        return self.grounds(identity, attributes) is not None

    def grounds(self, identity: Identity, attributes: Attributes) -> str | None:
        """Which binding allows it, "" where none is needed for that; None where nothing allows it."""
        if MASTERS in identity.groups:
            return ""
        for binding, subject in self._bound(identity, attributes.namespace):
            if any(_allows(rule, attributes) for rule in self._role_rules(binding)):
                return _grounds(binding, subject)
        return None

    def rules(self, identity: Identity, namespace: str) -> Iterator[Mapping[str, Any]]:
        """All rules that hold for a user in a namespace."""
        if MASTERS in identity.groups:
            yield {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            yield {"verbs": ["*"], "nonResourceURLs": ["*"]}
        for binding, _ in self._bound(identity, namespace):
            yield from self._role_rules(binding)

    def _bound(self, identity: Identity, namespace: str) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """The bindings that name a user or one of his groups, with the first subject that does."""
        for binding in self._bindings(namespace):
            for subject in binding.get("subjects") or ():
                if _is_subject(subject, identity):
                    yield binding, subject
                    break

    def _bindings(self, namespace: str) -> Iterator[Mapping[str, Any]]:
        yield from _objects(self._cluster.store.collection(f"{RBAC}/clusterrolebindings").select())
        if namespace:
            yield from _objects(self._cluster.store.collection(f"{RBAC}/rolebindings").select(f"{namespace}/"))

    def _role_rules(self, binding: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
        reference, namespace = binding["roleRef"], binding["metadata"].get("namespace", "")
        cluster_wide = reference.get("kind") == "ClusterRole"
        collection = f"{RBAC}/clusterroles" if cluster_wide else f"{RBAC}/roles"
        key = key_of("" if cluster_wide else namespace, str(reference.get("name")))
        found = self._cluster.store.get(collection, key)
        return (found.object.get("rules") or ()) if found else ()


def bootstrap_roles(cluster: Cluster) -> None:
    """Makes the roles that a real server starts with and that ordinary users need."""
    everything = [
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
        {"verbs": ["*"], "nonResourceURLs": ["*"]},
    ]
    discovery = [{"verbs": ["get"], "nonResourceURLs": DISCOVERY_PATHS + HEALTH_PATHS}]
    public = [{"verbs": ["get"], "nonResourceURLs": ["/version", "/version/", *HEALTH_PATHS]}]
    myself = [
        {
            "verbs": ["create"],
            "apiGroups": ["authorization.k8s.io"],
            "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
        },
        {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]},
    ]
    _bootstrap(cluster, "cluster-admin", everything, [MASTERS])
    _bootstrap(cluster, "system:discovery", discovery, ["system:authenticated"])
    _bootstrap(cluster, "system:basic-user", myself, ["system:authenticated"])
    _bootstrap(cluster, "system:public-info-viewer", public, ["system:authenticated", "system:unauthenticated"])


def _bootstrap(cluster: Cluster, name: str, rules: list[dict[str, Any]], groups: list[str]) -> None:
    subjects = [{"apiGroup": RBAC, "kind": "Group", "name": group} for group in groups]
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
    metadata = {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}
    cluster.ensure("ClusterRole", "", {"metadata": metadata, "rules": rules}, RBAC)
    binding = {"metadata": metadata, "subjects": subjects, "roleRef": reference}
    cluster.ensure("ClusterRoleBinding", "", binding, RBAC)


def _objects(selected: Iterable[tuple[str, Stored]]) -> Iterator[Mapping[str, Any]]:
    return (stored.object for _, stored in selected)


def _grounds(binding: Mapping[str, Any], subject: Mapping[str, Any]) -> str:
    """Why something is allowed, in the real server's words."""
    metadata, role = binding["metadata"], binding["roleRef"]
    name, kind = metadata["name"], "ClusterRoleBinding"
    if namespace := metadata.get("namespace"):
        name, kind = f"{name}/{namespace}", "RoleBinding"
    who = subject["name"]
    if subject["kind"] == "ServiceAccount":
        who = f"{who}/{subject.get('namespace', '')}"
    return f'RBAC: allowed by {kind} "{name}" of {role["kind"]} "{role["name"]}" to {subject["kind"]} "{who}"'


def _is_subject(subject: Mapping[str, Any], identity: Identity) -> bool:
    name = subject.get("name")
    match subject.get("kind"):
        case "User":
            return bool(name == identity.user)
        case "Group":
            return name in identity.groups
        case "ServiceAccount":
            return bool(identity.user == f"system:serviceaccount:{subject.get('namespace')}:{name}")
    return False


def _allows(rule: Mapping[str, Any], wanted: Attributes) -> bool:
    if not _has(rule.get("verbs"), wanted.verb):
        return False
    if wanted.path:
        return any(_path_matches(str(pattern), wanted.path) for pattern in rule.get("nonResourceURLs") or ())
    names = rule.get("resourceNames")
    return (
        _has(rule.get("apiGroups"), wanted.group)
        and _resource_matches(rule.get("resources") or (), wanted)
        and (not names or wanted.name in names)
    )


def _has(values: Iterable[str] | None, wanted: str) -> bool:
    return any(value in {"*", wanted} for value in values or ())


def _resource_matches(resources: Iterable[str], wanted: Attributes) -> bool:
    full = f"{wanted.resource}/{wanted.subresource}" if wanted.subresource else wanted.resource
    accepted = {"*", full} | ({f"*/{wanted.subresource}"} if wanted.subresource else set())
    return any(resource in accepted for resource in resources)


def _path_matches(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern


def _forbidden(identity: Identity, wanted: Attributes) -> StatusError:
    if wanted.path:
        message = f'forbidden: User "{identity.user}" cannot {wanted.verb} path "{wanted.path}"'
        return StatusError(403, "Forbidden", message)
    resource = qualified(wanted.resource, wanted.group)
    full = f"{wanted.resource}/{wanted.subresource}" if wanted.subresource else wanted.resource
    where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
    subject = f'{resource} "{wanted.name}"' if wanted.name else resource
    message = (
        f'{subject} is forbidden: User "{identity.user}" cannot {wanted.verb} resource "{full}" '
        f'in API group "{wanted.group}" {where}'
    )
    details = {"name": wanted.name, "group": wanted.group, "kind": wanted.resource}
    return StatusError(403, "Forbidden", message, details={k: v for k, v in details.items() if v})
