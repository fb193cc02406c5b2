"""From error answers to exceptions."""

from typing import Any

import msgspec
import pytest

from controllers.runtime import errors
from controllers.runtime.errors import ApiError, Cause, error_from_response, error_from_status

Json = dict[str, Any]


def status(code: int, reason: str = "", *causes: Json, **details: Any) -> Json:
    told = {"causes": list(causes), **details}
    return {"kind": "Status", "code": code, "reason": reason, "message": "m", "details": told}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (status(400, "BadRequest"), errors.BadRequest),
        (status(401, "Unauthorized"), errors.Unauthorized),
        (status(403, "Forbidden"), errors.Forbidden),
        (status(403, "Forbidden", {"reason": "NamespaceTerminating"}), errors.NamespaceTerminating),
        (status(404, "NotFound"), errors.NotFound),
        (status(405, "MethodNotAllowed"), errors.MethodNotAllowed),
        (status(409, "Conflict"), errors.Conflict),
        (status(409, "AlreadyExists"), errors.AlreadyExists),
        (status(409, "Conflict", {"reason": "FieldManagerConflict", "field": ".spec.a"}), errors.FieldConflict),
        (status(410, "Expired"), errors.Expired),
        (status(410, "Gone"), errors.Expired),
        (status(415, "UnsupportedMediaType"), errors.UnsupportedMediaType),
        (status(422, "Invalid"), errors.Invalid),
        (status(429, "TooManyRequests"), errors.TooManyRequests),
        (status(500, "InternalError"), errors.InternalError),
        (status(503, "ServiceUnavailable"), errors.ServiceUnavailable),
        (status(504, "Timeout"), errors.ServerTimeout),
        (status(504, "Timeout", {"reason": "ResourceVersionTooLarge"}), errors.ResourceVersionTooLarge),
        (status(418, "Teapot"), ApiError),
    ],
)
def test_each_answer_has_its_exception(answer: Json, kind: type[ApiError]) -> None:
    error = error_from_status(answer)
    assert type(error) is kind
    assert error.code == answer["code"]
    assert str(error) == f"{answer['code']} {answer['reason']}: m"


def test_the_reason_goes_before_the_code() -> None:
    assert type(error_from_status(status(500, "AlreadyExists"))) is errors.AlreadyExists


def test_a_cause_counts_only_under_its_own_error() -> None:
    assert type(error_from_status(status(404, "NotFound", {"reason": "FieldManagerConflict"}))) is errors.NotFound


def test_one_telling_cause_among_many_is_found() -> None:
    causes = [{"reason": "FieldValueInvalid"}, {"reason": "FieldManagerConflict"}, {"reason": "FieldValueInvalid"}]
    assert type(error_from_status(status(409, "Conflict", *causes))) is errors.FieldConflict


def test_causes_name_field_and_rule() -> None:
    known = {"reason": "r", "message": "m", "field": "spec.x"}
    error = error_from_status(status(422, "Invalid", known, {"field": None}))
    assert error.causes == (Cause("r", "m", "spec.x"), Cause())


@pytest.mark.parametrize("answer", [{}, {"code": None, "details": None, "message": None, "reason": None}])
def test_an_empty_status_is_still_an_error(answer: Json) -> None:
    error = error_from_status(answer)
    assert (type(error), error.code, str(error)) == (errors.InternalError, 500, "500 Unknown: ")


def test_the_header_goes_before_the_details_for_the_time_to_wait() -> None:
    answer = status(429, "TooManyRequests", retryAfterSeconds=7)
    assert error_from_status(answer).retry_after == 7.0
    assert error_from_status(answer, retry_after=2.0).retry_after == 2.0
    assert error_from_status(status(429)).retry_after is None


def test_plain_text_of_a_proxy_becomes_the_message_cut_to_size() -> None:
    error = error_from_response(503, b" upstream \xff down\n" + b"x" * 5000)
    assert type(error) is errors.ServiceUnavailable
    assert error.message.startswith("upstream \ufffd down")
    assert len(error.message) <= 512


@pytest.mark.parametrize("body", [b"[]", b'"no"', b'{"kind":"Pod"}', b"", b"null"])
def test_a_body_that_is_no_status_still_gives_the_error_of_its_code(body: bytes) -> None:
    assert type(error_from_response(404, body)) is errors.NotFound


def test_the_http_status_goes_before_the_code_in_the_body() -> None:
    assert error_from_response(404, msgspec.json.encode(status(500))).code == 404


def test_everything_raised_on_purpose_has_one_root() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Exception)]
    assert len(kinds) > 20
    assert all(issubclass(kind, errors.RuntimeFault) for kind in kinds)


@pytest.mark.parametrize(
    ("body", "served"),
    [
        (b"404 page not found\n", False),
        (b'{"kind":"Status","code":404,"message":"the server could not find the requested resource"}', False),
        (b'{"kind":"Status","code":404,"reason":"NotFound","message":"nodes \\"n\\" not found"}', True),
    ],
)
def test_a_path_that_is_not_served_asks_for_the_crd_and_a_missing_object_does_not(body: bytes, served: bool) -> None:
    error = error_from_response(404, body)
    assert isinstance(error, errors.NotFound)
    assert ("is the CRD of the kind installed" in str(error)) is not served
