"""Sequences of requests as pure data, which can be printed, shrunk, stored and played again.

Strings may hold references to what a server answered before: ``${namespace}``, ``${<resource>/<name>.uid}``,
``.version`` (the latest version seen of the object) and ``.first`` (the first one), ``${<resource>.version}`` and
``${<resource>.continue}`` of the latest list. What was never answered is the empty string.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

FOUND = Path(__file__).parents[1] / "cases" / "sequences.yaml"
RECORDED = FOUND.with_suffix(".json")

METHODS: Mapping[str, tuple[str, str]] = {
    "create": ("POST", "application/json"),
    "put": ("PUT", "application/json"),
    "get": ("GET", ""),
    "list": ("GET", ""),
    "watch": ("GET", ""),
    "delete": ("DELETE", "application/json"),
    "deletecollection": ("DELETE", "application/json"),
    "apply": ("PATCH", "application/apply-patch+yaml"),
    "json": ("PATCH", "application/json-patch+json"),
    "merge": ("PATCH", "application/merge-patch+json"),
    "strategic": ("PATCH", "application/strategic-merge-patch+json"),
}
"""Method and content type of what a step can do."""

NAMELESS = frozenset({"create", "list", "watch", "deletecollection"})
REFERENCE = re.compile(r"\$\{([^}]+)\}")


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request."""

    do: str
    resource: str
    name: str = ""
    subresource: str = ""
    query: dict[str, str] = {}
    body: Any = None


class Sequence(msgspec.Struct, frozen=True, omit_defaults=True):
    """Requests that are sent one after the other into a namespace of their own."""

    name: str
    steps: tuple[Step, ...] = ()

    def encode(self) -> str:
        """The sequence as JSON, one step a line."""
        lines = ",\n".join("    " + msgspec.json.encode(step).decode() for step in self.steps)
        return f'{{\n  "name": {msgspec.json.encode(self.name).decode()},\n  "steps": [\n{lines}\n  ]\n}}\n'


def stored() -> list[Sequence]:
    """The sequences that were answered differently once."""
    entries = yaml.safe_load(FOUND.read_text())
    return [
        Sequence(entry["case"].replace("_", "-")[:63], msgspec.convert(entry["steps"], tuple[Step, ...]))
        for entry in entries
    ]


def decode(text: str | bytes) -> Sequence:
    """A sequence from its JSON. Raises msgspec.ValidationError."""
    return msgspec.json.decode(text, type=Sequence)


class Memory:
    """What a server answered so far, for the references of later requests."""

    def __init__(self, namespace: str) -> None:
        self._known: dict[str, str] = {"namespace": namespace}

    def learn(self, step: Step, body: Any) -> None:
        """Remember an answer."""
        metadata = body.get("metadata") if isinstance(body, dict) else None
        if not isinstance(metadata, dict):
            return
        if step.do == "list":
            self._known[f"{step.resource}.version"] = metadata.get("resourceVersion", "")
            self._known[f"{step.resource}.continue"] = metadata.get("continue", "")
        elif metadata.get("uid") and step.query.get("dryRun") is None:
            # What is in no namespace has the sequence's name in front of its own.
            key = f"{step.resource}/{step.name.removeprefix('${namespace}-')}"
            version = metadata.get("resourceVersion", "")
            self._known |= {f"{key}.uid": metadata["uid"], f"{key}.version": version, f"{key}.name": metadata["name"]}
            self._known.setdefault(f"{key}.first", version)

    def resolve(self, value: Any) -> Any:
        """A value with its references replaced."""
        if isinstance(value, str):
            return REFERENCE.sub(lambda match: self._known.get(match[1], ""), value) if "${" in value else value
        if isinstance(value, dict):
            return {self.resolve(name): self.resolve(member) for name, member in value.items()}
        return [self.resolve(item) for item in value] if isinstance(value, list) else value
