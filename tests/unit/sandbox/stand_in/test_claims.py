"""Claims made for pods, and given back."""

from controllers.api.dra import ResourceClaimTemplate
from controllers.sandbox.stand_in.claims import PROTECTION, claim_for, released
from controllers.sandbox.stand_in.kinds import Claim
from tests.unit.sandbox.stand_in.objects import claim, meta, pod

ALLOCATED = {"allocation": {"devices": {}}, "devices": [{"device": "gpu-0"}], "reservedFor": [{"name": "p"}]}


def test_claim_is_as_its_template_wants_it_and_belongs_to_its_pod() -> None:
    metadata = {"labels": {"l": "v"}, "annotations": {"a": "b"}}
    template = ResourceClaimTemplate(
        metadata=meta("t"), spec={"metadata": metadata, "spec": {"devices": {"requests": []}}}
    )
    made = claim_for(pod("worker"), "gpu", template)
    assert made["metadata"]["generateName"] == "worker-gpu-"
    assert made["metadata"]["labels"] == {"l": "v"}
    assert made["metadata"]["annotations"] == {"a": "b", "resource.kubernetes.io/pod-claim-name": "gpu"}
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", "uid-worker", True)
    assert made["spec"] == {"devices": {"requests": []}}


def protected() -> Claim:
    return Claim(metadata=meta("c", finalizers=(PROTECTION,)), status=ALLOCATED)


def test_claim_keeps_its_devices_for_as_long_as_somebody_has_it() -> None:
    assert released(protected(), [{"name": "q"}]) == {**ALLOCATED, "reservedFor": [{"name": "q"}]}
    assert released(protected(), []) == {}


def test_allocation_that_no_scheduler_has_made_is_left_alone() -> None:
    by_hand = claim("c", status=ALLOCATED)
    assert released(by_hand, []) == {key: value for key, value in ALLOCATED.items() if key != "reservedFor"}
