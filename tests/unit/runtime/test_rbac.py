"""Declared permissions and the rules made of them."""

import pytest

from controllers.runtime.errors import ConfigurationError
from controllers.runtime.meta import KubeObject, Resource
from controllers.runtime.rbac import Declaration, Permission, manifests, permissions, rules


class Thing(KubeObject, frozen=True, kw_only=True):
    resource = Resource("example.com", "v1", "things", "Thing", namespaced=True)


class Node(KubeObject, frozen=True, kw_only=True):
    resource = Resource("", "v1", "nodes", "Node", namespaced=False)


class Pod(KubeObject, frozen=True, kw_only=True):
    resource = Resource("", "v1", "pods", "Pod", namespaced=True)


def test_a_subresource_is_part_of_the_resource_name() -> None:
    assert permissions(Node, "patch", subresource="status") == {Permission("", "nodes/status", "patch")}


def test_the_version_does_not_matter() -> None:
    assert Permission.of(Thing.resource, "get") == Permission.of(Thing.resource.at("v2"), "get")


def test_rules_group_resources_with_the_same_verbs_and_never_cross_groups() -> None:
    granted = permissions(Pod, "list", "get") | permissions(Node, "get", "list") | permissions(Thing, "list", "get")
    assert rules(granted | permissions(Node, "patch", subresource="status")) == [
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
        {"apiGroups": ["example.com"], "resources": ["things"], "verbs": ["get", "list"]},
    ]


def test_rules_grant_exactly_what_was_declared_in_any_order() -> None:
    granted = permissions(Node, "get", "watch") | permissions(Pod, "get") | permissions(Thing, "create")
    made = rules(sorted(granted, reverse=True))
    assert made == rules(sorted(granted))
    unfolded = {
        Permission(group, resource, verb)
        for rule in made
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert unfolded == granted


def test_nothing_declared_is_no_rule() -> None:
    assert rules(()) == []


def test_everything_is_both_scopes() -> None:
    declaration = Declaration("x", permissions(Node, "get"), permissions(Thing, "create"))
    assert declaration.everything == permissions(Node, "get") | permissions(Thing, "create")


READ_NODES = frozenset({Permission("", "nodes", "list"), Permission("", "nodes", "watch")})
WRITE_CLIQUES = frozenset({Permission("resource.nvidia.com", "computedomaincliques", "create")})


def test_rights_of_several_controllers_are_merged_and_split_by_scope() -> None:
    one = Declaration("one", READ_NODES, WRITE_CLIQUES)
    two = Declaration("two", frozenset({Permission("", "nodes", "patch")}))
    assert manifests("gpu-mirage-x", "gpu-mirage", [one, two]) == [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "gpu-mirage-x"},
            "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "patch", "watch"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "gpu-mirage-x"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gpu-mirage-x"},
            "subjects": [{"kind": "ServiceAccount", "name": "gpu-mirage-x", "namespace": "gpu-mirage"}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "gpu-mirage-x", "namespace": "gpu-mirage"},
            "rules": [
                {"apiGroups": ["resource.nvidia.com"], "resources": ["computedomaincliques"], "verbs": ["create"]}
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "gpu-mirage-x", "namespace": "gpu-mirage"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "gpu-mirage-x"},
            "subjects": [{"kind": "ServiceAccount", "name": "gpu-mirage-x", "namespace": "gpu-mirage"}],
        },
    ]


def test_a_scope_without_rights_gets_no_role() -> None:
    kinds = [m["kind"] for m in manifests("a", "ns", [Declaration("one", frozenset(), WRITE_CLIQUES)])]
    assert kinds == ["Role", "RoleBinding"]


def test_rights_of_the_whole_cluster_are_not_repeated_for_the_namespace() -> None:
    kinds = [m["kind"] for m in manifests("a", "ns", [Declaration("one", READ_NODES, READ_NODES)])]
    assert kinds == ["ClusterRole", "ClusterRoleBinding"]


def test_the_driver_namespace_is_the_accounts_own() -> None:
    role, binding = manifests("a", "ns", [Declaration("one", frozenset(), WRITE_CLIQUES)])

    assert role["metadata"] == binding["metadata"] == {"name": "a", "namespace": "ns"}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "a", "namespace": "ns"}]


def test_a_verb_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(
        ConfigurationError, match=r"nodes.*: there is no verb 'lst': use one of get, list, watch, create"
    ):
        permissions(Node, "get", "lst")
    assert permissions(Node, "deletecollection", "approve")
