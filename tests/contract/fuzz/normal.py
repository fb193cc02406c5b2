"""Makes the answers of two servers comparable: what may differ is replaced by words or ordinals.

The exceptions below are all that is not compared; each is explained in ``docs/sandbox.md``.
"""

import re
from collections.abc import Mapping
from typing import Any

from tests.contract.fuzz.kinds import KINDS
from tests.contract.fuzz.play import Answer
from tests.contract.fuzz.steps import Sequence

UUID = re.compile(r"(?!0000)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
NOW = re.compile(r"20(2[4-9]|[3-9]\d)-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
GENERATED = re.compile(r"(zg-)[bcdfghjklmnpqrstvwxz2456789]{5}")
UNDECODABLE = re.compile(
    r"json: |unrecognized|cannot be handled as a|error decoding|error unmarshaling|strconv|must be a JSON object"
    r"|must be an object"
)
STORAGE_KEY = re.compile(r"Key: /[^,]+,")
FIELD_LABEL = re.compile(r"field label not supported|is not a known field selector")
NUMBER = re.compile(r"\d{3,}")


class Normaliser:
    """Ordinals of one server's uids and versions in one sequence, in the order of their appearance."""

    def __init__(self) -> None:
        self._uids: dict[str, str] = {}
        self._versions: dict[str, str] = {}

    def answers(self, sequence: Sequence, answers: list[Answer]) -> list[Answer]:
        """The comparable form of all answers."""
        custom = {step.resource: KINDS[step.resource].custom for step in sequence.steps}
        kinds = [custom[step.resource] for step in sequence.steps]
        # Watches show what came after them, so they are last to name versions.
        order = sorted(range(len(answers)), key=lambda number: ("events" in answers[number], number))
        comparable = {number: self._answer(answers[number], kinds[number]) for number in order}
        return [comparable[number] for number in range(len(answers))]

    def _answer(self, answer: Answer, custom: bool) -> Answer:
        if "events" in answer:
            events = [self._event(event, custom) for event in answer["events"]]
            return {"code": answer["code"], "events": [event for event in events if event is not None]}
        return {
            "code": answer["code"],
            "body": self._body(answer["body"], custom),
            "warnings": sorted(self._text(w) for w in answer["warnings"] if custom or "unknown field" in w),
        }

    def _event(self, event: Mapping[str, Any], custom: bool) -> Any:
        obj = event.get("object") or {}
        annotations = (obj.get("metadata") or {}).get("annotations") or {}
        if event["type"] == "BOOKMARK":
            if "k8s.io/initial-events-end" not in annotations:
                return None  # When other bookmarks come is a matter of time.
            # The rest of it is an object without content, in the form of the server's own types.
            return {"type": "BOOKMARK", "kind": obj.get("kind"), "annotations": annotations}
        return {"type": event["type"], "object": self._body(obj, custom)}

    def _body(self, body: Any, custom: bool) -> Any:
        if not isinstance(body, dict):
            return self._value(body)
        if body.get("kind") == "Status" and body.get("apiVersion") == "v1":
            return self._status(body, custom)
        if isinstance(body.get("items"), list) and str(body.get("kind", "")).endswith("List"):
            return self._list(body, custom)
        return self._object(body)

    def _list(self, body: Mapping[str, Any], custom: bool) -> Any:
        metadata = {**body["metadata"], "resourceVersion": "<version>"}
        if "continue" in metadata:
            metadata["continue"] = "<token>"
        return {**body, "metadata": metadata, "items": [self._body(item, custom) for item in body["items"]]}

    def _object(self, body: Mapping[str, Any]) -> Any:
        result = self._value(body)
        metadata = result.get("metadata")
        if isinstance(metadata, dict):
            version = metadata.get("resourceVersion")
            if version:
                metadata["resourceVersion"] = self._versions.setdefault(version, f"version-{len(self._versions) + 1}")
            if isinstance(entries := metadata.get("managedFields"), list):
                # Their order is that of times in whole seconds.
                entries.sort(key=_entry_order)
        return result

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {self._text(name): self._value(value[name]) for name in sorted(value)}
        return [self._value(item) for item in value] if isinstance(value, list) else value

    def _text(self, text: str) -> str:
        if len(text) < 8:
            return text
        text = UUID.sub(lambda match: self._uids.setdefault(match[0], f"uid-{len(self._uids) + 1}"), text)
        return GENERATED.sub(r"\1<suffix>", NOW.sub("<time>", text))

    def _status(self, body: Mapping[str, Any], custom: bool) -> Any:
        result = self._value(body)
        details = result.get("details") or {}
        causes = details.get("causes") or []
        for cause in causes:
            cause["message"] = NUMBER.sub("<n>", cause.get("message", ""))
            if cause.get("field") == "patch":
                cause["message"] = "<undecodable>"
        message = _comparable_message(result.get("message", ""), result.get("code"))
        if any(cause.get("field") == "patch" for cause in causes):
            message = "<undecodable>"
        if result.get("reason") == "Invalid" and not custom and details.get("group") != "meta.k8s.io":
            # The rules of built-in kinds are known by their fields, not by their words.
            causes = [{"reason": cause.get("reason"), "field": cause.get("field")} for cause in causes]
            message = ""
        if causes and result.get("code") == 422:
            message = ""  # It is made of the causes.
        if causes:
            # Some rules are asked several times by the real server.
            distinct = {repr(cause): cause for cause in causes}
            result["details"] = {**details, "causes": [distinct[key] for key in sorted(distinct)]}
        if isinstance(result.get("metadata"), dict) and "continue" in result["metadata"]:
            result["metadata"]["continue"] = "<token>"
        return {**result, "message": message}


def _comparable_message(text: str, code: Any) -> str:
    message = NUMBER.sub("<n>", STORAGE_KEY.sub("Key: <key>,", text))
    if code == 400 and UNDECODABLE.search(message) and "strict decoding error: unknown" not in message:
        return "<undecodable>"
    if FIELD_LABEL.search(message):
        return "<unsupported field label>"
    for beginning in ("continue key is not valid", "unknown patch type"):
        message = message.partition(beginning)[0]
    if "field not declared in schema" in message:
        # Where a configuration has several faults, it is chance which of them is told, and which one first.
        return message.partition("): ")[0]
    return "\n".join(sorted(message.split("\n"))) if ": errors:\n" in message else message


def _entry_order(entry: Any) -> tuple[str, ...]:
    if not isinstance(entry, dict):
        return (repr(entry),)
    return tuple(str(entry.get(name, "")) for name in ("operation", "manager", "apiVersion", "subresource"))
