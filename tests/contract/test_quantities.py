"""Amounts of resources come back in one spelling, however they were sent."""

from typing import Any

import pytest

from tests.contract.api_server import ApiServer

SPELLINGS: list[tuple[Any, str]] = [
    (2, "2"),
    (0, "0"),
    (0.5, "500m"),
    (1.25, "1250m"),
    ("4", "4"),
    ("1000", "1k"),
    ("1500", "1500"),
    ("2000000", "2M"),
    ("1000m", "1"),
    ("100m", "100m"),
    ("1.5", "1500m"),
    ("80Gi", "80Gi"),
    ("81920Mi", "80Gi"),
    ("1024", "1024"),
    ("1.5Gi", "1536Mi"),
    ("0.5Ki", "512"),
    ("1e3", "1e3"),
    ("12E", "12E"),
    ("-1", "-1"),
]


@pytest.mark.parametrize(("sent", "kept"), SPELLINGS, ids=[str(sent) for sent, _ in SPELLINGS])
def test_capacity_is_kept_in_one_spelling(server: ApiServer, namespace: str, sent: Any, kept: str) -> None:
    pool = {"name": namespace, "generation": 1, "resourceSliceCount": 1}
    device = {"name": "gpu-0", "capacity": {"memory": {"value": sent}}}
    spec = {"driver": f"{namespace}.example.com", "allNodes": True, "pool": pool, "devices": [device]}
    path = "/apis/resource.k8s.io/v1/resourceslices"
    try:
        made = server.create(path, {"metadata": {"name": namespace}, "spec": spec})
        assert made["spec"]["devices"][0]["capacity"]["memory"]["value"] == kept
    finally:
        server.send("DELETE", f"{path}/{namespace}")


def test_whole_numbers_of_a_pod_and_a_node_become_text(server: ApiServer, namespace: str) -> None:
    limits = {"cpu": 1, "memory": "1024Mi", "example.com/gpu": 2}
    container = {"name": "main", "image": "none", "resources": {"limits": limits, "requests": limits}}
    gate = [{"name": "test.example.com/never"}]
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [container], "schedulingGates": gate}}
    made = server.create(f"/api/v1/namespaces/{namespace}/pods", pod)
    node = {"metadata": {"name": namespace}, "status": {"allocatable": {"cpu": 4, "pods": 10}, "capacity": {"cpu": 4}}}
    try:
        known = server.create("/api/v1/nodes", node)
        assert made["spec"]["containers"][0]["resources"]["limits"] == {
            "cpu": "1",
            "memory": "1Gi",
            "example.com/gpu": "2",
        }
        assert known["status"]["allocatable"] == {"cpu": "4", "pods": "10"}
    finally:
        server.send("DELETE", f"/api/v1/nodes/{namespace}")
