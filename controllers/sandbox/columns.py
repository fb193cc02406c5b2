"""The columns in which kubectl shows the built-in kinds, and those that a CRD asks for.

A column's cell is a function of the object and the moment; a failure to find what a column shows makes an empty cell,
never an error, because objects may be half-filled.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Object = Mapping[str, Any]
Cell = Callable[[Object, datetime], Any]
UNKNOWN = "<unknown>"
NONE = "<none>"


@dataclass(frozen=True, slots=True)
class Column:
    """One column; those with a ``priority`` above 0 are shown by ``-o wide`` only."""

    name: str
    cell: Cell
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0

    def definition(self) -> dict[str, Any]:
        """The column as a Table describes it."""
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


def human_duration(seconds: float) -> str:
    """A duration in seconds as kubectl shows ages: two units at most, coarser the longer it is."""
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    total = max(0, total)
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if total < 120:
        return f"{total}s"
    if minutes < 10:
        return _two(minutes, "m", total % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return _two(days, "d", hours % 24, "h")
    if hours < 24 * 365 * 2:
        return f"{days}d"
    years = hours // (24 * 365)
    return _two(years, "y", days % 365, "d") if years < 8 else f"{years}y"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


def moment(text: Any) -> datetime | None:
    """A timestamp of the API, None where there is none."""
    if not isinstance(text, str) or not text:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return None


def since(text: Any, now: datetime) -> str:
    """How long ago a timestamp of the API is."""
    then = moment(text)
    return UNKNOWN if then is None else human_duration((now - then).total_seconds())


def at(obj: Any, *path: str | int) -> Any:
    """The value at a path, None where any part of it is missing."""
    for step in path:
        if isinstance(step, int):
            obj = obj[step] if isinstance(obj, list) and len(obj) > step else None
        else:
            obj = obj.get(step) if isinstance(obj, Mapping) else None
    return obj


def custom_columns(definitions: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """The columns of a CRD version, the name before them and, where the CRD has none, the age after it."""
    if not definitions:
        return (NAME, _CUSTOM_AGE)
    return (NAME, *(_custom_column(definition) for definition in definitions))


def _custom_column(definition: Mapping[str, Any]) -> Column:
    path, kind = json_path(str(definition.get("jsonPath", ""))), str(definition.get("type", "string"))
    return Column(
        str(definition["name"]),
        lambda obj, now: _custom_cell(path(obj), kind, now),
        kind,
        str(definition.get("format", "")),
        str(
            definition.get("description")
            or "Custom resource definition column (in JSONPath format): " + str(definition.get("jsonPath", ""))
        ),
        int(definition.get("priority", 0)),
    )


def _custom_cell(found: list[Any], kind: str, now: datetime) -> Any:
    value = found[0] if found else None
    if value is None:
        return None
    match kind:
        case "date":
            return since(value, now)
        case "integer":
            return int(value) if isinstance(value, int | float) else None
        case "number":
            return float(value) if isinstance(value, int | float) else None
        case "boolean":
            return value if isinstance(value, bool) else None
    if len(found) > 1:
        return ",".join(_text(part) for part in found)
    return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


_STEP = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\]\\])+)|\[(?P<index>-?\d+)\]|\[(?P<every>\*)\]"""
    r"""|\[['"](?P<quoted>[^'"]*)['"]\]|\[\?\(@(?P<left>[^=]+?)\s*==\s*['"](?P<right>[^'"]*)['"]\)\]"""
)


def json_path(text: str) -> Callable[[Any], list[Any]]:
    """A function that finds the values at a JSONPath of the kind that CRDs use. What it cannot read finds nothing."""
    steps = list(_STEP.finditer(text))
    if "".join(step.group(0) for step in steps) != text:
        return lambda _: []

    def find(obj: Any) -> list[Any]:
        values = [obj]
        for step in steps:
            values = [found for value in values for found in _stepped(value, step)]
        return values

    return find


def _stepped(value: Any, step: re.Match[str]) -> list[Any]:
    name = step["name"] if step["name"] is not None else step["quoted"]
    if name is not None:
        key = re.sub(r"\\(.)", r"\1", name)
        if key == "*":
            return list(value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ())
        return [value[key]] if isinstance(value, Mapping) and key in value else []
    if step["every"]:
        return list(value) if isinstance(value, list) else []
    if step["index"]:
        index = int(step["index"])
        return [value[index]] if isinstance(value, list) and -len(value) <= index < len(value) else []
    left = json_path(step["left"])
    wanted = step["right"]
    return [item for item in value if wanted in map(_text, left(item))] if isinstance(value, list) else []


