"""Defaults of built-in kinds that the real server has in code and no schema tells.

They are those of Kubernetes 1.37 for the kinds that simulations and their tests create; other kinds are stored as sent.
"""

import base64
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final, TypeAlias

Object: TypeAlias = dict[str, Any]
Hook: TypeAlias = Callable[[Object], None]

QUARTER: Final = {"maxSurge": "25%", "maxUnavailable": "25%"}
FILE_MODE: Final = 420
"""Mode of the files in volumes, 0644."""


def fill(value: Object, type_name: str) -> None:
    """Fill in what an object of a type leaves out, in place; what lies deeper is filled in by its own type."""
    if hook := _HOOKS.get(type_name):
        hook(value)


def _with(**defaults: Any) -> Hook:
    def hook(value: Object) -> None:
        for name, preset in defaults.items():
            if value.get(name) is None:
                value[name] = deepcopy(preset)

    return hook


def _pod(pod: Object) -> None:
    spec = pod.setdefault("spec", {})
    _with(enableServiceLinks=True)(spec)
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = container.get("resources") or {}
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}


def _pod_spec(spec: Object) -> None:
    _with(
        dnsPolicy="ClusterFirst",
        restartPolicy="Always",
        schedulerName="default-scheduler",
        securityContext={},
        terminationGracePeriodSeconds=30,
    )(spec)
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account


def _container(container: Object) -> None:
    tag = str(container.get("image") or "").rpartition("/")[2].partition("@")[0].partition(":")[2]
    digest = "@" in str(container.get("image") or "")
    latest = not digest and tag in ("", "latest")
    _with(
        imagePullPolicy="Always" if latest else "IfNotPresent",
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
    )(container)


def _deployment_spec(spec: Object) -> None:
    _with(progressDeadlineSeconds=600, replicas=1, revisionHistoryLimit=10)(spec)
    _rolling(spec, "strategy", QUARTER)


def _daemon_set_spec(spec: Object) -> None:
    _with(revisionHistoryLimit=10)(spec)
    _rolling(spec, "updateStrategy", {"maxSurge": 0, "maxUnavailable": 1})


def _stateful_set_spec(spec: Object) -> None:
    _with(podManagementPolicy="OrderedReady", replicas=1, revisionHistoryLimit=10)(spec)
    _rolling(spec, "updateStrategy", {"partition": 0})


def _rolling(spec: Object, field: str, rolling: Object) -> None:
    strategy = spec.setdefault(field, {})
    _with(type="RollingUpdate")(strategy)
    if strategy["type"] == "RollingUpdate":
        strategy["rollingUpdate"] = {**rolling, **(strategy.get("rollingUpdate") or {})}


def _node_status(status: Object) -> None:
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


def _pod_status(status: Object) -> None:
    single, several = status.get("podIP"), status.get("podIPs")
    if several and not single:
        status["podIP"] = several[0].get("ip", "")
    elif single and (not several or several[0].get("ip") != single):
        # Old kubelets know of one address only, so that one counts.
        status["podIPs"] = [{"ip": single}]


def _service_spec(spec: Object) -> None:
    _with(internalTrafficPolicy="Cluster", sessionAffinity="None", type="ClusterIP")(spec)
    if spec["type"] == "ExternalName":
        spec.pop("internalTrafficPolicy", None)


def _service_port(port: Object) -> None:
    _with(protocol="TCP", targetPort=port.get("port"))(port)


def _device_request(request: Object) -> None:
    _with(allocationMode="ExactCount")(request)
    if request["allocationMode"] == "ExactCount":
        _with(count=1)(request)


def _custom_resource_definition(spec: Object) -> None:
    names = spec.get("names") or {}
    kind = names.get("kind")
    if kind:
        _with(listKind=f"{kind}List", singular=kind.lower())(names)
    _with(conversion={"strategy": "None"})(spec)


def _secret(secret: Object) -> None:
    _with(type="Opaque")(secret)
    plain = secret.pop("stringData", None)
    if plain:
        encoded = {key: base64.b64encode(str(value).encode()).decode() for key, value in plain.items()}
        secret["data"] = {**(secret.get("data") or {}), **encoded}


_CORE: Final = "io.k8s.api.core.v1"
_APPS: Final = "io.k8s.api.apps.v1"
_DEVICES: Final = "io.k8s.api.resource.v1"
_DEFINITIONS: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"
_RBAC: Final = "io.k8s.api.rbac.v1"
_HOOKS: Final[Mapping[str, Hook]] = {
    f"{_CORE}.Pod": _pod,
    f"{_CORE}.PodSpec": _pod_spec,
    f"{_CORE}.PodStatus": _pod_status,
    f"{_CORE}.Container": _container,
    f"{_CORE}.Probe": _with(failureThreshold=3, periodSeconds=10, successThreshold=1, timeoutSeconds=1),
    f"{_CORE}.HTTPGetAction": _with(path="/", scheme="HTTP"),
    f"{_CORE}.ConfigMapVolumeSource": _with(defaultMode=FILE_MODE),
    f"{_CORE}.SecretVolumeSource": _with(defaultMode=FILE_MODE),
    f"{_CORE}.DownwardAPIVolumeSource": _with(defaultMode=FILE_MODE),
    f"{_CORE}.ProjectedVolumeSource": _with(defaultMode=FILE_MODE),
    f"{_CORE}.ObjectFieldSelector": _with(apiVersion="v1"),
    f"{_CORE}.NodeStatus": _node_status,
    f"{_CORE}.ServiceSpec": _service_spec,
    f"{_CORE}.ServicePort": _service_port,
    f"{_CORE}.Secret": _secret,
    f"{_APPS}.DeploymentSpec": _deployment_spec,
    f"{_APPS}.DaemonSetSpec": _daemon_set_spec,
    f"{_APPS}.StatefulSetSpec": _stateful_set_spec,
    f"{_APPS}.ReplicaSetSpec": _with(replicas=1),
    f"{_DEVICES}.ExactDeviceRequest": _device_request,
    f"{_DEVICES}.DeviceSubRequest": _device_request,
    f"{_DEVICES}.DeviceToleration": _with(operator="Equal"),
    f"{_DEFINITIONS}.CustomResourceDefinitionSpec": _custom_resource_definition,
    f"{_RBAC}.RoleRef": _with(apiGroup="rbac.authorization.k8s.io"),
}

REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {f"{_CORE}.Container": ("image",)}
"""Members that the real server requires in code, though its documents do not say so."""
_ALL_METADATA: Final = ("labels", "annotations", "finalizers", "ownerReferences")
STATUS_KEEPS: Final[Mapping[str, tuple[str, ...]]] = {
    f"{_CORE}.Pod": ("ownerReferences",),
    f"{_APPS}.Deployment": ("labels",),
    f"{_DEVICES}.ResourceClaim": _ALL_METADATA,
    f"{_DEFINITIONS}.CustomResourceDefinition": _ALL_METADATA,
}
"""Members of metadata that a write of the status leaves alone, by type; a custom kind's leaves all alone."""
