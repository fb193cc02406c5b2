"""Draws sequences of requests from a seed: the same seed gives the same sequences on every machine."""

from random import Random
from typing import Any

from tests.contract.fuzz.kinds import KINDS, Kind
from tests.contract.fuzz.shapes import Record, draw, mutated, places
from tests.contract.fuzz.steps import Sequence, Step

LEAST_STEPS, MOST_STEPS = 10, 28
MANAGERS = ("one", "two", "three", "kubectl")
NAMES = ("a", "b", "c")
UIDS = ("00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002")
SELECTORS = ("a=1", "a", "!z", "a in (1,2),b", "a!=3", "b notin (3)", "a==1", "b=2")
"""Label selectors; the object that ends watches is in all of these selections."""

VERBS: dict[str, float] = {
    "create": 4,
    "put": 5,
    "apply": 8,
    "json": 3,
    "merge": 4,
    "strategic": 4,
    "delete": 2.5,
    "deletecollection": 0.4,
    "get": 1,
    "list": 2.5,
    "watch": 1.5,
}


def sequences(seed: int, count: int) -> list[Sequence]:
    """The first sequences of a seed."""
    return [sequence(seed, number) for number in range(count)]


def sequence(seed: int, number: int) -> Sequence:
    """One sequence of a seed."""
    random = Random(f"{seed}/{number}")
    return _Author(random, f"fuzz-{seed}-{number}").write()