def _field(*path: str | int, default: Any = "") -> Cell:
    def cell(obj: Object, _: datetime) -> Any:
        value = at(obj, *path)
        return default if value is None else value

    return cell


def _age(*path: str) -> Cell:
    return lambda obj, now: since(at(obj, *path), now)


def _count(*fields: str) -> Cell:
    return lambda obj, _: sum(len(obj.get(name) or ()) for name in fields)


NAME = Column("Name", _field("metadata", "name"), format="name", description="The name, unique within its namespace.")
AGE = Column("Age", _age("metadata", "creationTimestamp"), description="Time since it was created.")
_CUSTOM_AGE = Column("Age", _age("metadata", "creationTimestamp"), "date", description="Time since it was created.")
_CREATED_AT = Column("Created At", _field("metadata", "creationTimestamp"), "date")


def _wide(name: str, cell: Cell) -> Column:
    return Column(name, cell, priority=1)


def _integer(name: str, *path: str | int) -> Column:
    return Column(name, _field(*path, default=0), "integer")


def _pairs(*path: str) -> Cell:
    def cell(obj: Object, _: datetime) -> str:
        labels = at(obj, *path) or {}
        return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or NONE

    return cell


def _containers(key: str) -> Cell:
    def cell(obj: Object, _: datetime) -> str:
        containers = at(obj, "spec", "template", "spec", "containers") or ()
        return ",".join(str(container.get(key, "")) for container in containers)

    return cell


def _node_status(obj: Object, _: datetime) -> str:
    conditions = {c.get("type"): c.get("status") for c in at(obj, "status", "conditions") or ()}
    ready = {"True": "Ready", None: "Unknown"}.get(conditions.get("Ready"), "NotReady")
    return f"{ready},SchedulingDisabled" if at(obj, "spec", "unschedulable") else ready


def _node_roles(obj: Object, _: datetime) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = [key[len(prefix) :] for key in at(obj, "metadata", "labels") or {} if key.startswith(prefix)]
    return ",".join(sorted(role for role in roles if role)) or NONE


def _address(kind: str) -> Cell:
    def cell(obj: Object, _: datetime) -> str:
        addresses = at(obj, "status", "addresses") or ()
        return next((str(a.get("address")) for a in addresses if a.get("type") == kind), NONE)

    return cell


def _pod_ready(obj: Object, _: datetime) -> str:
    statuses = at(obj, "status", "containerStatuses") or ()
    ready = sum(1 for status in statuses if status.get("ready"))
    return f"{ready}/{len(at(obj, 'spec', 'containers') or ())}"


def _pod_status(obj: Object, _: datetime) -> str:
    if at(obj, "metadata", "deletionTimestamp"):
        return "Terminating"
    if reason := at(obj, "status", "reason"):
        return str(reason)
    for status in at(obj, "status", "containerStatuses") or ():
        state = status.get("state") or {}
        reason = at(state, "waiting", "reason") or at(state, "terminated", "reason")
        if reason:
            return str(reason)
    for condition in at(obj, "status", "conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            return "SchedulingGated"
    return str(at(obj, "status", "phase") or UNKNOWN)


def _pod_restarts(obj: Object, _: datetime) -> str:
    return str(sum(int(s.get("restartCount", 0)) for s in at(obj, "status", "containerStatuses") or ()))


def _service_ports(obj: Object, _: datetime) -> str:
    ports = at(obj, "spec", "ports") or ()
    return ",".join(f"{port.get('port')}/{port.get('protocol', 'TCP')}" for port in ports) or NONE


def _event_object(obj: Object, _: datetime) -> str:
    involved = at(obj, "involvedObject") or at(obj, "regarding") or {}
    return f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"


def _event_seen(obj: Object, now: datetime) -> str:
    latest = (
        at(obj, "series", "lastObservedTime")
        or obj.get("lastTimestamp")
        or obj.get("deprecatedLastTimestamp")
        or obj.get("eventTime")
    )
    return since(latest, now)


def _event_message(obj: Object, _: datetime) -> str:
    return str(obj.get("message") or obj.get("note") or "").strip()


def _ready_of(ready: str, wanted: str) -> Cell:
    return lambda obj, _: f"{at(obj, 'status', ready) or 0}/{at(obj, 'spec', wanted) or 0}"


def _job_status(obj: Object, _: datetime) -> str:
    met = {c.get("type") for c in at(obj, "status", "conditions") or () if c.get("status") == "True"}
    for kind in ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if kind in met:
            return kind
    return "Terminating" if at(obj, "metadata", "deletionTimestamp") else "Running"


def _job_completions(obj: Object, _: datetime) -> str:
    wanted = at(obj, "spec", "completions")
    return f"{at(obj, 'status', 'succeeded') or 0}/{1 if wanted is None else wanted}"


def _job_duration(obj: Object, now: datetime) -> str:
    start = moment(at(obj, "status", "startTime"))
    end = moment(at(obj, "status", "completionTime")) or now
    return "" if start is None else human_duration((end - start).total_seconds())


def _claim_state(obj: Object, _: datetime) -> str:
    states: list[str] = []
    if at(obj, "metadata", "deletionTimestamp"):
        states.append("deleted")
    if at(obj, "status", "allocation") is None:
        states.append("pending")
    else:
        states.append("allocated")
        states += ["reserved"] if at(obj, "status", "reservedFor") else []
    return ",".join(states)


def _role(obj: Object, _: datetime) -> str:
    return f"{at(obj, 'roleRef', 'kind')}/{at(obj, 'roleRef', 'name')}"


def _established(obj: Object, _: datetime) -> bool:
    conditions = at(obj, "status", "conditions") or ()
    return any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)


