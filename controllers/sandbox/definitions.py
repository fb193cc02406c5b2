"""CustomResourceDefinitions at work: what the server adds to them, and the resources that they make it serve."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controllers.sandbox import crd
from controllers.sandbox.crd import CompiledCrd, CompiledVersion
from controllers.sandbox.errors import Cause, invalid
from controllers.sandbox.lifecycle import Object
from controllers.sandbox.registry import Registry, ResourceInfo

CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
"""The finalizer that holds a definition until its objects are gone."""


@dataclass(frozen=True, slots=True)
class Definitions:
    """Keeps the registry in step with the definitions in the store."""

    registry: Registry

    def prepared(self, definition: Object) -> Object:
        """A definition with defaults. Raises StatusError 422 for one that cannot be served."""
        spec = definition["spec"]
        compiled = crd.compile(definition)
        self._check_free(definition, compiled)
        if any(version.scale for version in compiled.versions):
            text = "Forbidden: the scale subresource is not supported by gpu-mirage-sandbox"
            cause = Cause("FieldValueForbidden", text, "spec.versions")
            raise invalid(crd.GROUP, crd.KIND, definition["metadata"]["name"], [cause])
        names = {**spec["names"], "singular": compiled.singular, "listKind": compiled.list_kind}
        spec = {"conversion": {"strategy": "None"}, **spec, "names": names}
        return {**definition, "spec": spec, "status": _status(definition, compiled)}

    def _check_free(self, definition: Object, compiled: CompiledCrd) -> None:
        """Refuses a definition of what another one, or the server itself, serves already."""
        for info in self.registry.all():
            same_resource = (info.group, info.plural) == (compiled.group, compiled.plural)
            same_kind = (info.group, info.kind) == (compiled.group, compiled.kind)
            if (same_resource and not info.custom) or (same_kind and not same_resource):
                text = f'Invalid value: "{compiled.kind}": {info.plural}.{info.group} is served already'
                cause = Cause("FieldValueInvalid", text, "spec.names")
                raise invalid(crd.GROUP, crd.KIND, definition["metadata"]["name"], [cause])

    def changed(self, definition: Object | None, before: Object | None) -> None:
        """Serves what a definition says, after it was stored or removed."""
        shown = definition or before
        assert shown is not None
        spec = shown["spec"]
        infos = _infos(crd.compile(definition)) if definition else []
        self.registry.replace_custom(spec["group"], spec["names"]["plural"], infos)


def _status(definition: Object, compiled: CompiledCrd) -> Object:
    before = {"conditions": None, "acceptedNames": {"plural": "", "kind": ""}} | (definition.get("status") or {})
    stored = list(before.get("storedVersions") or [])
    if compiled.storage.name not in stored:
        stored.append(compiled.storage.name)
    return {**before, "storedVersions": stored}


def needs_establishing(definition: Mapping[str, Any]) -> bool:
    """Whether a definition does not yet say that it is served under its present names."""
    status = definition.get("status") or {}
    return not status.get("conditions") or status.get("acceptedNames") != definition["spec"]["names"]


def established(definition: Object, now: str) -> Object:
    """A definition that says that it is served, and that is held until its objects are gone."""
    finalizers = definition["metadata"].get("finalizers") or []
    metadata = {**definition["metadata"], "finalizers": [*(f for f in finalizers if f != CLEANUP), CLEANUP]}
    conditions = [
        _condition("NamesAccepted", "NoConflicts", "no conflicts found", now),
        _condition("Established", "InitialNamesAccepted", "the initial names have been accepted", now),
    ]
    names = dict(definition["spec"]["names"])
    status = {**definition["status"], "acceptedNames": names}
    return {**definition, "metadata": metadata, "status": {**status, "conditions": status["conditions"] or conditions}}


def _condition(kind: str, reason: str, message: str, now: str) -> dict[str, str]:
    return {"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message}


def _infos(compiled: CompiledCrd) -> list[ResourceInfo]:
    return [_info(compiled, version) for version in compiled.versions if version.served]


def _info(compiled: CompiledCrd, version: CompiledVersion) -> ResourceInfo:
    stored = compiled.storage.name
    return ResourceInfo(
        compiled.group,
        version.name,
        compiled.plural,
        compiled.kind,
        namespaced=compiled.namespaced,
        singular=compiled.singular,
        list_kind=compiled.list_kind,
        short_names=compiled.short_names,
        categories=compiled.categories,
        subresources=frozenset({"status"}) if version.status else frozenset(),
        custom=True,
        has_generation=True,
        unconditional_update=False,
        field_labels=frozenset(version.selectable),
        stored_version=f"{compiled.group}/{stored}" if stored != version.name else "",
        custom_schema=version.schema,
        custom_columns=version.columns,
        openapi=version.openapi,
        deprecation_warning=version.deprecation_warning,
    )
