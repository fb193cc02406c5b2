"""Every exception that the framework raises.

::

    RuntimeFault
    ├── ApiError                 the server answered with an error
    │   ├── BadRequest           400
    │   ├── Unauthorized         401
    │   ├── Forbidden            403
    │   │   └── NamespaceTerminating
    │   ├── NotFound             404
    │   ├── MethodNotAllowed     405
    │   ├── Conflict             409
    │   │   ├── AlreadyExists
    │   │   └── FieldConflict    another manager owns a field of the apply
    │   ├── Expired              410, as HTTP status or inside a watch
    │   ├── UnsupportedMediaType 415
    │   ├── Invalid              422
    │   ├── TooManyRequests      429
    │   ├── InternalError        500
    │   ├── ServiceUnavailable   503
    │   └── ServerTimeout        504
    │       └── ResourceVersionTooLarge
    ├── ObjectGone               the object that was observed is deleted, or replaced by another of the same name
    ├── TransportError           no complete answer came
    ├── DecodeError              an answer came that is not what was asked for
    ├── PermissionNotDeclared    the code did something that its declarations, and so its RBAC, do not contain
    ├── ConfigurationError       an option, kubeconfig or flag cannot work
    ├── LeadershipLost           another replica may be the leader by now, so this one writes nothing
    └── TerminalError            raised by a reconciler: do not retry until the object changes
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec


class RuntimeFault(Exception):
    """The root of the tree; catching it catches everything that the framework raises on purpose."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of ``status.details.causes``: which field, which rule, in the server's words."""

    reason: str = ""
    message: str = ""
    field: str = ""


class ApiError(RuntimeFault):
    """The server refused a request.

    ``code`` is the HTTP status, ``reason`` the API's CamelCase reason, ``message`` the server's text, ``causes`` the
    fields it names and ``retry_after`` the seconds it asks a client to wait (``None`` where it asks for nothing).
    """

    def __init__(
        self,
        message: str,
        *,
        code: int,
        reason: str = "",
        causes: tuple[Cause, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.causes = causes
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.code} {self.reason or 'Unknown'}: {self.message}"


class BadRequest(ApiError):
    """400: the request itself is malformed."""


class Unauthorized(ApiError):
    """401: no credentials, or credentials that the server no longer takes."""


class Forbidden(ApiError):
    """403: RBAC or admission refuses it."""


class NamespaceTerminating(Forbidden):
    """403 with that cause: nothing can be created in a namespace that is being deleted."""


class NotFound(ApiError):
    """404: the object, or the whole kind, does not exist."""


class MethodNotAllowed(ApiError):
    """405: the resource does not support that verb."""


class Conflict(ApiError):
    """409: the object changed since it was read."""


class AlreadyExists(Conflict):
    """409 on create: the name is taken."""


class FieldConflict(Conflict):
    """409 on apply: another field manager owns a field with another value."""


class Expired(ApiError):
    """410: the resource version or continue token is older than what the server remembers."""


class UnsupportedMediaType(ApiError):
    """415: the server does not read or write that format."""


class Invalid(ApiError):
    """422: the object violates its schema or a validation rule."""


class TooManyRequests(ApiError):
    """429: the server asks for patience; see ``retry_after``."""


class InternalError(ApiError):
    """500: the server failed."""


class ServiceUnavailable(ApiError):
    """503: the server, or the one behind it, is not there."""


class ServerTimeout(ApiError):
    """504: the server gave up on the request."""


class ResourceVersionTooLarge(ServerTimeout):
    """504 with that cause: the server has not yet seen the asked-for resource version."""


class ObjectGone(RuntimeFault):
    """A guarded write found the object deleted, or replaced by another with the same name."""


class TransportError(RuntimeFault):
    """No complete answer: refused, reset, timed out, cut in the middle."""


class DecodeError(RuntimeFault):
    """The answer, or one object in it, is not what the projection needs."""


class PermissionNotDeclared(RuntimeFault):
    """A controller used a verb that it did not declare; its generated RBAC would not allow it either."""


class ConfigurationError(RuntimeFault):
    """An option, flag or kubeconfig cannot work; the text names it and the fix."""


class LeadershipLost(RuntimeFault):
    """This replica is not, or no longer, the leader: its writes are refused, and a manager that was one ends."""


class TerminalError(RuntimeFault):
    """Raised by a reconciler for what retrying cannot mend; the key is not queued again until something changes."""


UNKNOWN_RESOURCE = "the server could not find the requested resource"
NOT_SERVED = "the server does not serve this path: is the CRD of the kind installed, in this version?"
"""Of an object that is missing a server says so in a Status with its name; of a path that it does not know it speaks in
plain text, or in these words."""

_BY_REASON: Mapping[str, type[ApiError]] = {
    "AlreadyExists": AlreadyExists,
    "Conflict": Conflict,
    "Expired": Expired,
    "Gone": Expired,
    "NotFound": NotFound,
    "Invalid": Invalid,
    "Timeout": ServerTimeout,
    "TooManyRequests": TooManyRequests,
}
_BY_CODE: Mapping[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    409: Conflict,
    410: Expired,
    415: UnsupportedMediaType,
    422: Invalid,
    429: TooManyRequests,
    500: InternalError,
    503: ServiceUnavailable,
    504: ServerTimeout,
}
_BY_CAUSE: Mapping[tuple[type[ApiError], str], type[ApiError]] = {
    (Forbidden, "NamespaceTerminating"): NamespaceTerminating,
    (Conflict, "FieldManagerConflict"): FieldConflict,
    (ServerTimeout, "ResourceVersionTooLarge"): ResourceVersionTooLarge,
}


def error_from_status(status: Mapping[str, Any], *, retry_after: float | None = None) -> ApiError:
    """The exception for a ``Status`` object, whether it came as a response body or as a watch's ERROR event."""
    code = int(status.get("code") or 500)
    reason = str(status.get("reason") or "")
    details = status.get("details") or {}
    causes = tuple(
        Cause(str(c.get("reason") or ""), str(c.get("message") or ""), str(c.get("field") or ""))
        for c in details.get("causes") or ()
    )
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code, ApiError)
    for cause in causes:
        kind = _BY_CAUSE.get((kind, cause.reason), kind)
    if retry_after is None and details.get("retryAfterSeconds"):
        retry_after = float(details["retryAfterSeconds"])
    return kind(str(status.get("message") or ""), code=code, reason=reason, causes=causes, retry_after=retry_after)


def error_from_response(code: int, body: bytes, *, retry_after: float | None = None) -> ApiError:
    """The exception for an HTTP error answer, also where a proxy wrote plain text instead of a ``Status``."""
    try:
        status = msgspec.json.decode(body)
    except msgspec.DecodeError:
        status = None
    if not isinstance(status, dict) or status.get("kind") != "Status":
        status = {"message": body[:512].decode("utf-8", "replace").strip()}
    if code == 404 and (status.get("kind") != "Status" or status.get("message") == UNKNOWN_RESOURCE):
        status["message"] = f"{status['message']} ({NOT_SERVED})"
    return error_from_status({**status, "code": code}, retry_after=retry_after)