def _subjects(kind: str) -> Cell:
    def cell(obj: Object, _: datetime) -> str:
        subjects = [s for s in obj.get("subjects") or () if s.get("kind") == kind]
        if kind == "ServiceAccount":
            return ", ".join(f"{s.get('namespace', '')}/{s.get('name', '')}" for s in subjects)
        return ", ".join(str(s.get("name", "")) for s in subjects)

    return cell


_BINDING = (
    NAME,
    Column("Role", _role),
    AGE,
    _wide("Users", _subjects("User")),
    _wide("Groups", _subjects("Group")),
    _wide("ServiceAccounts", _subjects("ServiceAccount")),
)
_WORKLOAD_WIDE = (
    _wide("Containers", _containers("name")),
    _wide("Images", _containers("image")),
    _wide("Selector", _pairs("spec", "selector", "matchLabels")),
)
_COLUMNS: Mapping[tuple[str, str], tuple[Column, ...]] = {
    ("", "Namespace"): (NAME, Column("Status", _field("status", "phase")), AGE),
    ("", "Node"): (
        NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        AGE,
        Column("Version", _field("status", "nodeInfo", "kubeletVersion")),
        _wide("Internal-IP", _address("InternalIP")),
        _wide("External-IP", _address("ExternalIP")),
        _wide("OS-Image", _field("status", "nodeInfo", "osImage", default=UNKNOWN)),
        _wide("Kernel-Version", _field("status", "nodeInfo", "kernelVersion", default=UNKNOWN)),
        _wide("Container-Runtime", _field("status", "nodeInfo", "containerRuntimeVersion", default=UNKNOWN)),
    ),
    ("", "Pod"): (
        NAME,
        Column("Ready", _pod_ready),
        Column("Status", _pod_status),
        Column("Restarts", _pod_restarts),
        AGE,
        _wide("IP", _field("status", "podIP", default=NONE)),
        _wide("Node", _field("spec", "nodeName", default=NONE)),
        _wide("Nominated Node", _field("status", "nominatedNodeName", default=NONE)),
        _wide("Readiness Gates", lambda *_: NONE),
    ),
    ("", "ConfigMap"): (NAME, Column("Data", _count("data", "binaryData")), AGE),
    ("", "Secret"): (NAME, Column("Type", _field("type")), Column("Data", _count("data")), AGE),
    ("", "Service"): (
        NAME,
        Column("Type", _field("spec", "type", default="ClusterIP")),
        Column("Cluster-IP", _field("spec", "clusterIP", default=NONE)),
        Column("External-IP", lambda *_: NONE),
        Column("Port(s)", _service_ports),
        AGE,
        _wide("Selector", _pairs("spec", "selector")),
    ),
    ("", "Event"): (
        Column("Last Seen", _event_seen),
        Column("Type", _field("type")),
        Column("Reason", _field("reason")),
        Column("Object", _event_object),
        _wide("Subobject", _field("involvedObject", "fieldPath")),
        _wide("Source", _field("source", "component")),
        Column("Message", _event_message),
        _wide("First Seen", _age("firstTimestamp")),
        _wide("Count", _field("count", default=1)),
        Column("Name", _field("metadata", "name"), format="name", priority=1),
    ),
    ("apps", "Deployment"): (
        NAME,
        Column("Ready", _ready_of("readyReplicas", "replicas")),
        Column("Up-to-date", _field("status", "updatedReplicas", default=0)),
        Column("Available", _field("status", "availableReplicas", default=0)),
        AGE,
        *_WORKLOAD_WIDE,
    ),
    ("apps", "ReplicaSet"): (
        NAME,
        _integer("Desired", "spec", "replicas"),
        _integer("Current", "status", "replicas"),
        _integer("Ready", "status", "readyReplicas"),
        AGE,
        *_WORKLOAD_WIDE,
    ),
    ("autoscaling", "Scale"): (
        NAME,
        _integer("Desired", "spec", "replicas"),
        _integer("Available", "status", "replicas"),
        AGE,
    ),
    ("apps", "StatefulSet"): (NAME, Column("Ready", _ready_of("readyReplicas", "replicas")), AGE, *_WORKLOAD_WIDE[:2]),
    ("apps", "DaemonSet"): (
        NAME,
        _integer("Desired", "status", "desiredNumberScheduled"),
        _integer("Current", "status", "currentNumberScheduled"),
        _integer("Ready", "status", "numberReady"),
        _integer("Up-to-date", "status", "updatedNumberScheduled"),
        _integer("Available", "status", "numberAvailable"),
        Column("Node Selector", _pairs("spec", "template", "spec", "nodeSelector")),
        AGE,
        *_WORKLOAD_WIDE,
    ),
    ("batch", "Job"): (
        NAME,
        Column("Status", _job_status),
        Column("Completions", _job_completions),
        Column("Duration", _job_duration),
        AGE,
        *_WORKLOAD_WIDE,
    ),
    ("coordination.k8s.io", "Lease"): (NAME, Column("Holder", _field("spec", "holderIdentity")), AGE),
    ("rbac.authorization.k8s.io", "Role"): (NAME, _CREATED_AT),
    ("rbac.authorization.k8s.io", "ClusterRole"): (NAME, _CREATED_AT),
    ("rbac.authorization.k8s.io", "RoleBinding"): _BINDING,
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): _BINDING,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): (
        NAME,
        Column("Scope", _field("spec", "scope")),
        Column("Versions", lambda obj, _: ",".join(v["name"] for v in at(obj, "spec", "versions") or ())),
        _CREATED_AT,
        _wide("Group", _field("spec", "group")),
        _wide("Kind", _field("spec", "names", "kind")),
        _wide("ShortNames", lambda obj, _: ",".join(at(obj, "spec", "names", "shortNames") or ())),
        Column("Established", _established, "boolean", priority=1),
    ),
    ("resource.k8s.io", "ResourceSlice"): (
        NAME,
        Column("Node", _field("spec", "nodeName", default="<unset>")),
        Column("Driver", _field("spec", "driver")),
        Column("Pool", _field("spec", "pool", "name")),
        AGE,
    ),
    ("resource.k8s.io", "ResourceClaim"): (NAME, Column("State", _claim_state), AGE),
    ("scheduling.k8s.io", "PriorityClass"): (
        NAME,
        _integer("Value", "value"),
        Column("Global-Default", _field("globalDefault", default=False), "boolean"),
        AGE,
        Column("PreemptionPolicy", _field("preemptionPolicy", default="PreemptLowerPriority")),
    ),
    ("storage.k8s.io", "StorageClass"): (
        NAME,
        Column("Provisioner", _field("provisioner")),
        Column("ReclaimPolicy", _field("reclaimPolicy", default="Delete")),
        Column("VolumeBindingMode", _field("volumeBindingMode", default="Immediate")),
        Column("AllowVolumeExpansion", _field("allowVolumeExpansion", default=False)),
        AGE,
    ),
}


def columns_of(group: str, kind: str) -> tuple[Column, ...]:
    """The columns of a built-in kind; name and age for those without any of their own."""
    group = "" if group == "events.k8s.io" else group
    return _COLUMNS.get((group, kind), (NAME, AGE))
