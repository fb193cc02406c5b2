"""Declared permissions and the rules made of them."""

import pytest

from controllers.runtime.errors import ConfigurationError
from controllers.runtime.meta import KubeObject, Resource
from controllers.runtime.rbac import Declaration, Permission, permissions, rules


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


def test_a_verb_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(
        ConfigurationError, match=r"nodes.*: there is no verb 'lst': use one of get, list, watch, create"
    ):
        permissions(Node, "get", "lst")
    assert permissions(Node, "deletecollection", "approve")
