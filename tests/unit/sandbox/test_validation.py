"""What the recorded answers do not show of defaults, pruning and validation."""

from typing import Any

import pytest

from controllers.sandbox import typeschema, validation
from controllers.sandbox.typeschema import TypeSchema, custom


def schema(**properties: Any) -> TypeSchema:
    """A kind whose spec has these properties."""
    return custom({"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}})


def faults(kind: TypeSchema, spec: Any, old: Any = None) -> list[str]:
    """`field: message` of every fault of a spec."""
    before = None if old is None else {"spec": old}
    return [f"{cause.field}: {cause.message}" for cause in validation.validate({"spec": spec}, before, kind)]


def test_what_did_not_change_is_not_judged_again() -> None:
    kind = schema(a={"type": "integer", "maximum": 1}, b={"type": "string"})
    assert faults(kind, {"a": 5, "b": "new"}, {"a": 5, "b": "old"}) == []
    assert len(faults(kind, {"a": 6, "b": "old"}, {"a": 5, "b": "old"})) == 1


def test_an_item_is_compared_with_the_one_of_its_key() -> None:
    item = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "integer", "maximum": 1}},
        "x-kubernetes-validations": [{"rule": "self.size >= oldSelf.size", "message": "never smaller"}],
    }
    kind = schema(
        items={
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": item,
        }
    )
    old = {"items": [{"name": "a", "size": 5}, {"name": "b", "size": 1}]}
    assert faults(kind, {"items": [{"name": "b", "size": 1}, {"name": "a", "size": 5}]}, old) == []
    shrunk = {"items": [{"name": "b", "size": 0}, {"name": "a", "size": 5}]}
    assert faults(kind, shrunk, old) == ["spec.items[0]: Invalid value: never smaller"]


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [
        ("date-time", "2026-01-01T00:00:00Z", True),
        ("date-time", "2026-13-01T00:00:00Z", False),
        ("date", "2026-01-01", True),
        ("date", "01.01.2026", False),
        ("ipv4", "10.0.0.1", True),
        ("ipv4", "10.0.0.256", False),
        ("ipv6", "::1", True),
        ("byte", "YQ==", True),
        ("byte", "%", False),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", True),
        ("uuid", "123", False),
        ("unheard-of", "anything", True),
    ],
)
def test_a_text_has_the_format_that_is_asked_for(name: str, value: str, fits: bool) -> None:
    assert (faults(schema(a={"type": "string", "format": name}), {"a": value}) == []) is fits


def test_a_value_must_match_the_schemas_that_are_combined() -> None:
    parts = [{"required": ["a"]}, {"required": ["b"]}]
    members = {"a": {"type": "string"}, "b": {"type": "string"}}
    one = schema(x={"type": "object", "properties": members, "oneOf": parts})
    some = schema(x={"type": "object", "properties": members, "anyOf": parts})
    assert faults(one, {"x": {"a": "1"}}) == faults(some, {"x": {"a": "1", "b": "2"}}) == []
    assert len(faults(one, {"x": {"a": "1", "b": "2"}})) == len(faults(some, {"x": {}})) == 1


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("FieldValueForbidden", "Forbidden: no"),
        ("FieldValueRequired", "Required value: no"),
        ("FieldValueInvalid", "Invalid value: no"),
    ],
)
def test_a_rule_has_its_own_reason_and_field(reason: str, message: str) -> None:
    rule = {"rule": "self.a == 1", "message": "no", "reason": reason, "fieldPath": ".a"}
    kind = custom(
        {
            "type": "object",
            "properties": {
                "spec": {
                    "type": "object",
                    "properties": {"a": {"type": "integer"}},
                    "x-kubernetes-validations": [rule],
                }
            },
        }
    )
    (cause,) = validation.validate({"spec": {"a": 2}}, None, kind)
    assert (cause.field, cause.reason, cause.message) == ("spec.a", reason, message)


def test_an_embedded_object_keeps_its_envelope() -> None:
    kind = schema(
        inner={"type": "object", "x-kubernetes-embedded-resource": True, "properties": {"a": {"type": "string"}}}
    )
    value = {"spec": {"inner": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n"}, "a": "b", "c": "d"}}}
    assert validation.prune(value, kind) == ["spec.inner.c"]
    assert value["spec"]["inner"]["metadata"] == {"name": "n"}


def test_an_empty_map_of_a_built_in_kind_goes_and_an_empty_object_stays() -> None:
    pod: dict[str, Any] = {
        "metadata": {"labels": {}, "managedFields": []},
        "spec": {"nodeSelector": {}, "containers": [], "volumes": [{"name": "v", "emptyDir": {}}]},
    }
    validation.default(pod, typeschema.builtin("", "v1", "Pod"))
    assert pod["metadata"] == {"managedFields": []}
    assert pod["spec"]["volumes"] == [{"name": "v", "emptyDir": {}}]
    assert pod["spec"]["containers"] == []
    assert "nodeSelector" not in pod["spec"]


def test_a_request_for_a_device_is_for_one_unless_it_says_otherwise() -> None:
    kind = typeschema.builtin("resource.k8s.io", "v1", "ResourceClaim")

    def filled(**exactly: Any) -> Any:
        claim = {"spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}}
        return validation.default(claim, kind)["spec"]["devices"]["requests"][0]["exactly"]

    assert filled(deviceClassName="c") == {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}
    assert filled(allocationMode="All") == {"allocationMode": "All"} | {"deviceClassName": ""}


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("a", "Always"),
        ("a:latest", "Always"),
        ("a:1", "IfNotPresent"),
        ("host:5000/a", "Always"),
        ("host:5000/a:1", "IfNotPresent"),
        ("a@sha256:0", "IfNotPresent"),
    ],
)
def test_an_image_without_a_version_is_always_pulled(image: str, policy: str) -> None:
    pod = {"spec": {"containers": [{"name": "a", "image": image}]}}
    validation.default(pod, typeschema.builtin("", "v1", "Pod"))
    assert pod["spec"]["containers"][0]["imagePullPolicy"] == policy
