"""Resources that are questions: who am I, may I do this, is this token good, give me a token."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec

from controllers.sandbox.access import Access, Attributes
from controllers.sandbox.cluster import Cluster
from controllers.sandbox.discovery import REVIEWS
from controllers.sandbox.errors import Cause, bad_request, invalid
from controllers.sandbox.lifecycle import Object
from controllers.sandbox.registry import ResourceInfo
from controllers.sandbox.tokens import (
    DEFAULT_LIFETIME,
    ISSUER,
    MAXIMUM_LIFETIME,
    MINIMUM_LIFETIME,
    Account,
    Identity,
)

AUTHORIZATION = "authorization.k8s.io"
_ONE_OF_BOTH = "exactly one of nonResourceAttributes or resourceAttributes must be specified"


@cache
def info_of(group: str, version: str, plural: str) -> ResourceInfo | None:
    """The resource whose objects are only ever asked, None where it is none."""
    kind, namespaced = REVIEWS.get((group, plural), ("", False))
    return ResourceInfo(group, version, plural, kind, namespaced=namespaced) if kind and version == "v1" else None


def answer(access: Access, identity: Identity, review: Object, now: str) -> Object:
    """The review with its status; ``now`` is the time in the API's form.

    Raises StatusError 400 and 422 for one that asks nothing, or more than one thing.
    """
    asker = {"apiVersion": review["apiVersion"], "kind": review["kind"]}
    spec: Mapping[str, Any] = review.get("spec") or {}
    match review["kind"]:
        case "SelfSubjectReview":
            return {**asker, "metadata": {"creationTimestamp": now}, "status": {"userInfo": _user_info(identity)}}
        case "SelfSubjectRulesReview":
            return {**asker, "metadata": {}, "spec": {}, "status": _rules_status(access, identity, spec)}
        case "TokenReview":
            return {**review, "status": _token_status(access, spec)}
    causes = list(_causes(review, spec))
    if causes:
        raise invalid(AUTHORIZATION, "", "", causes)
    if review["kind"] != "SelfSubjectAccessReview":
        identity = Identity(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""))
    return {**review, "status": _access_status(access, identity, spec)}


def _user_info(identity: Identity) -> dict[str, Any]:
    info: dict[str, Any] = {"username": identity.user, "groups": list(identity.groups)}
    return info | ({"uid": identity.uid} if identity.uid else {})


def _token_status(access: Access, spec: Mapping[str, Any]) -> dict[str, Any]:
    token, wanted = spec.get("token"), tuple(spec.get("audiences") or (ISSUER,))
    if not token:
        raise bad_request("token is required for TokenReview in authentication")
    bearer = access.bearer(token)
    if bearer is None:
        return {"user": {}, "error": "invalid bearer token"}
    meant = [audience for audience in wanted if audience in bearer.audiences or not bearer.audiences]
    if not meant:
        own, asked = (msgspec.json.encode(each).decode() for each in (bearer.audiences, wanted))
        why = f"token audiences {own} is invalid for the target audiences {asked}"
        return {"user": {}, "error": f"[invalid bearer token, {why}]"}
    return {"authenticated": True, "user": _user_info(bearer.identity), "audiences": meant}


def _causes(review: Object, spec: Mapping[str, Any]) -> Iterator[Cause]:
    """The rules that a question about rights breaks."""
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if (resource is None) is (path is None):
        yield _cause("spec", _shown(path), _ONE_OF_BOTH)
    if review["kind"] != "SelfSubjectAccessReview" and not spec.get("user") and not spec.get("groups"):
        yield _cause("spec.user", '""', "at least one of user or group must be specified")
    yield from _selector_causes(resource or {})
    local = review["kind"] == "LocalSubjectAccessReview"
    metadata = review["metadata"]
    if any(metadata[name] for name in metadata.keys() - {"managedFields", *(("namespace",) if local else ())}):
        yield _cause("metadata", msgspec.json.encode(metadata).decode(), "must be empty")
    if local and resource is not None and (given := resource.get("namespace", "")) != metadata.get("namespace", ""):
        yield _cause("spec.resourceAttributes.namespace", f'"{given}"', "must match metadata.namespace")
    if local and path is not None:
        yield _cause("spec.nonResourceAttributes", _shown(path), "disallowed on this kind of request")


def _selector_causes(resource: Mapping[str, Any]) -> Iterator[Cause]:
    for name in ("fieldSelector", "labelSelector"):
        selector = resource.get(name) or {}
        if selector.get("rawSelector") and selector.get("requirements"):
            field, shown = f"spec.resourceAttributes.{name}.rawSelector", f'"{selector["rawSelector"]}"'
            yield _cause(field, shown, "may not specified at the same time as requirements")


def _cause(field: str, shown: str, why: str) -> Cause:
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: {why}", field)


def _shown(path: Mapping[str, Any] | None) -> str:
    """Attributes that are no resource's as messages show them, in the server's internal form."""
    if path is None:
        return "null"
    return msgspec.json.encode({"Path": path.get("path", ""), "Verb": path.get("verb", "")}).decode()


def _access_status(access: Access, identity: Identity, spec: Mapping[str, Any]) -> dict[str, Any]:
    """RBAC allows and never denies, so there is a reason only where something is allowed."""
    grounds = access.grounds(identity, _wanted(spec))
    if grounds is None:
        return {"allowed": False}
    return {"allowed": True} | ({"reason": grounds} if grounds else {})


def _wanted(spec: Mapping[str, Any]) -> Attributes:
    path, resource = spec.get("nonResourceAttributes"), spec.get("resourceAttributes") or {}
    if path is not None:
        return Attributes(verb=path.get("verb", ""), path=path.get("path") or "/")
    names = ("verb", "group", "resource", "subresource", "namespace", "name")
    return Attributes(**{name: resource.get(name, "") for name in names})


def _rules_status(access: Access, identity: Identity, spec: Mapping[str, Any]) -> dict[str, Any]:
    namespace = spec.get("namespace")
    if not namespace:
        raise bad_request("no namespace on request")
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
    audiences = list(spec.get("audiences") or [ISSUER])
    holder = Account(namespace, name, account["metadata"]["uid"], issued + lifetime)
    expires = datetime.fromtimestamp(holder.expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": cluster.now()},
        "spec": {"audiences": audiences, "expirationSeconds": lifetime, "boundObjectRef": None},
        "status": {"token": access.tokens.issue(holder, issued, audiences), "expirationTimestamp": expires},
    }
