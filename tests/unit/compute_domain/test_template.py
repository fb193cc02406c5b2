"""The generated template: what a valid domain is, what it asks for, and whose a template is."""

from typing import Any

import msgspec
import pytest

from controllers.api import nvidia
from controllers.api.dra import ResourceClaimTemplate, dra_api
from controllers.api.nvidia import ComputeDomain
from controllers.compute_domain.template import TemplateState, desired_spec, desired_template, problems, state_of
from tests.unit.compute_domain.world import GONE_AT, OTHER_UID, UID, V1, domain, template_of

BARE = ComputeDomain.decode(b'{"metadata":{"name":"d","namespace":"a"}}')


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (BARE, "spec is missing"),
        (domain(template=""), "spec.channel.resourceClaimTemplate.name is empty"),
        (domain(template="Upper"), "spec.channel.resourceClaimTemplate.name 'Upper' cannot name"),
        (domain(template="-a"), "spec.channel.resourceClaimTemplate.name"),
        (domain(template="a-"), "spec.channel.resourceClaimTemplate.name"),
        (domain(template="a..b"), "spec.channel.resourceClaimTemplate.name"),
        (domain(template="a/../b"), "spec.channel.resourceClaimTemplate.name"),
        (domain(template="a\n"), "spec.channel.resourceClaimTemplate.name"),
        (domain(template="a" * 254), "at most 253"),
        (domain(mode="Some"), "spec.channel.allocationMode 'Some' is unknown: use Single or All"),
        (domain(mode=""), "spec.channel.allocationMode"),
        (domain(nodes=-1), "spec.numNodes is -1"),
    ],
)
def test_what_cannot_be_served_is_named_with_its_field(wrong: ComputeDomain, field: str) -> None:
    (problem,) = problems(wrong)
    assert field in problem
    assert len(problem) < 400


@pytest.mark.parametrize(
    "valid", [domain(), domain(mode="All", nodes=5), domain(template="a" * 253), domain(template="a-b.c.9")]
)
def test_a_valid_domain_has_no_problem(valid: ComputeDomain) -> None:
    assert problems(valid) == ()


def test_every_problem_is_named() -> None:
    assert len(problems(domain(template="", mode="x", nodes=-5))) == 3


def test_the_template_in_v1() -> None:
    assert desired_template(domain(mode="All"), V1) == {
        "metadata": {
            "name": "t",
            "namespace": "a",
            "labels": {
                "resource.nvidia.com/computeDomain": UID,
                "resource.nvidia.com/computeDomainTarget": "Workload",
            },
            "finalizers": ["resource.nvidia.com/computeDomain"],
            "ownerReferences": [
                {
                    "apiVersion": "resource.nvidia.com/v1beta1",
                    "kind": "ComputeDomain",
                    "name": "d",
                    "uid": UID,
                    "controller": True,
                }
            ],
        },
        "spec": {
            "spec": {
                "devices": {
                    "requests": [
                        {
                            "name": "channel",
                            "exactly": {
                                "deviceClassName": "compute-domain-default-channel.nvidia.com",
                                "allocationMode": "ExactCount",
                                "count": 1,
                            },
                        }
                    ],
                    "config": [
                        {
                            "requests": ["channel"],
                            "opaque": {
                                "driver": "compute-domain.nvidia.com",
                                "parameters": {
                                    "apiVersion": "resource.nvidia.com/v1beta1",
                                    "kind": "ComputeDomainChannelConfig",
                                    "domainID": UID,
                                    "allocationMode": "All",
                                },
                            },
                        }
                    ],
                }
            }
        },
    }


def test_in_v1beta1_the_request_is_flat() -> None:
    (request,) = desired_spec(domain(), dra_api("v1beta1"))["spec"]["devices"]["requests"]
    assert request == {
        "name": "channel",
        "deviceClassName": "compute-domain-default-channel.nvidia.com",
        "allocationMode": "ExactCount",
        "count": 1,
    }


def test_the_config_is_the_same_in_every_version() -> None:
    configs = [desired_spec(domain(), dra_api(v))["spec"]["devices"]["config"] for v in ("v1", "v1beta2", "v1beta1")]
    assert configs[0] == configs[1] == configs[2]


def changed(**metadata: Any) -> ResourceClaimTemplate:
    return template_of(domain(), **metadata)


def with_spec(spec: Any) -> ResourceClaimTemplate:
    raw = msgspec.to_builtins(template_of(domain()))
    return ResourceClaimTemplate.decode(msgspec.json.encode({**raw, "spec": spec}))


GOOD_SPEC = desired_spec(domain(), V1)["spec"]
LABELS = {nvidia.DOMAIN_KEY: UID}


@pytest.mark.parametrize(
    ("template", "state"),
    [
        (None, TemplateState.MISSING),
        (template_of(domain()), TemplateState.OURS),
        (changed(labels=LABELS), TemplateState.OURS),
        (changed(ownerReferences=[], finalizers=[]), TemplateState.OURS),
        (changed(deletionTimestamp=GONE_AT), TemplateState.OURS_TERMINATING),
        (changed(labels={}), TemplateState.FOREIGN),
        (changed(labels={nvidia.DOMAIN_KEY: OTHER_UID}), TemplateState.FOREIGN),
        (changed(namespace="b"), TemplateState.FOREIGN),
        (changed(name="other"), TemplateState.FOREIGN),
        (changed(labels={}, deletionTimestamp=GONE_AT), TemplateState.FOREIGN),
        (template_of(domain(mode="All")), TemplateState.FOREIGN),
        (with_spec({"spec": GOOD_SPEC}), TemplateState.OURS),
        (with_spec({"spec": GOOD_SPEC, "metadata": None}), TemplateState.OURS),
        (with_spec({"spec": GOOD_SPEC, "metadata": {"labels": {"a": "b"}}}), TemplateState.FOREIGN),
        (with_spec({"spec": {"devices": {"requests": GOOD_SPEC["devices"]["requests"]}}}), TemplateState.FOREIGN),
        (with_spec({"spec": GOOD_SPEC, "more": {"x": 1}}), TemplateState.FOREIGN),
        (with_spec({}), TemplateState.FOREIGN),
    ],
)
def test_only_label_name_and_spec_together_make_a_template_ours(
    template: ResourceClaimTemplate | None, state: TemplateState
) -> None:
    assert state_of(template, domain(), V1) is state
