"""A CustomResourceDefinition as the sandbox serves it: names, and per version its schema, columns and subresources.

What the real server refuses is refused in its words, and so is what the sandbox cannot honour: rules that its CEL
library does not compile, and conversion by webhook. Nothing is ignored.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from controllers.sandbox import fieldset
from controllers.sandbox.cel import RuleError, compiled
from controllers.sandbox.columns import Column, custom_columns
from controllers.sandbox.errors import Cause, StatusError, invalid
from controllers.sandbox.typeschema import Rule, TypeSchema, custom, parse

Node: TypeAlias = Mapping[str, Any]

GROUP: Final = "apiextensions.k8s.io"
KIND: Final = "CustomResourceDefinition"
COLUMN_TYPES: Final = ("boolean", "date", "integer", "number", "string")
TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")
LABEL: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")


@dataclass(frozen=True, slots=True)
class CompiledVersion:
    """One version of a custom kind. ``scale`` has the paths of the scale subresource, where there is one."""

    name: str
    served: bool
    storage: bool
    schema: TypeSchema
    openapi: Node
    columns: tuple[Column, ...] = ()
    status: bool = False
    scale: Mapping[str, str] | None = None
    selectable: tuple[str, ...] = ()
    deprecation_warning: str = ""


@dataclass(frozen=True, slots=True)
class CompiledCrd:
    """A custom kind with everything that its defaults fill in."""

    group: str
    kind: str
    list_kind: str
    plural: str
    singular: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    versions: tuple[CompiledVersion, ...] = field(default=())

    @property
    def storage(self) -> CompiledVersion:
        """The version that objects are stored in."""
        return next(version for version in self.versions if version.storage)


def compile(manifest: Node) -> CompiledCrd:  # noqa: A001 - what it does, as in re.compile
    """What a definition says. Raises StatusError 422 with a cause for everything that is wrong with it."""
    spec = manifest.get("spec") or {}
    causes = [*_spec_faults(manifest, spec), *_schema_faults(spec)]
    if causes:
        raise _invalid(manifest, causes)
    names = spec["names"]
    return CompiledCrd(
        group=spec["group"],
        kind=names["kind"],
        list_kind=names.get("listKind") or f"{names['kind']}List",
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        versions=tuple(_version(entry) for entry in spec["versions"]),
    )


def _version(entry: Node) -> CompiledVersion:
    subresources = entry.get("subresources") or {}
    schema = entry["schema"]["openAPIV3Schema"]
    warning = entry.get("deprecationWarning") or ""
    return CompiledVersion(
        name=entry["name"],
        served=bool(entry.get("served")),
        storage=bool(entry.get("storage")),
        schema=custom(schema, status_apart="status" in subresources),
        openapi=schema,
        columns=custom_columns(entry.get("additionalPrinterColumns") or ()),
        status="status" in subresources,
        scale=subresources.get("scale"),
        selectable=tuple(path["jsonPath"].removeprefix(".") for path in entry.get("selectableFields") or ()),
        deprecation_warning=warning if entry.get("deprecated") else "",
    )


def _invalid(manifest: Node, causes: Sequence[Cause]) -> StatusError:
    return invalid(GROUP, KIND, (manifest.get("metadata") or {}).get("name", ""), causes)


# --- the definition itself


def _spec_faults(manifest: Node, spec: Node) -> Iterator[Cause]:
    names = spec.get("names") or {}
    group, plural = spec.get("group") or "", names.get("plural") or ""
    name = (manifest.get("metadata") or {}).get("name", "")
    if name != f"{plural}.{group}":
        yield _bad("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
    if not group:
        yield _required("spec.group")
    elif "." not in group:
        yield _bad("spec.group", group, "should be a domain with at least one dot")
    if not spec.get("scope"):
        yield _required("spec.scope")
    elif spec["scope"] not in ("Cluster", "Namespaced"):
        yield _unsupported("spec.scope", spec["scope"], ("Cluster", "Namespaced"))
    yield from (_required(f"spec.names.{key}") for key in ("plural", "kind") if not names.get(key))
    yield from _version_faults(spec.get("versions") or [])
    strategy = (spec.get("conversion") or {}).get("strategy", "None")
    if strategy != "None":
        yield _bad("spec.conversion.strategy", strategy, "the sandbox converts between versions only by strategy None")
    if spec.get("preserveUnknownFields"):
        why = "must be false: to preserve unknown fields set x-kubernetes-preserve-unknown-fields in the schema"
        yield _bad("spec.preserveUnknownFields", True, why)


def _version_faults(versions: Sequence[Node]) -> Iterator[Cause]:
    names = [version.get("name", "") for version in versions]
    for index, version in enumerate(versions):
        at = f"spec.versions[{index}]"
        if not LABEL.match(version.get("name", "")):
            yield _bad(f"{at}.name", version.get("name", ""), "a DNS-1035 label must start with a letter and consist of"
                       " lower case alphanumeric characters or '-'")  # fmt: skip
        if not (version.get("schema") or {}).get("openAPIV3Schema"):
            yield _required(f"{at}.schema.openAPIV3Schema")
        for place, column in enumerate(version.get("additionalPrinterColumns") or ()):
            yield from _column_faults(column, f"{at}.additionalPrinterColumns[{place}]")
    stored = sum(1 for version in versions if version.get("storage"))
    shown = fieldset.compact([_shown_version(version) for version in versions], sort=False)
    if len(set(names)) != len(names):
        why = f"Invalid value: {shown}: must contain unique version names"
        yield Cause("FieldValueInvalid", why, "spec.versions")
    if stored != 1:
        why = f"Invalid value: {shown}: must have exactly one version marked as storage version"
        yield Cause("FieldValueInvalid", why, "spec.versions")
    if not stored:
        why = "Invalid value: null: must have at least one stored version"
        yield Cause("FieldValueInvalid", why, "status.storedVersions")


def _column_faults(column: Node, path: str) -> Iterator[Cause]:
    if not column.get("name"):
        yield _required(f"{path}.name")
    if column.get("type") not in COLUMN_TYPES:
        yield _bad(f"{path}.type", column.get("type", ""), f"must be one of {','.join(COLUMN_TYPES)}")
    if not column.get("jsonPath"):
        yield _required(f"{path}.JSONPath")


# --- schemas


def _schema_faults(spec: Node) -> Iterator[Cause]:
    versions = spec.get("versions") or []
    for index, version in enumerate(versions):
        if schema := (version.get("schema") or {}).get("openAPIV3Schema"):
            # A single schema is kept, and so named, at the top of the definition.
            shared = all(other.get("schema") == version["schema"] for other in versions)
            place = "spec.validation" if shared else f"spec.versions[{index}].schema"
            yield from _Structure().faults(schema, f"{place}.openAPIV3Schema", "root")
            if shared:
                return


class _Structure:
    """The rules of structural schemas, and the compilation of their CEL rules."""

    def faults(self, node: Node, path: str, level: str, loose: str = "") -> Iterator[Cause]:
        """Faults of a node and of all below it; ``loose`` is the path of a list above whose items have no identity."""
        kind = node.get("type", "")
        yield from _type_faults(node, kind, path, level)
        yield from _list_faults(node, kind, path)
        yield from _rule_faults(node, path, loose, level)
        for name, member in node.get("properties", {}).items():
            yield from self.faults(member, f"{path}.properties[{name}]", "field", loose)
        if isinstance(node.get("additionalProperties"), dict):
            yield from self.faults(node["additionalProperties"], f"{path}.additionalProperties", "field", loose)
        if isinstance(node.get("items"), dict):
            keyed = node.get("x-kubernetes-list-type") == "map"
            yield from self.faults(node["items"], f"{path}.items", "item", loose if keyed else loose or path)


_EMPTY_TYPE: Final = {
    "root": "must not be empty at the root",
    "item": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}


def _type_faults(node: Node, kind: str, path: str, level: str) -> Iterator[Cause]:
    free = node.get("x-kubernetes-int-or-string") or node.get("x-kubernetes-preserve-unknown-fields")
    if not kind and not free:
        yield _required(f"{path}.type", _EMPTY_TYPE[level])
    elif kind and kind not in TYPES:
        yield _unsupported(f"{path}.type", kind, TYPES)
    elif level == "root" and kind and kind != "object":
        yield _bad(f"{path}.type", kind, "must be object at the root")
    if "$ref" in node:
        yield Cause("FieldValueForbidden", "Forbidden: $ref is not supported", f"{path}.$ref")
    if kind == "array" and "items" not in node:
        yield _required(f"{path}.items", "must be specified")
    if level == "root" and "additionalProperties" in node:
        why = "Forbidden: must not be used at the root"
        yield Cause("FieldValueForbidden", why, f"{path}.additionalProperties")
    if "properties" in node and "additionalProperties" in node:
        why = "Forbidden: additionalProperties and properties are mutual exclusive"
        yield Cause("FieldValueForbidden", why, f"{path}.additionalProperties")
    if node.get("uniqueItems"):
        why = "Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield Cause("FieldValueForbidden", why, f"{path}.uniqueItems")
    if "pattern" in node:
        yield from _pattern_faults(node["pattern"], f"{path}.pattern")


def _pattern_faults(pattern: str, path: str) -> Iterator[Cause]:
    try:
        re.compile(pattern)
    except re.error as error:
        yield _bad(path, pattern, f"must be a valid regular expression, but isn't: {error}")


def _list_faults(node: Node, kind: str, path: str) -> Iterator[Cause]:
    sort, keys = node.get("x-kubernetes-list-type"), node.get("x-kubernetes-list-map-keys") or []
    if sort is None:
        if keys:
            yield _required(f"{path}.x-kubernetes-list-type", "must be map if x-kubernetes-list-map-keys is non-empty")
        return
    if sort not in ("atomic", "set", "map"):
        yield _unsupported(f"{path}.x-kubernetes-list-type", sort, ("atomic", "map", "set"))
    if kind != "array":
        yield _bad(f"{path}.type", kind, "must be array if x-kubernetes-list-type is specified")
    if sort == "map" and not keys:
        yield _required(f"{path}.x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map")
    items = node.get("items") or {}
    if sort == "map":
        yield from _key_faults(items, keys, path)


def _key_faults(items: Node, keys: Sequence[str], path: str) -> Iterator[Cause]:
    properties, required = items.get("properties") or {}, items.get("required") or ()
    for index, key in enumerate(keys):
        if key not in properties:
            why = "entries must all be names of item properties"
            yield _bad(f"{path}.x-kubernetes-list-map-keys[{index}]", key, why)
        elif key not in required and "default" not in properties[key]:
            where = f"{path}.items.properties[{key}].default"
            yield _required(where, "this property is in x-kubernetes-list-map-keys, so it must have a default or be a"
                            " required property")  # fmt: skip


def _rule_faults(node: Node, path: str, loose: str, level: str) -> Iterator[Cause]:
    if not node.get("x-kubernetes-validations"):
        return
    schema = custom(node) if level == "root" else parse(node)
    for index, rule in enumerate(schema.limits.rules):
        at = f"{path}.x-kubernetes-validations[{index}]"
        if not rule.rule.strip():
            yield _required(f"{at}.rule", "rule is not specified")
            continue
        if "\n" in rule.rule.strip() and not rule.message:
            yield _required(f"{at}.message", "message must be specified if rule contains line breaks")
        try:
            program = compiled(rule, schema)
        except RuleError as error:
            yield Cause("FieldValueInvalid", f"Invalid value: {_shown(rule)}: {error}", f"{at}.rule")
            continue
        if program.about_change and loose:
            why = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {loose}"
            yield _bad(f"{at}.rule", rule.rule, why)


def _shown(rule: Rule) -> str:
    """A rule as the real server's messages show it: with the names of its own structures."""
    members = {
        "Rule": rule.rule,
        "Message": rule.message,
        "MessageExpression": rule.message_expression,
        "Reason": None if rule.reason == "FieldValueInvalid" else rule.reason,
        "FieldPath": rule.field_path,
        "OptionalOldSelf": rule.optional_old_self or None,
    }
    return fieldset.compact(members, sort=False)


def _shown_version(version: Node) -> Node:
    """A version as the real server shows it, which holds what all versions share elsewhere."""
    return {
        "Name": version.get("name", ""),
        "Served": bool(version.get("served")),
        "Storage": bool(version.get("storage")),
        "Deprecated": bool(version.get("deprecated")),
        "DeprecationWarning": version.get("deprecationWarning"),
        **dict.fromkeys(("Schema", "Subresources", "AdditionalPrinterColumns", "SelectableFields")),
    }


def _required(path: str, why: str = "") -> Cause:
    return Cause("FieldValueRequired", f"Required value: {why}" if why else "Required value", path)


def _bad(path: str, value: Any, why: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: {why}", path)


def _unsupported(path: str, value: Any, supported: Sequence[str]) -> Cause:
    listed = ", ".join(f'"{choice}"' for choice in supported)
    return Cause("FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {listed}', path)
