"""The fingerprint of pods, as the Go package computes it."""

from controllers.node_resource_topology.fingerprint import fingerprint

TEN = [
    ("analytics", "controller-69dkj"),
    ("kube-public", "subscriber-tq6v7"),
    ("kube-public", "transformer-hfbng"),
    ("kube-public", "validator-c6pn5"),
    ("kube-system", "proxy-wszrd"),
    ("middleware", "processor-jkrl4"),
    ("network", "gateway-vsll5"),
    ("network", "importer-kzdfr"),
    ("network", "importer-q5vt9"),
    ("staging", "prometheus-bwgbn"),
]


def test_pods_have_the_fingerprint_that_schedulers_expect() -> None:
    """The expected values are those that the Go package gives for these pods."""
    three = [("production", name) for name in ("jaeger-dpgjk", "nginx-rt684", "envoy-g9m22")]

    assert fingerprint(three) == "pfp0v001607b76a0e9d3aeb4"
    assert fingerprint(TEN) == "pfp0v001567144e4a561bb5a"


def test_the_order_of_pods_does_not_matter() -> None:
    assert fingerprint(reversed(TEN)) == fingerprint(TEN)


def test_no_pods_have_the_hash_of_nothing() -> None:
    assert fingerprint([]) == "pfp0v001ef46db3751d8e999"


def test_the_parts_of_a_name_are_not_mixed_up() -> None:
    assert fingerprint([("a", "bc")]) != fingerprint([("ab", "c")])
