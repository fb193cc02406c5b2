"""The statuses of pods that run and end."""

from controllers.sandbox.stand_in.kinds import Pod
from controllers.sandbox.stand_in.kubelet import running, succeeded
from tests.unit.sandbox.stand_in.objects import NOW, node, pod

LATER = "2030-01-01T00:00:01Z"
SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": NOW}


def test_running_pod_keeps_what_was_known_and_has_started_everything() -> None:
    initial = [{"name": "once"}, {"name": "sidecar", "restartPolicy": "Always"}]
    claims = [{"name": "gpu", "resourceClaimName": "c"}]
    gates = [{"conditionType": "example.com/ready"}]
    status = {"conditions": [SCHEDULED], "resourceClaimStatuses": claims}
    found = running(pod("p", initContainers=initial, readinessGates=gates, status=status), node("n"), NOW)
    kinds = ["Initialized", "Ready", "ContainersReady", "example.com/ready", "PodScheduled"]
    assert [entry["type"] for entry in found["conditions"]] == kinds
    assert found["resourceClaimStatuses"] == claims
    assert [[*entry["state"]] for entry in found["initContainerStatuses"]] == [["terminated"], ["running"]]
    assert [[*entry["state"]] for entry in found["containerStatuses"]] == [["running"]]
    assert found["startTime"] == NOW


def test_pod_on_the_hosts_network_has_its_address() -> None:
    found = running(pod("p", hostNetwork=True), node("n"), NOW)
    assert found["podIP"] == found["hostIP"]
    assert running(pod("p"), node("n"), NOW)["podIP"] != found["hostIP"]


def test_succeeded_pod_is_ready_no_more() -> None:
    before = pod("p", status={"conditions": [SCHEDULED]})
    ran = Pod(metadata=before.metadata, spec=before.spec, status=running(before, node("n"), NOW))
    found = succeeded(ran, LATER)
    assert found["phase"] == "Succeeded"
    conditions = {entry["type"]: (entry["status"], entry.get("reason")) for entry in found["conditions"]}
    assert conditions["Ready"] == conditions["ContainersReady"] == ("False", "PodCompleted")
    assert conditions["PodScheduled"] == ("True", None)
    (container,) = found["containerStatuses"]
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": NOW, "finishedAt": LATER}
    assert (container["ready"], container["state"]) == (False, {"terminated": ended})
