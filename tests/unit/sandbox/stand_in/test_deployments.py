"""ReplicaSets of templates, and the status of Deployments."""

from controllers.sandbox.stand_in.deployments import deployment_status, replica_set, set_name
from controllers.sandbox.stand_in.kinds import Deployment
from tests.unit.sandbox.stand_in import objects
from tests.unit.sandbox.stand_in.objects import NOW, deployment

LATER = "2030-01-01T00:00:01Z"


def test_template_decides_the_name_and_nothing_else_does() -> None:
    assert set_name(deployment(replicas=1)) == set_name(deployment(replicas=2))
    assert set_name(deployment(image="one")) != set_name(deployment(image="two"))


def test_replica_set_selects_only_pods_of_its_template() -> None:
    made = replica_set(deployment(), 3, 7)
    digest = made["metadata"]["labels"]["pod-template-hash"]
    assert made["metadata"]["name"] == f"web-{digest}"
    assert made["metadata"]["annotations"] == {"deployment.kubernetes.io/revision": "7"}
    both = {"app": "web", "pod-template-hash": digest}
    assert made["spec"]["selector"]["matchLabels"] == made["spec"]["template"]["metadata"]["labels"] == both
    assert made["spec"]["replicas"] == 3


def conditions(found: dict[str, object]) -> dict[str, tuple[str, str]]:
    entries = found["conditions"]
    assert isinstance(entries, list)
    return {entry["type"]: (entry["status"], entry["reason"]) for entry in entries}


def test_status_on_the_way_and_at_its_end() -> None:
    rolling = deployment()
    new, old = objects.replica_set("new", 2, 1), objects.replica_set("old", 3)
    on_the_way = deployment_status(rolling, new, [new, old], NOW)
    assert (on_the_way["replicas"], on_the_way["updatedReplicas"], on_the_way["availableReplicas"]) == (5, 2, 4)
    assert on_the_way["unavailableReplicas"] == 1
    assert conditions(on_the_way) == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("True", "ReplicaSetUpdated"),
    }
    new, old = objects.replica_set("new", 4), objects.replica_set("old", 0)
    done = deployment_status(rolling, new, [new, old], NOW)
    assert conditions(done)["Progressing"] == ("True", "NewReplicaSetAvailable")
    assert "unavailableReplicas" not in done


def test_condition_keeps_its_time_until_its_status_changes() -> None:
    new = objects.replica_set("new", 4, 0)
    first = deployment_status(deployment(), new, [new], NOW)
    known = Deployment(metadata=deployment().metadata, spec=deployment().spec, status=first)
    assert deployment_status(known, new, [new], LATER) == first
    new = objects.replica_set("new", 4)
    later = {entry["type"]: entry for entry in deployment_status(known, new, [new], LATER)["conditions"]}
    assert later["Available"]["lastTransitionTime"] == LATER
    assert (later["Progressing"]["lastTransitionTime"], later["Progressing"]["lastUpdateTime"]) == (NOW, LATER)


def test_paused_deployment_says_so() -> None:
    assert conditions(deployment_status(deployment(paused=True), None, [], NOW)) == {
        "Available": ("False", "MinimumReplicasUnavailable"),
        "Progressing": ("Unknown", "DeploymentPaused"),
    }
