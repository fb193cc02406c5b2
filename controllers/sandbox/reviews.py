"""Resources that are questions: who am I, may I do this, is this token good, give me a token."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from controllers.sandbox.access import Access, Attributes
from controllers.sandbox.cluster import Cluster
from controllers.sandbox.errors import Cause, bad_request, invalid
from controllers.sandbox.registry import ResourceInfo
from controllers.sandbox.tokens import (
    DEFAULT_LIFETIME,
    ISSUER,
    MAXIMUM_LIFETIME,
    MINIMUM_LIFETIME,
    Account,
    Identity,
)


def answer(access: Access, identity: Identity, resource: str, namespace: str, body: Any) -> dict[str, Any]:
    """The review with its status. Raises StatusError 400 for one that asks nothing."""
    if not isinstance(body, dict) or not isinstance(spec := body.get("spec") or {}, dict):
        raise bad_request("the body of a review must be a JSON object with a spec")
    match resource:
        case "selfsubjectreviews":
            status = {"userInfo": _user_info(identity)}
        case "tokenreviews":
            status = _token_status(access, str(spec.get("token") or ""))
        case "selfsubjectrulesreviews":
            status = _rules_status(access, identity, str(spec.get("namespace") or ""))
        case "selfsubjectaccessreviews":
            status = _access_status(access, identity, spec, namespace)
        case _:
            other = Identity(str(spec.get("user") or ""), tuple(spec.get("groups") or ()))
            status = _access_status(access, other, spec, namespace)
    return {**body, "metadata": body.get("metadata") or {}, "status": status}


def _user_info(identity: Identity) -> dict[str, Any]:
    info: dict[str, Any] = {"username": identity.user, "groups": list(identity.groups)}
    return info | ({"uid": identity.uid} if identity.uid else {})


def _token_status(access: Access, token: str) -> dict[str, Any]:
    identity = access.identify(token)
    if identity is None:
        return {"user": {}, "error": "invalid bearer token"}
    return {"authenticated": True, "user": _user_info(identity), "audiences": [ISSUER]}


def _access_status(access: Access, identity: Identity, spec: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if not resource and not path:
        text = "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"
        raise invalid("authorization.k8s.io", "", "", [Cause("FieldValueInvalid", text, "spec")])
    if resource:
        wanted = Attributes(
            verb=str(resource.get("verb") or ""),
            group=str(resource.get("group") or ""),
            resource=str(resource.get("resource") or ""),
            subresource=str(resource.get("subresource") or ""),
            namespace=str(resource.get("namespace") or namespace),
            name=str(resource.get("name") or ""),
        )
    else:
        assert path
        wanted = Attributes(verb=str(path.get("verb") or ""), path=str(path.get("path") or "/"))
    return {"allowed": access.allowed(identity, wanted)}


def _rules_status(access: Access, identity: Identity, namespace: str) -> dict[str, Any]:
    rules = list(access.rules(identity, namespace))
    return {
        "resourceRules": [dict(rule) for rule in rules if rule.get("resources")],
        "nonResourceRules": [dict(rule) for rule in rules if rule.get("nonResourceURLs")],
        "incomplete": False,
    }


def issue_token(
    cluster: Cluster, access: Access, info: ResourceInfo, namespace: str, name: str, body: Any
) -> dict[str, Any]:
    """The TokenRequest with a token for a service account. Raises StatusError 404, and 422 for a bad lifetime."""
    account = cluster.stored(info, namespace, name).object
    spec = (body.get("spec") if isinstance(body, dict) else None) or {}
    lifetime = spec.get("expirationSeconds") or DEFAULT_LIFETIME
    if not isinstance(lifetime, int) or not MINIMUM_LIFETIME <= lifetime <= MAXIMUM_LIFETIME:
        text = f"Invalid value: {lifetime}: may not specify a duration less than 10 minutes"
        cause = Cause("FieldValueInvalid", text, "spec.expirationSeconds")
        raise invalid("authentication.k8s.io", "TokenRequest", "", [cause])
    issued = int(cluster.clock.utcnow().timestamp())
    holder = Account(namespace, name, account["metadata"]["uid"], issued + lifetime)
    audiences = list(spec.get("audiences") or [ISSUER])
    expires = datetime.fromtimestamp(holder.expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": cluster.now()},
        "spec": {"audiences": audiences, "expirationSeconds": lifetime, "boundObjectRef": None},
        "status": {"token": access.tokens.issue(holder, issued, audiences), "expirationTimestamp": expires},
    }
