"""The kinds that sequences are about: what their objects may hold, and where they are served."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.contract.fuzz.shapes import ListMap, ListOf, MapOf, Record, Shape, choice, named


@dataclass(frozen=True)
class Kind:
    """A resource and what its objects may hold."""

    resource: str
    api_version: str
    kind: str
    content: Record
    status: Record | None = None
    namespaced: bool = True
    custom: bool = False
    weight: float = 1.0
    fragment: Record | None = None
    """What patches may say, where that is not simply a part of the content."""
    spoilable: bool = True
    """Whether bodies with any value in any place are sent. What is wrong with most built-in kinds is judged by the real
    server only."""

    @property
    def removable(self) -> frozenset[str]:
        """The members of spec and status without which the object is still valid."""
        parts = [self.content.required.get("spec"), self.content.optional.get("spec"), self.status]
        return frozenset(name for part in parts if isinstance(part, Record) for name in part.optional)

    @property
    def root(self) -> str:
        """The path below which the resource is served."""
        prefix = "apis" if "/" in self.api_version else "api"
        scope = "/namespaces/${namespace}" if self.namespaced else ""
        return f"/{prefix}/{self.api_version}{scope}/{self.resource}"


LETTERS = choice("1", "2", "x")
CONDITIONS = ListMap(
    tuple({"type": name} for name in ("Ready", "Other", "Third")),
    Record(
        {"status": choice("True", "False", "Unknown")},
        {"reason": choice("One", "Two"), "message": choice("m", "n", "")},
    ),
)

CONFIG_MAP = Kind(
    "configmaps",
    "v1",
    "ConfigMap",
    Record(
        optional={
            "data": MapOf(("k", "l", "m"), choice("1", "2", "")),
            "binaryData": MapOf(("b", "c"), choice("AA==", "AQ==")),
        }
    ),
)

GADGET = Kind(
    "gadgets",
    "contract.example.com/v1",
    "Gadget",
    Record(
        {
            "spec": Record(
                {"size": choice(3, 4, 5)},
                {
                    "least": choice(0, 1, 2, 3),
                    "mode": choice("All", "Single"),
                    "label": choice("ab", "cde"),
                    "ratio": choice(0.5, 1, 1.5),
                    "port": choice(1, "http"),
                    "maybe": choice(None, "m"),
                    "fixed": choice("f", "f", "f", "g"),
                    "tags": ListOf(choice("a", "b", "c"), distinct=True),
                    "steps": ListOf(choice("x", "y", "z"), least=1),
                    "parts": named("a", "b", "c", weight=choice(1, 2), note=choice("p", "q")),
                    "doors": ListMap(
                        ({"number": 1}, {"number": 2}, {"number": 1, "kind": "UDP"}, {"number": 2, "kind": "UDP"}),
                        Record({}, {"open": choice(True, False)}),
                    ),
                    "options": MapOf(("k", "l"), LETTERS),
                    "deep": MapOf(("x", "y", "z"), Record({}, {"a": LETTERS, "b": LETTERS})),
                    "whole": Record({}, {"a": LETTERS, "b": LETTERS}),
                    "inner": Record({}, {"a": LETTERS, "b": LETTERS}),
                    "free": MapOf(
                        ("g", "h", "known"), choice(1, "t", True, None, [1], {"z": 1}, {}, [{"q": 1}], 1.5, [])
                    ),
                },
            )
        }
    ),
    Record({}, {"phase": choice("P", "Q"), "conditions": CONDITIONS}),
    custom=True,
    weight=3.0,
)

FIXED_SPEC: Any = {
    "containers": [{"name": "a", "image": "x:1"}, {"name": "b", "image": "y:1", "env": [{"name": "E", "value": "1"}]}]
}


def _pod_spec(*images: str) -> dict[str, Any]:
    containers = [{**c, "image": image} for c, image in zip(FIXED_SPEC["containers"], images, strict=True)]
    return {**FIXED_SPEC, "containers": containers}


POD = Kind(
    "pods",
    "v1",
    "Pod",
    # All but the images of a pod stays as it was created.
    Record({"spec": choice(_pod_spec("x:1", "y:1"), _pod_spec("x:2", "y:1"), _pod_spec("x:1", "y:3"))}),
    Record(
        {},
        {
            "phase": choice("Pending", "Running"),
            "conditions": CONDITIONS,
            "podIPs": choice([{"ip": "10.0.0.1"}]),
            "message": choice("m", ""),
            "hostIP": choice("10.1.0.1"),
        },
    ),
    fragment=Record({}, {"spec": Record({}, {"containers": named("a", "b", image=choice("x:1", "x:3"))})}),
    spoilable=False,
)

_ENV = named("E", "F", "G", value=choice("1", "2", ""))
_PORTS = ListMap(
    ({"containerPort": 80}, {"containerPort": 81}, {"containerPort": 80, "protocol": "UDP"}),
    Record(),
)
_RESOURCES = Record(
    {}, {"requests": MapOf(("cpu", "memory"), choice("1", "2")), "limits": MapOf(("cpu",), choice("3"))}
)
_CONTAINERS = ListMap(
    ({"name": "a"}, {"name": "b"}, {"name": "c"}),
    Record(
        {"image": choice("x", "x:1", "y:1")},
        {
            "env": _ENV,
            "ports": _PORTS,
            "args": ListOf(choice("p", "q"), most=2),
            "resources": _RESOURCES,
            "imagePullPolicy": choice("Always", "Never"),
            "volumeMounts": ListMap(({"mountPath": "/v"}, {"mountPath": "/w"}), Record({"name": choice("v")})),
        },
    ),
    least=1,
)
_TOLERATIONS = ListOf(choice({"key": "k", "operator": "Exists"}, {"key": "l", "value": "v"}), most=2)
_TEMPLATE = Record(
    {
        "metadata": Record({"labels": choice({"app": "x"}, {"app": "x", "b": "1"})}),
        "spec": Record(
            {"containers": _CONTAINERS, "volumes": choice([{"name": "v", "emptyDir": {}}])},
            {
                "tolerations": _TOLERATIONS,
                "nodeSelector": MapOf(("k", "l"), choice("1", "2")),
                "terminationGracePeriodSeconds": choice(1, 30),
                "hostNetwork": choice(False),
            },
        ),
    }
)
_DEPLOYMENT_PART = {
    "replicas": choice(0, 1, 2),
    "minReadySeconds": choice(0, 5),
    "paused": choice(True, False),
    "strategy": choice({"type": "RollingUpdate"}, {"rollingUpdate": {"maxSurge": 1}}),
    "revisionHistoryLimit": choice(1, 10),
}
_POD_PART: Mapping[str, Shape] = {
    "containers": _CONTAINERS,
    "nodeSelector": MapOf(("k", "l"), choice("1", "2")),
    "tolerations": _TOLERATIONS,
}
_SELECTOR = choice({"matchLabels": {"app": "x"}})
DEPLOYMENT = Kind(
    "deployments",
    "apps/v1",
    "Deployment",
    Record({"spec": Record({"selector": _SELECTOR, "template": _TEMPLATE}, _DEPLOYMENT_PART)}),
    Record({}, {"observedGeneration": choice(1, 2), "replicas": choice(1, 2), "conditions": CONDITIONS}),
    fragment=Record(
        {},
        {"spec": Record({}, {**_DEPLOYMENT_PART, "template": Record({}, {"spec": Record({}, _POD_PART)})})},
    ),
    spoilable=False,
)

SECRET = Kind(
    "secrets",
    "v1",
    "Secret",
    Record(
        {},
        {
            "data": MapOf(("k", "l"), choice("AA==", "AQ==", "")),
            "stringData": MapOf(("k", "m"), choice("x", "y", "")),
            "type": choice("Opaque"),
        },
    ),
    spoilable=False,
)

SERVICE_ACCOUNT = Kind(
    "serviceaccounts",
    "v1",
    "ServiceAccount",
    Record(
        {},
        {
            "secrets": named("a", "b"),
            "imagePullSecrets": named("a", "b"),
            "automountServiceAccountToken": choice(True, False),
        },
    ),
    spoilable=False,
)

LEASE = Kind(
    "leases",
    "coordination.k8s.io/v1",
    "Lease",
    Record(
        {},
        {
            "spec": Record(
                {},
                {
                    "holderIdentity": choice("a", "b"),
                    "leaseDurationSeconds": choice(1, 15),
                    "leaseTransitions": choice(0, 1),
                    "renewTime": choice("2001-01-01T00:00:00.000000Z", "2001-01-01T00:00:01.500000Z"),
                },
            )
        },
    ),
    spoilable=False,
)

ROLE = Kind(
    "roles",
    "rbac.authorization.k8s.io/v1",
    "Role",
    Record(
        {},
        {
            "rules": ListOf(
                Record(
                    {
                        "verbs": ListOf(choice("get", "list"), least=1),
                        "apiGroups": choice([""], ["apps"]),
                        "resources": choice(["pods"], ["pods", "nodes"]),
                    },
                    {"resourceNames": ListOf(choice("a", "b"))},
                ),
                most=2,
            )
        },
    ),
    spoilable=False,
)

NODE = Kind(
    "nodes",
    "v1",
    "Node",
    Record(
        {},
        {
            "spec": Record(
                {},
                {
                    "unschedulable": choice(True, False),
                    "taints": ListOf(
                        choice(
                            {"key": "k", "effect": "NoSchedule"},
                            {"key": "l", "effect": "NoExecute", "value": "v"},
                            {"key": "m", "effect": "PreferNoSchedule", "value": ""},
                        ),
                        distinct=True,
                    ),
                },
            )
        },
    ),
    Record(
        {},
        {
            "phase": choice("Running", "Pending"),
            "conditions": CONDITIONS,
            "addresses": ListMap(
                ({"type": "InternalIP"}, {"type": "Hostname"}), Record({"address": choice("10.0.0.1", "10.0.0.2")})
            ),
            "capacity": MapOf(("cpu", "memory", "example.com/gpu"), choice("1", "2", "4")),
            "allocatable": choice({"cpu": "1"}, {"memory": "1", "cpu": "2"}),
            "images": ListOf(choice({"names": ["x"], "sizeBytes": 5}, {"names": ["y", "z"]}), most=2),
        },
    ),
    namespaced=False,
    spoilable=False,
)

_REQUEST = {"name": "r", "exactly": {"deviceClassName": "c.example.com"}}
CLAIM = Kind(
    "resourceclaims",
    "resource.k8s.io/v1",
    "ResourceClaim",
    Record({"spec": choice({"devices": {"requests": [_REQUEST]}})}),
    fragment=Record(),
    spoilable=False,
)
CLAIM_TEMPLATE = Kind(
    "resourceclaimtemplates",
    "resource.k8s.io/v1",
    "ResourceClaimTemplate",
    Record({"spec": choice({"metadata": {"labels": {"a": "1"}}, "spec": {"devices": {"requests": [_REQUEST]}}})}),
    fragment=Record(),
    spoilable=False,
)
DEVICE_CLASS = Kind(
    "deviceclasses",
    "resource.k8s.io/v1",
    "DeviceClass",
    Record(
        {
            "spec": Record(
                {}, {"selectors": ListOf(choice({"cel": {"expression": "true"}}, {"cel": {"expression": "false"}}))}
            )
        }
    ),
    namespaced=False,
    spoilable=False,
)
SLICE = Kind(
    "resourceslices",
    "resource.k8s.io/v1",
    "ResourceSlice",
    Record(
        {
            "spec": Record(
                {
                    "driver": choice("d.example.com"),
                    "nodeName": choice("n1"),
                    "pool": Record(
                        {"name": choice("p"), "generation": choice(1, 2), "resourceSliceCount": choice(1, 2)}
                    ),
                },
                {
                    "devices": named(
                        "d1",
                        "d2",
                        attributes=choice(
                            {"index": {"int": 1}},
                            {"index": {"int": 0}, "example.com/model": {"string": "s"}},
                            {"example.com/model": {"version": "1.2.3"}, "x": {"bool": False}},
                        ),
                        capacity=choice({"memory": {"value": "1Gi"}}, {"memory": {"value": "2"}}),
                    )
                },
            )
        }
    ),
    namespaced=False,
    spoilable=False,
)

_CHANNEL = Record(
    {"resourceClaimTemplate": choice({"name": "t"}, {"name": "t"}, {"name": "u"})},
    {"allocationMode": choice("All", "Single")},
)
DOMAIN = Kind(
    "computedomains",
    "resource.nvidia.com/v1beta1",
    "ComputeDomain",
    Record({"spec": Record({"channel": _CHANNEL}, {"numNodes": choice(0, 0, 1)})}),
    Record(
        {"status": choice("Ready", "NotReady")},
        {
            "nodes": ListMap(
                ({"name": "n1"}, {"name": "n2"}, {"name": "n3"}),
                Record(
                    {"ipAddress": choice("10.0.0.1", "10.0.0.2"), "cliqueID": choice("c.0", "")},
                    {"index": choice(0, 1, -1), "status": choice("Ready", "NotReady")},
                ),
            )
        },
    ),
    custom=True,
)

KINDS: Mapping[str, Kind] = {
    kind.resource: kind
    for kind in (
        CONFIG_MAP, GADGET, POD, DEPLOYMENT, SECRET, SERVICE_ACCOUNT, LEASE, ROLE, NODE, CLAIM, CLAIM_TEMPLATE,
        DEVICE_CLASS, SLICE, DOMAIN,
    )
}  # fmt: skip

SENTINELS: Mapping[str, Any] = {
    **{resource: {} for resource in KINDS},
    "gadgets": {"spec": {"size": 3}},
    "pods": {"spec": _pod_spec("x:1", "y:1")},
    "deployments": {
        "spec": {
            "selector": {"matchLabels": {"app": "x"}},
            "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "a", "image": "x"}]}},
        }
    },
    "resourceclaims": {"spec": {"devices": {"requests": [_REQUEST]}}},
    "resourceclaimtemplates": {"spec": {"spec": {"devices": {"requests": [_REQUEST]}}}},
    "resourceslices": {
        "spec": {
            "driver": "d.example.com",
            "nodeName": "n1",
            "pool": {"name": "s", "generation": 1, "resourceSliceCount": 1},
        }
    },
    "deviceclasses": {"spec": {}},
    "computedomains": {"spec": {"channel": {"resourceClaimTemplate": {"name": "t"}}}},
}
"""What an object needs at least, by resource."""