class _Author:
    def __init__(self, random: Random, namespace: str) -> None:
        self._random = random
        self._namespace = namespace
        kinds = list(KINDS.values())
        weights = [kind.weight for kind in kinds]
        self._kinds = random.choices(kinds, weights, k=2 if random.random() < 0.3 else 1)
        self._generated: set[str] = set()
        self._bad = random.choice((0.0, 0.0, 0.05, 0.15))

    def write(self) -> Sequence:
        count = self._random.randint(LEAST_STEPS, MOST_STEPS)
        first = [self._create(self._kinds[0]), self._apply(self._kinds[0])]
        return Sequence(self._namespace, (*first, *(self._step() for _ in range(count))))

    def _may(self, chance: float) -> bool:
        return self._random.random() < chance

    def _pick(self, *values: Any) -> Any:
        return self._random.choice(values)

    def _step(self) -> Step:
        kind = self._pick(*self._kinds)
        verb = self._random.choices(list(VERBS), list(VERBS.values()))[0]
        step: Step = getattr(self, f"_{verb}")(kind)
        return step

    # --- names and metadata

    def _name(self, kind: Kind) -> str:
        name = self._random.choices(NAMES, (5, 2, 1))[0]
        return name if kind.namespaced else f"${{namespace}}-{name}"

    def _key(self, kind: Kind, name: str) -> str:
        """The beginning of a reference to what is known of an object."""
        return f"${{{kind.resource}/{name.removeprefix('${namespace}-')}"

    def _metadata(self, kind: Kind, density: float = 0.4) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        if self._may(density):
            metadata["labels"] = {k: self._pick("1", "2", "3") for k in ("a", "b", "c") if self._may(0.5)}
        if self._may(density / 2):
            metadata["annotations"] = {k: self._pick("x", "y", "") for k in ("e.com/n", "note") if self._may(0.6)}
        if self._may(density / 2):
            metadata["finalizers"] = [f"example.com/{f}" for f in ("x", "y", "z") if self._may(0.4)]
        if self._may(density / 4):
            metadata["ownerReferences"] = [self._owner(uid) for uid in UIDS if self._may(0.6)]
        # An empty list in a custom object is kept in the real server's store, but never shown.
        return {k: v for k, v in metadata.items() if v or not kind.custom}

    def _owner(self, uid: str) -> dict[str, Any]:
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": self._pick("o", "p"), "uid": uid}
        if self._may(0.3):
            owner["controller"] = self._pick(True, False)
        if self._may(0.3):
            owner["blockOwnerDeletion"] = self._pick(True, False)
        return owner

    def _body(self, kind: Kind, name: str, part: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
        identity = {"name": name} if name else {}
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {**identity, **metadata}, **part}

    def _content(self, kind: Kind, density: float = 0.4) -> dict[str, Any]:
        drawn: dict[str, Any] = draw(self._random, kind.content, density)
        return drawn

    def _status(self, kind: Kind, density: float = 0.6) -> dict[str, Any]:
        assert kind.status is not None
        return {"status": draw(self._random, kind.status, density)}

    def _spoilt(self, kind: Kind, body: Any) -> Any:
        """The body, now and then with something wrong in it."""
        if not self._may(self._bad) or not kind.spoilable:
            return body
        spoilt = mutated(self._random, body, self._pick(None, 7, "text", True, [], {}, [None], {"unknown": 1}, -1, 1.5))
        return [] if spoilt is None else spoilt

    # --- options of writes

    def _query(self, *, apply: bool = False) -> dict[str, str]:
        query: dict[str, str] = {}
        if apply or self._may(0.6):
            query["fieldManager"] = self._pick(*MANAGERS)
        if apply and self._may(0.35):
            query["force"] = self._pick("true", "true", "false")
        if self._may(0.06):
            query["dryRun"] = "All"
        if self._may(0.15):
            query["fieldValidation"] = self._pick("Strict", "Warn", "Ignore")
        if self._may(self._bad / 4):
            query |= self._pick({"dryRun": "Some"}, {"fieldValidation": "Loose"}, {"fieldManager": "x" * 130})
        return query

    def _unknown(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body, now and then with a field that no schema knows."""
        if not self._may(0.06):
            return body
        if isinstance(body.get("spec"), dict) and self._may(0.6):
            return {**body, "spec": {**body["spec"], "unknown": 1}}
        return {**body, "unknown": {"x": 1}}

    # --- writes

    def _create(self, kind: Kind) -> Step:
        name, metadata = self._name(kind), self._metadata(kind)
        body = self._body(kind, name, self._content(kind), metadata)
        if kind.status and self._may(0.15):
            body |= self._status(kind)
        if kind.namespaced and kind.resource not in self._generated and self._may(0.08):
            self._generated.add(kind.resource)
            body["metadata"] = {"generateName": "zg-", **metadata}
        if self._may(self._bad / 2):
            body["metadata"] |= self._pick({"resourceVersion": "5"}, {"name": "Bad_Name"}, {"namespace": "other"})
        return Step("create", kind.resource, name, query=self._query(), body=self._spoilt(kind, self._unknown(body)))

    def _put(self, kind: Kind) -> Step:
        name, subresource = self._name(kind), self._subresource(kind, 0.25)
        metadata = self._metadata(kind)
        key = self._key(kind, name)
        version = self._random.choices(("version", "first", "", "future"), (6, 1, 2, 0.3))[0]
        if version:
            metadata["resourceVersion"] = "99999999" if version == "future" else f"{key}.{version}}}"
        if self._may(0.1):
            metadata["uid"] = self._pick(f"{key}.uid}}", UIDS[0])
        if self._may(0.05):
            metadata["managedFields"] = self._pick([], [{}])
        body = self._body(kind, name, self._content(kind), metadata)
        if kind.status and (subresource or self._may(0.15)):
            body |= self._status(kind)
        if self._may(self._bad / 2):
            body["metadata"] |= self._pick({"name": "other"}, {"namespace": "other"}, {"generation": 7})
        body = self._spoilt(kind, self._unknown(body))
        return Step("put", kind.resource, name, subresource, self._query(), body)

    def _subresource(self, kind: Kind, chance: float) -> str:
        return "status" if kind.status and self._may(chance) else ""

    def _apply(self, kind: Kind) -> Step:
        name, subresource = self._name(kind), self._subresource(kind, 0.2)
        metadata = self._metadata(kind, 0.25)
        if self._may(0.04):
            metadata["resourceVersion"] = f"{self._key(kind, name)}.{self._pick('version', 'first')}}}"
        part = self._status(kind) if subresource and self._may(0.8) else self._content(kind, self._pick(0.2, 0.4, 0.7))
        body = self._spoilt(kind, self._unknown(self._body(kind, name, part, metadata)))
        return Step("apply", kind.resource, name, subresource, self._query(apply=True), body)

    def _merge(self, kind: Kind) -> Step:
        name, subresource = self._name(kind), self._subresource(kind, 0.25)
        body = self._patch(kind, subresource, whole=True)
        return Step(
            "merge", kind.resource, name, subresource, self._query(), self._spoilt(kind, self._nulled(kind, body))
        )

    def _patch(self, kind: Kind, subresource: str, *, whole: bool = False) -> dict[str, Any]:
        """What a patch says; lists are ``whole`` where they replace those that are there."""
        body: dict[str, Any] = {}
        if subresource or (kind.status and self._may(0.05)):
            body |= self._status(kind)
        if not subresource or self._may(0.2):
            shape = kind.content if whole else kind.fragment or kind.content
            body |= draw(self._random, shape, self._pick(0.1, 0.3))
        if metadata := self._metadata(kind, 0.3):
            body["metadata"] = metadata
        if self._may(0.06):
            body.setdefault("metadata", {})["resourceVersion"] = (
                f"${{{kind.resource}/a.{self._pick('version', 'first')}}}"
            )
        return self._unknown(body)

    def _nulled(self, kind: Kind, body: dict[str, Any]) -> dict[str, Any]:
        """The patch with nulls here and there, which take away what is there."""
        removable = kind.removable
        return {
            name: self._some_nulls(member, None if kind.spoilable or name == "metadata" else removable)
            for name, member in body.items()
        }

    def _some_nulls(self, value: Any, names: frozenset[str] | None) -> Any:
        if not isinstance(value, dict):
            return value
        return {
            name: None
            if self._may(0.12) and (names is None or name in names)
            else (self._some_nulls(member, None) if names is None else member)
            for name, member in value.items()
        }

    def _json(self, kind: Kind) -> Step:
        name, subresource = self._name(kind), self._subresource(kind, 0.2)
        example = {**draw(self._random, kind.fragment or kind.content, 0.6), "metadata": self._metadata(kind, 0.8)}
        if kind.status:
            example |= self._status(kind)
        pointers = [at for at in places(example) if self._patchable(kind, at)]
        operations = [self._operation(example, pointers) for _ in range(self._random.randint(1, 3))] if pointers else []
        return Step("json", kind.resource, name, subresource, self._query(), self._spoilt(kind, operations))

    def _patchable(self, kind: Kind, pointer: str) -> bool:
        """Whether anything may be done at a place, so that the object is still a valid one of its kind."""
        if kind.spoilable or pointer.startswith("/metadata/"):
            return pointer not in {"/metadata", "/spec"}
        return pointer.count("/") == 2 and pointer.rpartition("/")[2] in kind.removable

    def _operation(self, example: Any, pointers: list[str]) -> dict[str, Any]:
        at = self._pick(*pointers)
        operation = self._random.choices(("add", "replace", "remove", "test", "copy", "move"), (5, 3, 3, 1, 1, 1))[0]
        result = {"op": operation, "path": at}
        if operation in {"add", "replace", "test"}:
            result["value"] = _at(example, at)
        if operation in {"copy", "move"}:
            result["from"] = self._pick(*pointers)
        if operation == "add" and at.rpartition("/")[2].isdigit() and self._may(0.5):
            result["path"] = at.rpartition("/")[0] + "/-"
        return result

    def _strategic(self, kind: Kind) -> Step:
        name, subresource = self._name(kind), self._subresource(kind, 0.25)
        body = self._directed(kind, self._nulled(kind, self._patch(kind, subresource)))
        if "finalizers" not in (body.get("metadata") or {}) and self._may(0.1):
            unwanted = {"$deleteFromPrimitiveList/finalizers": [f"example.com/{self._pick('x', 'y')}"]}
            body["metadata"] = {**(body.get("metadata") or {}), **unwanted}
        return Step("strategic", kind.resource, name, subresource, self._query(), self._spoilt(kind, body))

    def _directed(self, kind: Kind, value: Any, *, top: bool = True) -> Any:
        """The patch with directives here and there."""
        if isinstance(value, list):
            return [self._directed(kind, item, top=False) for item in value]
        if not isinstance(value, dict):
            return value
        result = {name: self._directed(kind, member, top=False) for name, member in value.items()}
        safe = kind.spoilable or (bool(value) and value.keys() <= {"a", "b", "c", "name", "value", "note", "e.com/n"})
        if not top and safe and self._may(0.06):
            result["$patch"] = self._pick("delete", "replace", "merge")
        return result

    # --- deletes and reads

    def _delete(self, kind: Kind) -> Step:
        name = self._name(kind)
        key = self._key(kind, name)
        body: dict[str, Any] = {}
        if self._may(0.2):
            body["preconditions"] = self._pick(
                {"uid": f"{key}.uid}}"},
                {"uid": UIDS[0]},
                {"resourceVersion": f"{key}.version}}"},
                {"resourceVersion": f"{key}.first}}"},
            )
        if self._may(0.3):
            body["propagationPolicy"] = self._pick("Background", "Foreground", "Orphan", "Background", "Foreground")
        if self._may(0.2):
            body["gracePeriodSeconds"] = self._pick(0, 1, 30, 5)
        if self._may(0.05):
            body["dryRun"] = ["All"]
        if self._may(self._bad):
            body |= self._pick({"propagationPolicy": "Some"}, {"gracePeriodSeconds": -1}, {"orphanDependents": True})
        query = self._pick(
            {}, {}, {}, {}, {"dryRun": "All"}, {"gracePeriodSeconds": "0"}, {"propagationPolicy": "Orphan"}
        )
        options = {"apiVersion": "v1", "kind": "DeleteOptions", **body} if body else None
        return Step("delete", kind.resource, name, query=query, body=options)

    def _deletecollection(self, kind: Kind) -> Step:
        if not kind.namespaced:
            return self._delete(kind)
        query = {"labelSelector": self._pick(*SELECTORS)} if self._may(0.6) else {}
        return Step("deletecollection", kind.resource, query=query)

    def _get(self, kind: Kind) -> Step:
        subresource = self._subresource(kind, 0.1)
        query = self._pick({}, {}, {}, {"resourceVersion": "0"}, {"resourceVersion": f"${{{kind.resource}.version}}"})
        if query.get("resourceVersion") == "0":
            query = {}
        return Step("get", kind.resource, self._name(kind), subresource, query)

    def _list(self, kind: Kind) -> Step:
        query = self._selection(kind)
        version = f"${{{kind.resource}.version}}"
        if kind.namespaced and self._may(0.35):
            query["limit"] = self._pick("1", "2", "3")
            if self._may(0.5):
                query["continue"] = f"${{{kind.resource}.continue}}"
        if "continue" not in query and self._may(0.4):
            query["resourceVersion"] = self._pick("0", version, version, f"${{{kind.resource}/a.first}}")
            if self._may(0.6):
                query["resourceVersionMatch"] = self._pick("Exact", "NotOlderThan")
        if self._may(self._bad / 2):
            query |= self._pick(
                {"resourceVersionMatch": "Exact"}, {"resourceVersionMatch": "Some"}, {"labelSelector": "a in"},
                {"limit": "x"}, {"continue": "nonsense"}, {"resourceVersion": "x"}, {"fieldSelector": "spec.none=1"},
                {"resourceVersion": "99999999"},
            )  # fmt: skip
        return Step("list", kind.resource, query=query)

    def _selection(self, kind: Kind) -> dict[str, str]:
        query: dict[str, str] = {}
        if self._may(0.4):
            query["labelSelector"] = self._pick(*SELECTORS)
        if self._may(0.15):
            query["fieldSelector"] = f"metadata.name{self._pick('=', '!=', '==')}{self._name(kind)}"
        return query

    def _watch(self, kind: Kind) -> Step:
        query: dict[str, str] = {}
        if self._may(0.4):
            query["labelSelector"] = self._pick(*SELECTORS)
        match self._random.choices(("version", "first", "initial", "zero", "none"), (4, 3, 2, 1, 1))[0]:
            case "version":
                query["resourceVersion"] = f"{self._key(kind, self._name(kind))}.version}}"
            case "first":
                query["resourceVersion"] = f"{self._key(kind, self._name(kind))}.first}}"
            case "zero":
                query["resourceVersion"] = "0"
            case "initial":
                query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        if self._may(0.4):
            query["allowWatchBookmarks"] = "true"
        if self._may(self._bad):
            query |= self._pick(
                {"resourceVersion": "x"}, {"resourceVersionMatch": "Exact"}, {"sendInitialEvents": "true"},
                {"labelSelector": "a in"}, {"fieldSelector": "spec.none=1"},
            )  # fmt: skip
        return Step("watch", kind.resource, query=query)


def _at(value: Any, pointer: str) -> Any:
    for part in pointer[1:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


__all__ = ["Record", "sequence", "sequences"]
