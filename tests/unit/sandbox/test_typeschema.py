"""The structures of built-in kinds, as a real API server describes them."""

import pytest

from controllers.sandbox import typeschema


def test_a_pod_has_containers_by_name_and_tolerations_as_a_whole() -> None:
    spec = typeschema.builtin("", "v1", "Pod").field("spec")
    assert (spec.field("containers").list_kind, spec.field("containers").map_keys) == ("map", ("name",))
    assert spec.field("containers").patch_merge_key == "name"
    assert spec.field("tolerations").list_kind == "atomic"


def test_keys_of_ports_have_their_default() -> None:
    port = typeschema.builtin("", "v1", "Pod").field("spec").field("containers").element().field("ports").element()
    assert port.field("protocol").default == "TCP"


def test_selectors_are_atomic() -> None:
    assert typeschema.builtin("apps", "v1", "Deployment").field("spec").field("selector").map_kind == "atomic"


def test_foreign_json_inside_a_kind_may_have_any_member() -> None:
    config = typeschema.builtin("resource.k8s.io", "v1", "ResourceClaim").field("spec").field("devices").field("config")
    parameters = config.element().field("opaque").field("parameters")
    assert parameters.declares("anything")
    assert not config.element().declares("anything")


def test_a_type_that_contains_itself_can_be_walked() -> None:
    node = typeschema.builtin("apiextensions.k8s.io", "v1", "CustomResourceDefinition").field("spec")
    node = node.field("versions").element().field("schema").field("openAPIV3Schema")
    for _ in range(50):
        node = node.field("properties").field("any")
    assert node.declares("x-kubernetes-list-type")


def test_an_empty_pod_has_what_is_always_written() -> None:
    assert typeschema.zero(typeschema.builtin("", "v1", "Pod")) == {
        "metadata": {},
        "spec": {"containers": None},
        "status": {},
    }


def test_the_kinds_of_the_controllers_are_known() -> None:
    needed = {
        "v1/Node",
        "v1/Pod",
        "resource.k8s.io/v1/ResourceSlice",
        "coordination.k8s.io/v1/Lease",
        "events.k8s.io/v1/Event",
    }
    assert needed <= typeschema.builtin_kinds()


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(typeschema.UnknownKind, match=r"example\.com/v1/Nothing"):
        typeschema.builtin("example.com", "v1", "Nothing")
