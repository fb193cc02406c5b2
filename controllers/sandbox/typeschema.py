"""The structure of a kind: which fields it has, how its lists and maps merge, what a value must satisfy.

One form serves the built-in kinds (from ``data/builtin.json``, extracted from a real API server's OpenAPI documents)
and those of CustomResourceDefinitions, whose schemas are written in the same dialect.
"""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Final, Literal

ListKind = Literal["atomic", "set", "map"]
MapKind = Literal["granular", "atomic"]

MICRO_TIME: Final = "micro-time"
"""The format of times that OpenAPI calls ``date-time`` like any other, but that must have six digits of a second."""

_OWN_FORMATS: Final[Mapping[str, str]] = {"io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": MICRO_TIME}

MISSING: Final = object()
"""A value that is not there, where ``None`` would be the JSON null."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of ``x-kubernetes-validations``."""

    rule: str
    message: str = ""
    message_expression: str = ""
    reason: str = "FieldValueInvalid"
    field_path: str = ""
    optional_old_self: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What a value of a custom resource must satisfy beside its type; ``None`` is no limit."""

    required: tuple[str, ...] = ()
    enum: tuple[Any, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False
    multiple_of: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    format: str = ""
    min_items: int | None = None
    max_items: int | None = None
    unique_items: bool = False
    min_properties: int | None = None
    max_properties: int | None = None
    any_of: tuple["TypeSchema", ...] = ()
    all_of: tuple["TypeSchema", ...] = ()
    one_of: tuple["TypeSchema", ...] = ()
    not_: "TypeSchema | None" = None
    rules: tuple[Rule, ...] = ()


NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TypeSchema:
    """One node of a kind's structure. ``type`` is OpenAPI's, empty where any value may stand.

    ``values`` is the schema of the values of a map, ``items`` that of a list, ``name`` that of a type which kinds may
    share. Nodes may contain themselves. Two marks are of whole kinds: ``builtin`` for those that the real server keeps
    in typed form, where members with a ``default`` are always present; ``status_apart`` for those whose status is
    written through a subresource.
    """

    type: str = ""
    properties: Mapping[str, "TypeSchema"] = field(default_factory=dict)
    values: "TypeSchema | None" = None
    items: "TypeSchema | None" = None
    list_kind: ListKind = "atomic"
    map_keys: tuple[str, ...] = ()
    map_kind: MapKind = "granular"
    preserve_unknown: bool = False
    int_or_string: bool = False
    embedded: bool = False
    nullable: bool = False
    default: Any = MISSING
    patch_strategy: tuple[str, ...] = ()
    patch_merge_key: str = ""
    limits: Limits = NO_LIMITS
    builtin: bool = False
    status_apart: bool = False
    name: str = ""
    dropped: frozenset[str] = frozenset()
    """Members that the typed form of a built-in kind does not have where they are "", 0 or false."""
    written: Mapping[str, Any] = field(default_factory=dict)
    """Members that the typed form always has, with what they are where nothing is said of them."""

    def field(self, name: str) -> "TypeSchema":
        """The schema of a member; ``ANY`` where none is declared."""
        return self.properties.get(name) or self.values or ANY

    def declares(self, name: str) -> bool:
        """Whether an object may have this member."""
        return name in self.properties or self.values is not None or self.preserve_unknown or not self.type

    def element(self) -> "TypeSchema":
        """The schema of a list's items."""
        return self.items or ANY


ANY: Final = TypeSchema(preserve_unknown=True)


class UnknownKind(LookupError):
    """No built-in kind of that group, version and kind; the message names it."""


def builtin(group: str, version: str, kind: str) -> TypeSchema:
    """The schema of a built-in kind. Raises UnknownKind."""
    return _builtins().kind(f"{group}/{version}/{kind}" if group else f"{version}/{kind}")


def builtin_kinds() -> frozenset[str]:
    """All that are known, as ``v1/Pod`` or ``apps/v1/Deployment``."""
    return frozenset(_builtins().kinds)


