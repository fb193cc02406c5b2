"""The ResourceClaimTemplate that a domain hands to its workers."""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from controllers.api import nvidia
from controllers.api.dra import DraApi, ResourceClaimTemplate
from controllers.api.nvidia import ComputeDomain
from controllers.runtime import owner_reference
from controllers.runtime.names import MAX_NAME

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_SUBDOMAIN = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*")


class TemplateState(Enum):
    """What stands under the name that a domain asks for."""

    MISSING = "missing"
    OURS = "ours"
    OURS_TERMINATING = "ours, being deleted"
    FOREIGN = "somebody else's"


def problems(domain: ComputeDomain) -> tuple[str, ...]:
    """Why a domain cannot be served, each with the field and the fix; empty where it can.

    The CRD's schema refuses most of this, but it lets a domain without ``spec`` in, and an older or edited CRD may let
    in the rest.
    """
    spec = domain.spec
    if spec is None:
        return ("spec is missing: set spec.channel.resourceClaimTemplate.name",)
    found = []
    name, mode = domain.template_name, spec.channel.allocation_mode
    if not name:
        found.append("spec.channel.resourceClaimTemplate.name is empty: name the ResourceClaimTemplate to generate")
    elif len(name) > MAX_NAME or not _DNS_SUBDOMAIN.fullmatch(name):
        found.append(
            f"spec.channel.resourceClaimTemplate.name {name[:60]!r} cannot name an object: use at most {MAX_NAME} "
            "characters of a-z, 0-9, '-' and '.', beginning and ending with a letter or digit"
        )
    if mode not in nvidia.ALLOCATION_MODES:
        found.append(f"spec.channel.allocationMode {mode[:60]!r} is unknown: use Single or All")
    if spec.num_nodes < 0:
        found.append(f"spec.numNodes is {spec.num_nodes}: use 0 or more")
    return tuple(found)


def desired_template(domain: ComputeDomain, dra: DraApi) -> Mapping[str, Any]:
    """The template of a valid domain, with the server's defaults written out."""
    return {
        "metadata": {
            "name": domain.template_name,
            "namespace": domain.namespace,
            "labels": {nvidia.DOMAIN_KEY: domain.uid, nvidia.TARGET_LABEL: "Workload"},
            "finalizers": [nvidia.DOMAIN_KEY],
            "ownerReferences": [owner_reference(domain)],
        },
        "spec": desired_spec(domain, dra),
    }


def desired_spec(domain: ComputeDomain, dra: DraApi) -> Mapping[str, Any]:
    """The template's spec: one channel, and the configuration that names the domain."""
    mode = domain.spec.channel.allocation_mode if domain.spec else "Single"
    parameters = nvidia.channel_parameters(domain.uid, mode)
    return {
        "spec": {
            "devices": {
                "requests": [dra.request(nvidia.CHANNEL_REQUEST, nvidia.CHANNEL_CLASS)],
                "config": [
                    {
                        "requests": [nvidia.CHANNEL_REQUEST],
                        "opaque": {"driver": nvidia.DRIVER, "parameters": parameters},
                    }
                ],
            }
        }
    }


def state_of(template: ResourceClaimTemplate | None, domain: ComputeDomain, dra: DraApi) -> TemplateState:
    """Compares what stands under the domain's template name with what the domain would make.

    Only namespace, name, uid label and spec together make a template ours: a label alone can be put on by anybody.
    """
    if template is None:
        return TemplateState.MISSING
    ours = (
        template.namespace == domain.namespace
        and template.name == domain.template_name
        and template.metadata.labels.get(nvidia.DOMAIN_KEY) == domain.uid
        and _same_spec(template.spec, desired_spec(domain, dra))
    )
    if not ours:
        return TemplateState.FOREIGN
    return TemplateState.OURS_TERMINATING if template.deleting else TemplateState.OURS


def _same_spec(present: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
    """Servers write an empty ``metadata`` into a template's spec; one with content is not of our making."""
    return {key: value for key, value in present.items() if value} == desired
