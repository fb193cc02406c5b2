"""The errors that the server answers, as the API words them.

Whatever refuses a request raises ``StatusError``; the server turns it into a ``Status`` object with the HTTP code of
the same number. The texts are those of kube-apiserver, because clients and people compare them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of ``details.causes``: the rule that was broken, in words, and the path of the field."""

    reason: str
    message: str
    field: str = ""


class StatusError(Exception):
    """A refusal: HTTP ``code``, the API's CamelCase ``reason``, ``message``, the ``causes`` and further ``details``."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        causes: Sequence[Cause] = (),
        details: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.causes = tuple(causes)
        # The API gives details, be they empty, with every refusal of content.
        self.details = dict(details or {}) if details is not None or causes or reason == "Invalid" else None
        self.metadata = dict(metadata or {})

    def status(self) -> dict[str, Any]:
        """The ``Status`` object."""
        details = self.details
        if details is not None and self.causes:
            details = {**details, "causes": [_cause(cause) for cause in self.causes]}
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if details is not None:
            body["details"] = details
        return {**body, "code": self.code}


def _cause(cause: Cause) -> dict[str, str]:
    parts = {"reason": cause.reason, "message": cause.message, "field": cause.field}
    return {name: value for name, value in parts.items() if value}


def _named(name: str, group: str, kind: str) -> dict[str, str]:
    parts = {"name": name, "group": group, "kind": kind}
    return {key: value for key, value in parts.items() if value}


def qualified(name: str, group: str) -> str:
    """A resource or kind with its group, as messages name it: ``pods``, ``deployments.apps``."""
    return f"{name}.{group}" if group else name


def bad_request(message: str) -> StatusError:
    """400: the request cannot be understood."""
    return StatusError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    """401: no valid credentials."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def not_found(group: str, resource: str, name: str) -> StatusError:
    """404: there is no object of that name."""
    message = f'{qualified(resource, group)} "{name}" not found'
    return StatusError(404, "NotFound", message, details=_named(name, group, resource))


def no_such_path() -> StatusError:
    """404: the resource is not served."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", details={})


def method_not_allowed() -> StatusError:
    """405: the resource is served, but not with that verb."""
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, details={})


def not_acceptable(accepted: Sequence[str]) -> StatusError:
    """406: none of the formats that the client reads can be written."""
    return StatusError(406, "NotAcceptable", f"only the following media types are accepted: {', '.join(accepted)}")


def cannot_render(what: str) -> StatusError:
    """406: the format that the client wants is not one for what it asks for."""
    return StatusError(406, "NotAcceptable", f"you requested {what}")


def already_exists(group: str, resource: str, name: str, *, going: bool = False) -> StatusError:
    """409: the name is taken, maybe by an object that is ``going``."""
    message = f'{qualified(resource, group)} "{name}" already exists'
    if going:
        message = f"object is being deleted: {message}"
    return StatusError(409, "AlreadyExists", message, details=_named(name, group, resource))


def conflict(group: str, resource: str, name: str, why: str) -> StatusError:
    """409: the object is not as the client believes."""
    message = f'Operation cannot be fulfilled on {qualified(resource, group)} "{name}": {why}'
    return StatusError(409, "Conflict", message, details=_named(name, group, resource))


def expired(message: str, continue_token: str = "") -> StatusError:
    """410: the resource version is older than what is remembered; a token may say how to go on regardless."""
    metadata = {"continue": continue_token} if continue_token else None
    return StatusError(410, "Expired", message, metadata=metadata)


def invalid_options(kind: str, reason: str, message: str, field: str) -> StatusError:
    """422: a query parameter, or a field of options of that kind, has a value that it cannot have."""
    return invalid("meta.k8s.io", kind, "", [Cause(reason, message, field)])


def no_such_page() -> StatusError:
    """404: nothing at all is served at the path; in plain text, as the real server has it."""
    return StatusError(404, "", "404 page not found\n")


def too_large(limit: int) -> StatusError:
    """413: the body has more than ``limit`` bytes."""
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def unsupported_media_type(accepted: Sequence[str]) -> StatusError:
    """415: the body is in none of the accepted formats."""
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
    return StatusError(415, "UnsupportedMediaType", message)


def unsupported_patch() -> StatusError:
    """415: the body of a PATCH is of none of the sorts of patches."""
    return StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> StatusError:
    """422: fields of the object break a rule; one cause for each."""
    texts = [f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes]
    summary = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    message = f'{qualified(kind, group)} "{name}" is invalid: {summary}'
    return StatusError(422, "Invalid", message, causes, _named(name, group, kind))


def version_too_large(asked: int, current: int, *, retry: bool = True) -> StatusError:
    """504: the client asks for a resource version that does not exist yet, and may be told to ``retry``."""
    return StatusError(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {asked}, current: {current}",
        [Cause("ResourceVersionTooLarge", "Too large resource version")],
        {"retryAfterSeconds": 1} if retry else {},
    )


def not_supported(message: str) -> StatusError:
    """501: the real server does this, the sandbox does not."""
    return StatusError(501, "NotImplemented", message)
