"""What Kubernetes takes for a name."""

import pytest

from controllers.estate.names import is_extended_resource, is_label_key, is_name, label_value


@pytest.mark.parametrize("text", ["a", "A", "1", "a-b_c.D", "a" * 63])
def test_a_name_can_be_a_label_value(text: str) -> None:
    assert is_name(text)


@pytest.mark.parametrize("text", ["", "-a", "a-", "_", "a b", "a/b", "é", "a\n", "a" * 64])
def test_other_text_is_no_name(text: str) -> None:
    assert not is_name(text)


@pytest.mark.parametrize("text", ["a", "run.ai/simulated-gpu-node-pool", "a/b", f"{'a' * 253}/{'b' * 63}", "1.2/x"])
def test_a_label_key_may_have_a_domain(text: str) -> None:
    assert is_label_key(text)


@pytest.mark.parametrize(
    "text", ["", "/", "a/", "/a", "a/b/c", "A.b/c", "a..b/c", ".a/b", "a./b", f"{'a' * 254}/b", "-/b"]
)
def test_other_text_is_no_label_key(text: str) -> None:
    assert not is_label_key(text)


@pytest.mark.parametrize("text", ["example.com/nic", "rdma/hca", "nvidia.com/mig-1g.5gb", f"{'a' * 244}/b"])
def test_an_extended_resource_has_a_domain(text: str) -> None:
    assert is_extended_resource(text)


@pytest.mark.parametrize(
    "text",
    [
        "cpu",
        "nic",
        "hugepages-2Mi",
        "kubernetes.io/x",
        "my.kubernetes.io/x",
        "requests.example.com/x",
        "a/b/c",
        "A/b",
        "example.com/",
        f"{'a' * 245}/b",
    ],
)
def test_other_text_is_no_extended_resource(text: str) -> None:
    assert not is_extended_resource(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("GPU (Test Edition)", "GPU--Test-Edition"),
        ("Tesla-K80", "Tesla-K80"),
        ("", ""),
        ("---", ""),
        ("x" * 62 + " y", "x" * 62),
        ("é", ""),
        ("_a_", "a"),
    ],
)
def test_text_becomes_a_label_value(text: str, value: str) -> None:
    assert label_value(text) == value