def object_meta() -> TypeSchema:
    """The schema of ``metadata``, which is the same for every kind."""
    return builtin("", "v1", "ConfigMap").properties["metadata"]


def zero(schema: TypeSchema) -> dict[str, Any]:
    """What an empty object of a built-in kind consists of: members that are always written, some of them as null."""
    empty: dict[str, Any] = {}
    for name, nothing in schema.written.items():
        if name in schema.properties:
            empty[name] = zero(schema.properties[name]) if nothing == {} else nothing
    return empty


def custom(node: Mapping[str, Any], *, status_apart: bool = False) -> TypeSchema:
    """The structure of a custom kind from its ``openAPIV3Schema``, with the API's own ``metadata`` in it."""
    schema = parse(node)
    return replace(schema, properties={**schema.properties, **_envelope()}, status_apart=status_apart)


def _envelope() -> Mapping[str, TypeSchema]:
    return {"apiVersion": _STRING, "kind": _STRING, "metadata": object_meta()}


def parse(node: Mapping[str, Any], resolve: Callable[[str], TypeSchema] | None = None) -> TypeSchema:
    """A schema node in OpenAPI's dialect. ``resolve`` finds the target of a ``$ref``; without it there may be none."""
    if resolve and (target := _reference(node)):
        return _with_overrides(resolve(target), node)
    return _fill(node, resolve, {})


def _reference(node: Mapping[str, Any]) -> str:
    wrapped = node.get("allOf")
    holder = wrapped[0] if isinstance(wrapped, list) and len(wrapped) == 1 else node
    return str(holder.get("$ref", "")).removeprefix("#/components/schemas/")


def _with_overrides(schema: TypeSchema, node: Mapping[str, Any]) -> TypeSchema:
    """A shared type as one field has it: with the field's own default and merge semantics."""
    own: dict[str, Any] = {}
    if "default" in node:
        own["default"] = node["default"]
    if "x-kubernetes-map-type" in node:
        own["map_kind"] = node["x-kubernetes-map-type"]
    if "x-kubernetes-patch-strategy" in node:
        own["patch_strategy"] = tuple(str(node["x-kubernetes-patch-strategy"]).split(","))
    return replace(schema, **own) if own else schema


def _fill(
    node: Mapping[str, Any], resolve: Callable[[str], TypeSchema] | None, properties: dict[str, TypeSchema]
) -> TypeSchema:
    for name, member in node.get("properties", {}).items():
        properties[name] = parse(member, resolve)
    if node.get("x-kubernetes-embedded-resource"):
        properties.update(_envelope())
    return replace(_shape(node, resolve), properties=properties)


def _shape(node: Mapping[str, Any], resolve: Callable[[str], TypeSchema] | None) -> TypeSchema:
    additional, items = node.get("additionalProperties"), node.get("items")
    return TypeSchema(
        type=_type(node),
        values=_additional(additional, resolve),
        items=parse(items, resolve) if isinstance(items, dict) else None,
        list_kind=node.get("x-kubernetes-list-type", "atomic"),
        map_keys=tuple(node.get("x-kubernetes-list-map-keys", ())),
        map_kind="atomic" if node.get("x-kubernetes-map-type") == "atomic" else "granular",
        preserve_unknown=bool(node.get("x-kubernetes-preserve-unknown-fields")),
        int_or_string=_int_or_string(node),
        embedded=bool(node.get("x-kubernetes-embedded-resource")),
        nullable=bool(node.get("nullable")),
        default=node.get("default", MISSING),
        patch_strategy=tuple(filter(None, str(node.get("x-kubernetes-patch-strategy", "")).split(","))),
        patch_merge_key=str(node.get("x-kubernetes-patch-merge-key", "")),
        limits=_limits(node),
    )


def _int_or_string(node: Mapping[str, Any]) -> bool:
    return bool(node.get("x-kubernetes-int-or-string")) or node.get("format") == "int-or-string"


def _type(node: Mapping[str, Any]) -> str:
    """OpenAPI's type; none for the unions of scalars (a quantity, an integer or a string)."""
    return "" if _int_or_string(node) else str(node.get("type", ""))


