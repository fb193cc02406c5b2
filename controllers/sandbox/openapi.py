"""OpenAPI v3 documents of what is served: enough for kubectl's explain and for its choice of validation and patch.

There is one document per group and version, with the path of each resource and the schemas that it needs. Built-in
schemas have no descriptions, those of custom resources have what their CRDs say.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from controllers.sandbox.discovery import VERSION
from controllers.sandbox.errors import no_such_page
from controllers.sandbox.registry import Registry, ResourceInfo

PROTOBUF_V2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
REF = "#/components/schemas/"
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def document_v2(accept: str) -> tuple[bytes, str]:
    """The document at /openapi/v2 and its media type: one that describes nothing.

    kubectl asks for it, in protobuf, when it validates what version 3 does not describe, such as a ``List``; what it
    does not find in it, it leaves to the server.
    """
    title, version = b"Kubernetes", VERSION["gitVersion"].encode()
    if "proto" not in accept:
        document = {"swagger": "2.0", "info": {"title": title.decode(), "version": version.decode()}, "paths": {}}
        return msgspec.json.encode(document), "application/json"
    return _field(1, b"2.0") + _field(2, _field(1, title) + _field(2, version)), PROTOBUF_V2


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field of less than 128 bytes."""
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


class OpenApi:
    """The documents for one registry; each is made when it is first asked for, and anew when the registry changes."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._revision = registry.revision
        self._documents: dict[str, bytes] = {}

    def index(self) -> dict[str, Any]:
        """The document at /openapi/v3: where the others are, with a hash by which clients cache them."""
        paths = {self._path(info) for info in self._registry.all()}
        return {"paths": {path: {"serverRelativeURL": self._url(path)} for path in sorted(paths)}}

    def _url(self, path: str) -> str:
        digest = hashlib.sha256(self.document(path)).hexdigest().upper()
        return f"/openapi/v3/{path}?hash={digest}"

    def document(self, path: str) -> bytes:
        """The document of ``api/v1`` or ``apis/GROUP/VERSION``. Raises StatusError 404."""
        if self._revision != self._registry.revision:
            self._documents.clear()
            self._revision = self._registry.revision
        if path not in self._documents:
            infos = [info for info in self._registry.all() if self._path(info) == path]
            if not infos:
                raise no_such_page()
            self._documents[path] = msgspec.json.encode(_document(infos))
        return self._documents[path]

    @staticmethod
    def _path(info: ResourceInfo) -> str:
        return f"apis/{info.api_version}" if info.group else f"api/{info.version}"


def _document(infos: list[ResourceInfo]) -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for info in infos:
        name = _schema_name(info)
        schemas[name] = {**_schema(info, name), "x-kubernetes-group-version-kind": [_kind(info)]}
        paths |= _paths(info, name)
    for name in list(schemas):
        _add_referred(schemas[name], schemas)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _kind(info: ResourceInfo) -> dict[str, str]:
    return {"group": info.group, "version": info.version, "kind": info.kind}


def _schema_name(info: ResourceInfo) -> str:
    if info.custom:
        return ".".join([*reversed(info.group.split(".")), info.version, info.kind])
    return str(_builtins()["kinds"][f"{info.api_version}/{info.kind}"])


def _schema(info: ResourceInfo, name: str) -> dict[str, Any]:
    if not info.custom:
        return dict(_with_full_references(_builtins()["types"][name]))
    schema = dict(info.openapi or {"type": "object"})
    properties = dict(schema.get("properties") or {})
    properties["metadata"] = {"allOf": [{"$ref": REF + OBJECT_META}], "description": "Standard object's metadata."}
    for field in ("apiVersion", "kind"):
        properties.setdefault(field, {"type": "string"})
    return {**schema, "properties": properties}


def _add_referred(node: Any, schemas: dict[str, Any]) -> None:
    for name in _references(node):
        if name not in schemas:
            schemas[name] = _with_full_references(_builtins()["types"][name])
            _add_referred(schemas[name], schemas)


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        target = node.get("$ref")
        if isinstance(target, str):
            yield target.removeprefix(REF)
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def _with_full_references(node: Any) -> Any:
    if isinstance(node, list):
        return [_with_full_references(value) for value in node]
    if not isinstance(node, Mapping):
        return node
    result = {key: _with_full_references(value) for key, value in node.items() if key != "$ref"}
    if isinstance(target := node.get("$ref"), str):
        # Beside a $ref nothing else counts, so one with siblings goes into an allOf.
        reference = {"$ref": REF + target.removeprefix(REF)}
        return {**result, "allOf": [reference]} if result else reference
    return result


def _paths(info: ResourceInfo, name: str) -> dict[str, Any]:
    root = f"/apis/{info.api_version}" if info.group else f"/api/{info.version}"
    base = f"{root}/namespaces/{{namespace}}/{info.plural}" if info.namespaced else f"{root}/{info.plural}"
    body = {"content": {"application/json": {"schema": {"$ref": REF + name}}}}

    def operation(action: str) -> dict[str, Any]:
        return {
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": _kind(info),
            "responses": {"200": {"description": "OK", **body}},
        }

    def write(action: str) -> dict[str, Any]:
        return {**operation(action), "parameters": [_string(name) for name in _WRITE_PARAMETERS]}

    return {
        base: {"get": operation("list"), "post": {**write("post"), "requestBody": body}},
        f"{base}/{{name}}": {
            "get": operation("get"),
            "put": {**write("put"), "requestBody": body},
            "patch": write("patch"),
            "delete": operation("delete"),
        },
    }


_WRITE_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation")


def _string(name: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}


@cache
def _builtins() -> dict[str, Any]:
    text = resources.files("controllers.sandbox").joinpath("data/builtin.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content
