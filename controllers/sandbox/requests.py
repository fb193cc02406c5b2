"""Reading requests: which resource a path means, what the parameters say, which format the client wants."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
LARGEST = 2**63 - 1  # of the API's whole numbers
_NAME = re.compile(rb'"\s*:')  # ends every name, and now and then it is in a text
_LARGE = re.compile(rb"\d{19}")
_PARAMETER = re.compile(r"""\s*[\w!#$&^.+-]+=("[^"]*"|[\w!#$&^.+-]+)\s*""")
MAXIMUM_YAML = 1_000_000  # values in a document, those that aliases repeat counted again


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


PLAIN = Rendering()
_NO_NAMES = frozenset({"", ".", ".."})


def split_path(raw: str) -> list[str]:
    """The decoded segments of a path as it was sent. Raises StatusError 404 for one that climbs or has empty parts."""
    segments = raw.removeprefix("/").removesuffix("/").split("/")
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


def verb_of(method: str, query: Mapping[str, str], target: Target) -> str:
    """The API's verb for a method on a resource, "" for a method that means none. HEAD is a way to get."""
    match method:
        case "GET" | "HEAD":
            if target.name:
                return "get"
            return "watch" if is_true(query, "watch") else "list"
        case "POST":
            return "create"
        case "PUT":
            return "update"
        case "PATCH":
            return "patch"
        case "DELETE":
            return "delete" if target.name else "deletecollection"
    return ""


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
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax in parameter {name}')
    if len(text) > len(str(LARGEST)) or abs(int(text)) > LARGEST:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": value out of range in parameter {name}')
    # The API takes a count below zero for none.
    return max(0, int(text))


def is_true(query: Mapping[str, str], name: str) -> bool:
    """Whether a parameter is there and says anything but no, as the API reads truth."""
    return name in query and query[name].lower() not in {"0", "false"}


class _Range(msgspec.Struct, frozen=True):
    """One part of an Accept header."""

    media_type: str
    parameters: Mapping[str, str]

    @property
    def quality(self) -> float:
        """How much it is wanted; what cannot be read as a number is wanted most, and 0 is no refusal."""
        try:
            return float(self.parameters.get("q", 1.0))
        except ValueError:
            return 1.0


def _ranges(accept: str) -> list[_Range]:
    """What a client accepts, the most wanted first."""
    ranges = []
    for part in accept.split(","):
        media_type, *pairs = (piece.strip() for piece in part.split(";"))
        ranges.append(_Range(media_type, dict(pair.partition("=")[::2] for pair in pairs if "=" in pair)))
    return sorted(ranges, key=lambda each: -each.quality)


def rendering_of(accept: str | None, *, streamed: bool = False) -> Rendering:
    """The most wanted format of an Accept header that objects can be written in. Raises StatusError 406.

    Whether that is JSON or YAML is for ``wants_yaml``; what is ``streamed``, as watches are, is never YAML.
    """
    if not accept or accept == JSON:
        return PLAIN
    ranges = _ranges(accept)
    # The real server's routing does not know that a type may be any of its group, and so refuses these alone.
    if any(each.media_type in _WRITTEN for each in ranges):
        for each in ranges:
            if each.media_type in _ACCEPTED and (rendering := _rendering(each.parameters)) is not None:
                if streamed and each.media_type == YAML:
                    raise not_acceptable([f"{JSON};stream=watch"])
                return rendering
    raise not_acceptable([JSON, YAML])


_WRITTEN = frozenset({JSON, YAML, "*/*"})
_ACCEPTED = _WRITTEN | {"application/*"}
_METADATA_KINDS = frozenset({"Table", "PartialObjectMetadata", "PartialObjectMetadataList"})
_METADATA_VERSIONS = frozenset({"v1", "v1beta1"})


def _rendering(parameters: Mapping[str, str]) -> Rendering | None:
    kind, group, version = (parameters.get(name, "") for name in ("as", "g", "v"))
    if not kind and not group and not version:
        return PLAIN
    known = kind in _METADATA_KINDS and group == "meta.k8s.io" and version in _METADATA_VERSIONS
    return Rendering(kind, version) if known else None


def wants_yaml(accept: str | None) -> bool:
    """Whether a client wants YAML more than JSON."""
    if not accept or "yaml" not in accept:
        return False
    return next((each.media_type == YAML for each in _ranges(accept) if each.media_type in _ACCEPTED), False)


def wants_aggregated(accept: str | None) -> bool:
    """Whether a client knows aggregated discovery, however little it wants it."""
    return any(
        (each.parameters.get("as"), each.parameters.get("g"), each.parameters.get("v"))
        == ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2")
        for each in _ranges(accept or "")
    )


def check_document(accept: str | None) -> None:
    """Refuses to write a document of discovery in a form that it does not have. Raises StatusError 406."""
    accepted = (each for each in _ranges(accept) if each.media_type in _ACCEPTED) if accept else ()
    if accept and all("as" in each.parameters for each in accepted):
        raise not_acceptable([JSON, YAML])


def decode_body(body: bytes, content_type: str) -> Any:
    """The object in a body. Raises StatusError 400 where it is none, 415 for a format that is not read."""
    media_type = _checked_type(content_type) or JSON
    if media_type == JSON:
        return _decode_json(body)
    if media_type == YAML:
        return _decode_yaml(body)
    if media_type == protobuf.MEDIA_TYPE:
        return protobuf.decode(body)
    raise unsupported_media_type(_READ)


def decode_patch(body: bytes, content_type: str) -> Any:
    """What a patch says, whose type is one of the four. Raises StatusError 400, and 415 for broken parameters."""
    if _checked_type(content_type) == APPLY_PATCH:
        return _decode_yaml(body)
    try:
        return _parse_json(body)
    except (msgspec.DecodeError, RecursionError):
        raise bad_request("invalid JSON patch") from None


_READ = (JSON, YAML, protobuf.MEDIA_TYPE)


def _checked_type(content_type: str) -> str:
    media_type, *parameters = content_type.split(";")
    if not all(_PARAMETER.fullmatch(each) for each in parameters):
        raise unsupported_media_type(_READ)
    return media_type.strip().lower()


def _decode_json(body: bytes) -> Any:
    try:
        return _parse_json(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"the object provided is unrecognized: it is not valid JSON: {error}") from None


def duplicate_fields(body: bytes, content: Any) -> tuple[str, ...]:
    """The paths of fields that valid JSON gives more than once; ``content`` is what it says, where the last one counts.

    There are none where no more names are written than are there in the end, which is quick to count.
    """
    if len(_NAME.findall(body)) == _members(content):
        return ()
    written = json.loads(body.decode(errors="replace"), object_pairs_hook=_Pairs)
    return tuple(dict.fromkeys(_repetitions(written, "")))


def _members(content: Any) -> int:
    """How many members all objects have."""
    count, left = 0, [content]
    while left:
        each = left.pop()
        if type(each) is dict:
            count += len(each)
            left += each.values()
        elif type(each) is list:
            left += each
    return count


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON as it was written."""


def _repetitions(content: Any, path: str) -> Iterator[str]:
    if isinstance(content, _Pairs):
        seen: set[str] = set()
        for name, value in content:
            below = f"{path}.{name}" if path else name
            if name in seen:
                yield below
            seen.add(name)
            yield from _repetitions(value, below)
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from _repetitions(value, f"{path}[{index}]")


def _parse_json(body: bytes) -> Any:
    """JSON as the real server reads it: bytes that are no UTF-8 are replaced, and numbers too large become floats."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        replaced = body.decode(errors="replace").encode()
        if replaced == body:
            raise
        content = msgspec.json.decode(replaced)
    return _with_floats(content) if _LARGE.search(body) else content


def _with_floats(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _with_floats(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_with_floats(value) for value in content]
    if isinstance(content, int) and abs(content) > LARGEST:
        return _as_float(content)
    return content


def _as_float(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        raise bad_request("the object provided is unrecognized: it has a number that is out of range") from None


def _decode_yaml(body: bytes) -> Any:
    # Most clients send JSON as YAML, which it is; the JSON parser is a hundred times faster.
    try:
        return _parse_json(body)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        content = yaml.load(body, _Loader)  # noqa: S506 - a safe loader without timestamps
        _check_aliases(content, {}, set())
        return _with_floats(content)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise bad_request(f"error decoding YAML: {' '.join(str(error).split())}") from None


def _check_aliases(content: Any, sizes: dict[int, int], above: set[int]) -> int:
    """How many values a document has once its aliases are written out. Raises ValueError for too many, or a circle."""
    if not isinstance(content, dict | list):
        return 1
    if id(content) in above:
        raise ValueError("document contains itself")
    if id(content) not in sizes:
        below = content.values() if isinstance(content, dict) else content
        sizes[id(content)] = 1 + sum(_check_aliases(each, sizes, above | {id(content)}) for each in below)
    if sizes[id(content)] > MAXIMUM_YAML:
        raise ValueError("document contains excessive aliasing")
    return sizes[id(content)]


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: the types of JSON only, so a timestamp stays text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as in the base class
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
