"""Reading requests: which resource a path means, what the parameters say, which format the client wants."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec
import yaml

from controllers.sandbox import protobuf
from controllers.sandbox.errors import bad_request, no_such_path, not_acceptable, unsupported_media_type

JSON = "application/json"
YAML = "application/yaml"
APPLY_PATCH = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
TRUE = frozenset({"true", "1", "t", "T", "TRUE", "True"})


class Target(msgspec.Struct, frozen=True):
    """What the path of a request for a resource means; parts that it does not have are ""."""

    group: str
    version: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Rendering:
    """The format of an answer: plain objects ("") or as Table, PartialObjectMetadata, PartialObjectMetadataList."""

    kind: str = ""
    version: str = "v1"
    parameters: Mapping[str, str] = field(default_factory=dict)


PLAIN = Rendering()
_NO_NAMES = frozenset({"", ".", ".."})


def split_path(raw: str) -> list[str]:
    """The decoded segments of a path as it was sent. Raises StatusError 404 for one that climbs or has empty parts."""
    segments = raw.strip("/").split("/")
    if "%" in raw:
        segments = [unquote(segment) for segment in segments]
        if any("/" in segment or "\0" in segment for segment in segments):
            raise no_such_path()
    if not _NO_NAMES.isdisjoint(segments) or "\0" in raw:
        raise no_such_path()
    return segments


def resource_target(segments: list[str]) -> Target | None:
    """The resource that a path means, None for the paths of discovery. Raises StatusError 404."""
    match segments:
        case ["api", version, *rest]:
            group = ""
        case ["apis", group, version, *rest]:
            pass
        case _:
            return None
    if not rest:
        return None
    match rest:
        case ["namespaces", _, "status" | "finalize"] if not group:
            return Target(group, version, "namespaces", "", *rest[1:])
        case ["namespaces", namespace, resource, *more] if len(more) <= 2:
            return Target(group, version, resource, namespace, *more)
        case [resource, *more] if len(more) <= 2:
            return Target(group, version, resource, "", *more)
    raise no_such_path()


def query_of(text: str) -> dict[str, str]:
    """The parameters of a query; the first of several with one name counts."""
    query: dict[str, str] = {}
    if not text:
        return query
    for name, value in parse_qsl(text, keep_blank_values=True):
        query.setdefault(name, value)
    return query


def whole_number(query: Mapping[str, str], name: str) -> int:
    """A parameter that is a count; 0 where it is not there. Raises StatusError 400."""
    text = query.get(name, "")
    if not text:
        return 0
    if not text.isascii() or not text.isdigit():
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax in parameter {name}')
    return int(text)


def rendering_of(accept: str | None) -> Rendering:
    """The first format of an Accept header that can be written. Raises StatusError 406."""
    if not accept or accept == JSON:
        return PLAIN
    for part in accept.split(","):
        media_type, *pairs = (piece.strip() for piece in part.split(";"))
        parameters = dict(pair.partition("=")[::2] for pair in pairs if "=" in pair)
        if media_type not in {JSON, "application/*", "*/*"}:
            continue
        kind = parameters.get("as", "")
        if not kind:
            return PLAIN
        if _can_render(kind, parameters):
            return Rendering(kind, parameters.get("v", "v1"), parameters)
    raise not_acceptable([JSON])


def _can_render(kind: str, parameters: Mapping[str, str]) -> bool:
    kinds = {"Table", "PartialObjectMetadata", "PartialObjectMetadataList"}
    if kind == "APIGroupDiscoveryList":
        return parameters.get("g") == "apidiscovery.k8s.io" and parameters.get("v") in {"v2", "v2beta1"}
    return kind in kinds and parameters.get("g") == "meta.k8s.io" and parameters.get("v") == "v1"


def decode_body(body: bytes, content_type: str) -> Any:
    """The object in a body. Raises StatusError 400 where it is none, 415 for a format that is not read."""
    media_type = content_type.partition(";")[0].strip() or JSON
    if media_type in {JSON, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH}:
        return _decode_json(body)
    if media_type in {YAML, APPLY_PATCH}:
        return _decode_yaml(body)
    if media_type == protobuf.MEDIA_TYPE:
        return protobuf.decode(body)
    raise unsupported_media_type([JSON, YAML, protobuf.MEDIA_TYPE])


def _decode_json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the object provided is unrecognized: it is not valid JSON: {error}") from None


def _decode_yaml(body: bytes) -> Any:
    # Most clients send JSON as YAML, which it is; the JSON parser is a hundred times faster.
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return yaml.load(body, _Loader)  # noqa: S506 - a safe loader without timestamps
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise bad_request(f"error decoding YAML: {' '.join(str(error).split())}") from None


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: the types of JSON only, so a timestamp stays text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as in the base class
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