def _additional(node: Any, resolve: Callable[[str], TypeSchema] | None) -> TypeSchema | None:
    if node is True:
        return ANY
    return parse(node, resolve) if isinstance(node, dict) else None


def _limits(node: Mapping[str, Any]) -> Limits:
    if node.keys().isdisjoint(_LIMIT_KEYS):
        return NO_LIMITS
    return Limits(
        required=tuple(node.get("required", ())),
        enum=tuple(node["enum"]) if "enum" in node else None,
        minimum=node.get("minimum"),
        maximum=node.get("maximum"),
        exclusive_minimum=bool(node.get("exclusiveMinimum")),
        exclusive_maximum=bool(node.get("exclusiveMaximum")),
        multiple_of=node.get("multipleOf"),
        min_length=node.get("minLength"),
        max_length=node.get("maxLength"),
        pattern=node.get("pattern"),
        format=str(node.get("format", "")),
        min_items=node.get("minItems"),
        max_items=node.get("maxItems"),
        unique_items=bool(node.get("uniqueItems")),
        min_properties=node.get("minProperties"),
        max_properties=node.get("maxProperties"),
        any_of=tuple(parse(part) for part in node.get("anyOf", ())),
        all_of=tuple(parse(part) for part in node.get("allOf", ())),
        one_of=tuple(parse(part) for part in node.get("oneOf", ())),
        not_=parse(node["not"]) if "not" in node else None,
        rules=tuple(_rule(entry) for entry in node.get("x-kubernetes-validations", ())),
    )


def _rule(entry: Mapping[str, Any]) -> Rule:
    return Rule(
        rule=str(entry.get("rule", "")),
        message=str(entry.get("message", "")),
        message_expression=str(entry.get("messageExpression", "")),
        reason=str(entry.get("reason") or "FieldValueInvalid"),
        field_path=str(entry.get("fieldPath", "")),
        optional_old_self=bool(entry.get("optionalOldSelf")),
    )


_LIMIT_KEYS: Final = frozenset(
    (
        *("required", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength"),
        *("maxLength", "pattern", "format", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"),
        *("anyOf", "allOf", "oneOf", "not", "x-kubernetes-validations"),
    )
)
_STRING: Final = TypeSchema(type="string")


class _Builtins:
    """The types of the data file, parsed when first asked for: most runs need a few."""

    def __init__(self, document: Mapping[str, Any], zeros: Mapping[str, Any]) -> None:
        self._zeros = zeros
        self.kinds: Mapping[str, str] = document["kinds"]
        self._types: Mapping[str, Any] = document["types"]
        self._parsed: dict[str, TypeSchema] = {}

    def kind(self, name: str) -> TypeSchema:
        if name not in self.kinds:
            raise UnknownKind(f"{name} is no built-in kind of the sandbox")
        schema = self._type(self.kinds[name])
        return replace(schema, builtin=True, status_apart="status" in schema.properties)

    def _type(self, name: str) -> TypeSchema:
        if name not in self._parsed:
            # A type that contains itself finds this node, whose properties are filled in afterwards.
            properties: dict[str, TypeSchema] = {}
            node = self._types[name]
            if name in _OWN_FORMATS:
                node = {**node, "format": _OWN_FORMATS[name]}
            self._parsed[name] = TypeSchema(type=_type(node), properties=properties, name=name)
            zeros = self._zeros.get(name, {})
            dropped, written = frozenset(zeros.get("dropped", ())), zeros.get("written", {})
            filled = _fill(node, self._type, properties)
            self._parsed[name] = replace(filled, name=name, dropped=dropped, written=written)
        return self._parsed[name]


@functools.cache
def _builtins() -> _Builtins:
    data = resources.files("controllers.sandbox").joinpath("data")
    document, zeros = (
        json.loads(data.joinpath(name).read_text(encoding="utf-8")) for name in ("builtin.json", "zeros.json")
    )
    return _Builtins(document, zeros)
