"""Reading Kubernetes' protobuf, in which kubectl sends some requests whatever the server says it takes.

Only reading: answers are JSON, which the same clients accept. The layout of the messages comes from
``data/protobuf.json``. The wire form does not tell a zero that was written from one that was left out where the field
always has a value, so zeros are left out; only ``replicas``, which is always meant, is kept.
"""

import base64
import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from controllers.sandbox.errors import StatusError, bad_request, unsupported_media_type

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"
MAXIMUM_DEPTH = 100  # of nested messages; objects of the API have some twenty levels
_META = "k8s.io.apimachinery.pkg.apis.meta.v1."
_KEPT_ZEROS = frozenset({"replicas"})

Fields = Mapping[str, list[str]]


def decode(body: bytes) -> dict[str, Any]:
    """The object in a body. Raises StatusError 400 where it is broken, 415 for a kind whose layout is not known."""
    try:
        return _decode(body)
    # A number where the layout has bytes, or the other way round, is found by the first use of it.
    except (ValueError, IndexError, struct.error, OverflowError, TypeError, AttributeError, OSError) as error:
        raise bad_request(f"the object provided is unrecognized: it is not valid protobuf: {error}") from None


def _decode(body: bytes) -> dict[str, Any]:
    if not body.startswith(MAGIC):
        raise ValueError("the prefix k8s\\x00 is missing")
    envelope = dict(_wire(body[len(MAGIC) :]))
    kind_of = dict(_wire(envelope.get(1, b"")))
    api_version, kind = kind_of.get(1, b"").decode(), kind_of.get(2, b"").decode()
    name = _layout()["kinds"].get(f"{api_version}/{kind}")
    if name is None:
        raise _unknown(api_version, kind)
    return {"apiVersion": api_version, "kind": kind, **_message(envelope.get(2, b""), name, 0)}


def _unknown(api_version: str, kind: str) -> StatusError:
    error = unsupported_media_type(["application/json", "application/yaml"])
    error.message += f" (protobuf is read for built-in kinds only, not for {kind} of {api_version})"
    return error


def _wire(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message: number, and bytes or a number."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                value, at = _varint(data, at)
                yield tag >> 3, value
            case 1:
                yield tag >> 3, struct.unpack_from("<d", data, at)[0]
                at += 8
            case 2:
                size, at = _varint(data, at)
                if at + size > len(data):
                    raise ValueError("a field is cut off")
                yield tag >> 3, data[at : at + size]
                at += size
            case 5:
                yield tag >> 3, struct.unpack_from("<f", data, at)[0]
                at += 4
            case other:
                raise ValueError(f"wire type {other}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _message(data: bytes, name: str, depth: int) -> Any:
    if depth > MAXIMUM_DEPTH:
        raise ValueError("messages are nested too deeply")
    if special := _SPECIAL.get(name):
        return special(dict(_wire(data)))
    fields: Fields = _layout()["messages"][name]
    result: dict[str, Any] = {}
    for number, raw in _wire(data):
        field = fields.get(str(number))
        if field is not None:
            _add(result, field, raw, depth + 1)
    if list(fields.values()) == [["items", "many", "string"]]:
        # A list that is a message of its own, because a map's values cannot be lists.
        return result.get("items", [])
    return result


def _add(result: dict[str, Any], field: list[str], raw: Any, depth: int) -> None:
    name, shape, kind = field
    if shape == "map":
        entry = dict(_wire(raw))
        result.setdefault(name, {})[entry.get(1, b"").decode()] = _value(entry.get(2, b""), kind, depth)
        return
    value = _value(raw, kind, depth)
    if shape == "many":
        result.setdefault(name, []).append(value)
    elif _is_meant(value) or (value == 0 and name in _KEPT_ZEROS):
        # Embedded structs of Go are fields of their own in protobuf and none in JSON.
        if (name[:1].isupper() and isinstance(value, dict)) or (name[:1].islower() and name in _INLINED.get(kind, ())):
            result.update(value)
        else:
            result[name] = value


def _is_meant(value: Any) -> bool:
    return value is not None and value != "" and (isinstance(value, dict) or bool(value))


def _value(raw: Any, kind: str, depth: int) -> Any:
    match kind:
        case "string":
            return raw.decode()
        case "bytes":
            return base64.b64encode(raw).decode()
        case "bool":
            return bool(raw)
        case "int32" | "int64":
            return raw - 2**64 if raw >= 2**63 else raw
        case "uint32" | "uint64" | "double" | "float":
            return raw
    return _message(raw, kind, depth)


def _time(fields: dict[int, Any], digits: int = 0) -> str | None:
    if not fields.get(1):
        return None
    moment = datetime.fromtimestamp(fields[1], UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{fields.get(2, 0) // 1000:06d}Z" if digits else f"{moment}Z"


def _int_or_string(fields: dict[int, Any]) -> int | str:
    return str(fields.get(3, b"").decode()) if fields.get(1) else int(fields.get(2, 0))


def _raw_json(fields: dict[int, Any]) -> Any:
    return msgspec.json.decode(fields[1]) if fields.get(1) else None


_SPECIAL: Mapping[str, Callable[[dict[int, Any]], Any]] = {
    f"{_META}Time": _time,
    f"{_META}MicroTime": lambda fields: _time(fields, 6),
    f"{_META}FieldsV1": _raw_json,
    "k8s.io.apimachinery.pkg.runtime.RawExtension": _raw_json,
    "k8s.io.apimachinery.pkg.api.resource.Quantity": lambda fields: fields.get(1, b"").decode(),
    "k8s.io.apimachinery.pkg.util.intstr.IntOrString": _int_or_string,
}
_INLINED: Mapping[str, tuple[str, ...]] = {
    "k8s.io.api.core.v1.VolumeSource": ("volumeSource",),
    "k8s.io.api.core.v1.ProbeHandler": ("handler",),
    "k8s.io.api.core.v1.LocalObjectReference": ("localObjectReference",),
}


@cache
def _layout() -> dict[str, Any]:
    content = resources.files("controllers.sandbox").joinpath("data/protobuf.json").read_bytes()
    layout: dict[str, Any] = msgspec.json.decode(content)
    return layout
