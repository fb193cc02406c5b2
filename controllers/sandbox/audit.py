"""The audit log: who asked for what and how it ended, one JSON line for each request.

Lines are Events of audit.k8s.io/v1, level Metadata, stage ResponseComplete, with the fields that a real server's lines
have and this one knows. Requests for health are left out.
"""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from controllers.runtime.errors import ConfigurationError
from controllers.sandbox.access import Access, Attributes, attributes_of
from controllers.sandbox.errors import StatusError
from controllers.sandbox.requests import Target, query_of, resource_target, split_path, verb_of
from controllers.sandbox.tokens import ANONYMOUS, Identity

HEALTH = ("/healthz", "/livez", "/readyz")


class AuditLog:
    """A file that each finished request adds a line to."""

    def __init__(self, path: Path, access: Access) -> None:
        """Raises ConfigurationError where the file cannot be written."""
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise ConfigurationError(
                f"cannot write the audit log {path}: {error.strerror}; choose another --audit-log"
            ) from error
        self._access = access

    def close(self) -> None:
        self._file.close()

    def record(self, request: web.BaseRequest, response: web.StreamResponse, now: datetime) -> None:
        """Adds the line of a request that is answered."""
        if request.path.startswith(HEALTH):
            return
        event = _event(self._access, request, response, now)
        self._file.write(msgspec.json.encode(event) + b"\n")


def _event(access: Access, request: web.BaseRequest, response: web.StreamResponse, now: datetime) -> Mapping[str, Any]:
    identity = _identity(access, request)
    target = _target(request)
    verb = _verb(request, target)
    body = _document(response)
    refused = response.status >= 300
    event: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": str(uuid.uuid4()),
        "stage": "ResponseComplete",
        "requestURI": request.path_qs,
        "verb": verb,
        "user": {"username": identity.user, "groups": list(identity.groups)},
        "userAgent": request.headers.get("User-Agent", ""),
        "responseStatus": {"metadata": {}, "code": response.status},
        "stageTimestamp": now.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "annotations": {"authorization.k8s.io/decision": _decision(access, identity, verb, request, target)},
    }
    if target is not None:
        event["objectRef"] = _reference(target, {} if refused else body)
    if refused:
        event["responseStatus"] |= {key: body[key] for key in ("status", "reason", "message") if key in body}
    return event


def _identity(access: Access, request: web.BaseRequest) -> Identity:
    try:
        return access.authenticate(request.headers.get("Authorization"))
    except StatusError:
        return ANONYMOUS


def _target(request: web.BaseRequest) -> Target | None:
    try:
        return resource_target(split_path(request.path_qs.partition("?")[0]))
    except StatusError:
        return None


def _verb(request: web.BaseRequest, target: Target | None) -> str:
    if target is None:
        return request.method.lower()
    return verb_of(request.method, query_of(request.query_string), target)


def _decision(access: Access, identity: Identity, verb: str, request: web.BaseRequest, target: Target | None) -> str:
    wanted = Attributes(verb, path=request.path) if target is None else attributes_of(verb, target)
    return "allow" if access.allowed(identity, wanted) else "forbid"


def _reference(target: Target, document: Mapping[str, Any]) -> dict[str, str]:
    """The object that a request is for; of one that was created, the name is in the answer only."""
    metadata = document.get("metadata") or {}
    reference = {
        "resource": target.resource,
        "namespace": target.namespace,
        "name": target.name or metadata.get("name", ""),
        "uid": metadata.get("uid", ""),
        "apiGroup": target.group,
        "apiVersion": target.version,
        "subresource": target.subresource,
    }
    return {key: value for key, value in reference.items() if value}


def _document(response: web.StreamResponse) -> Mapping[str, Any]:
    """An answer that is one object; {} for streams, lists in other formats and text."""
    if not isinstance(response, web.Response) or not isinstance(response.body, bytes):
        return {}
    try:
        decoded = msgspec.json.decode(response.body)
    except msgspec.DecodeError:
        return {}
    return decoded if isinstance(decoded, dict) else {}
