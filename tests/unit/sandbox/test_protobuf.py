"""Reading protobuf: broken bodies are refused, whatever is broken about them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.sandbox.errors import StatusError
from controllers.sandbox.protobuf import MAGIC, decode


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def body(kind: str, raw: bytes) -> bytes:
    return MAGIC + field(1, field(1, b"v1") + field(2, kind.encode())) + field(2, raw)


def outcome(content: bytes) -> int:
    try:
        decode(content)
    except StatusError as refused:
        return refused.code
    return 200


def test_message_becomes_the_object() -> None:
    metadata = field(1, b"m") + field(3, b"") + field(11, field(1, b"k") + field(2, b"v"))
    data = field(1, b"x") + field(2, b"1")
    assert decode(body("ConfigMap", field(1, metadata) + field(2, data))) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "m", "labels": {"k": "v"}},
        "data": {"x": "1"},
    }


def test_kind_without_a_known_layout_is_an_unsupported_format() -> None:
    with pytest.raises(StatusError) as refused:
        decode(body("Mystery", b""))
    assert refused.value.code == 415


@given(st.binary(max_size=60), st.sampled_from(["ConfigMap", "Pod", "DeleteOptions"]))
def test_noise_is_read_or_refused_but_never_breaks(noise: bytes, kind: str) -> None:
    for content in (noise, MAGIC + noise, body(kind, noise)):
        assert outcome(content) in {200, 400, 415}
