"""The status of ReplicaSets and the pods that they make."""

from controllers.sandbox.stand_in.pods import pod_of
from controllers.sandbox.stand_in.replicasets import replica_set_status
from tests.unit.sandbox.stand_in.objects import pod, replica_set

READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def test_status_counts_pods_and_leaves_zeros_out() -> None:
    entry = replica_set("rs", 2, generation=3)
    found = replica_set_status(entry, [pod("a", status=READY), pod("b")])
    assert found == {
        "replicas": 2,
        "fullyLabeledReplicas": 2,
        "readyReplicas": 1,
        "availableReplicas": 1,
        "terminatingReplicas": 0,
        "observedGeneration": 3,
    }
    assert replica_set_status(entry, []) == {"replicas": 0, "terminatingReplicas": 0, "observedGeneration": 3}


def test_pod_is_as_its_template_wants_it_and_belongs_to_its_owner() -> None:
    template = {"metadata": {"labels": {"app": "web"}, "annotations": {"a": "b"}}, "spec": {"containers": []}}
    made = pod_of(replica_set("rs", 1), template, {"own": "label"})
    (owner,) = made["metadata"].pop("ownerReferences")
    assert made["metadata"] == {
        "generateName": "rs-",
        "namespace": "ns",
        "labels": {"app": "web", "own": "label"},
        "annotations": {"a": "b"},
    }
    assert (owner["kind"], owner["uid"], owner["blockOwnerDeletion"]) == ("ReplicaSet", "uid-rs", True)
    assert made["spec"] == {"containers": []}
