"""Writes controllers/sandbox/data/protobuf.json: how Kubernetes objects are laid out in protobuf.

The source are the .proto files of a real server's Go modules, which are in the module cache once the control plane is
built.

    python -m hack.extract_protobuf <directory of k8s.io modules> <version, such as v0.37.2>
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from controllers.sandbox.registry import BUILTIN

TARGET = Path(__file__).parent.parent / "controllers" / "sandbox" / "data" / "protobuf.json"
PACKAGES = {
    "": "k8s.io.api.core.v1",
    "apps": "k8s.io.api.apps.v1",
    "batch": "k8s.io.api.batch.v1",
    "coordination.k8s.io": "k8s.io.api.coordination.v1",
    "events.k8s.io": "k8s.io.api.events.v1",
    "rbac.authorization.k8s.io": "k8s.io.api.rbac.v1",
    "resource.k8s.io": "k8s.io.api.resource.v1",
    "scheduling.k8s.io": "k8s.io.api.scheduling.v1",
    "storage.k8s.io": "k8s.io.api.storage.v1",
}
OTHERS = {
    "v1/Binding": "k8s.io.api.core.v1.Binding",
    "v1/DeleteOptions": "k8s.io.apimachinery.pkg.apis.meta.v1.DeleteOptions",
    "meta.k8s.io/v1/DeleteOptions": "k8s.io.apimachinery.pkg.apis.meta.v1.DeleteOptions",
    "policy/v1/Eviction": "k8s.io.api.policy.v1.Eviction",
    "authentication.k8s.io/v1/TokenRequest": "k8s.io.api.authentication.v1.TokenRequest",
    "authentication.k8s.io/v1/TokenReview": "k8s.io.api.authentication.v1.TokenReview",
    "authentication.k8s.io/v1/SelfSubjectReview": "k8s.io.api.authentication.v1.SelfSubjectReview",
    "authorization.k8s.io/v1/SelfSubjectAccessReview": "k8s.io.api.authorization.v1.SelfSubjectAccessReview",
    "authorization.k8s.io/v1/SelfSubjectRulesReview": "k8s.io.api.authorization.v1.SelfSubjectRulesReview",
    "authorization.k8s.io/v1/SubjectAccessReview": "k8s.io.api.authorization.v1.SubjectAccessReview",
    "authorization.k8s.io/v1/LocalSubjectAccessReview": "k8s.io.api.authorization.v1.LocalSubjectAccessReview",
}
MODULES = ("api", "apimachinery")
FIELD = re.compile(r"^  (optional|repeated|map<string, *([\w.]+)>)\s*([\w.]*)\s+(\w+) = (\d+)", re.MULTILINE)
MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
SCALARS = frozenset({"string", "bytes", "bool", "int32", "int64", "uint32", "uint64", "double", "float"})


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    root, version = Path(sys.argv[1]), sys.argv[2]
    messages: dict[str, Any] = {}
    for module in MODULES:
        for path in sorted((root / f"{module}@{version}").rglob("generated.proto")):
            messages |= read_messages(path.read_text(encoding="utf-8"))
    kinds = {**{f"{i.api_version}/{i.kind}": f"{PACKAGES[i.group]}.{i.kind}" for i in BUILTIN if i.group in PACKAGES}}
    kinds |= OTHERS
    document = {"kinds": dict(sorted(kinds.items())), "messages": reachable(kinds.values(), messages)}
    TARGET.write_text(json.dumps(document, separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")
    return 0


def read_messages(text: str) -> dict[str, dict[str, list[str]]]:
    """The messages of one file by full name: for each field number the name, whether one, many or a map, the type."""
    found = re.search(r"^package ([\w.]+);", text, re.MULTILINE)
    assert found is not None, "a .proto file without a package"
    package = found[1]
    return {f"{package}.{name}": _fields(body, package) for name, body in MESSAGE.findall(text)}


def _fields(body: str, package: str) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for label, value, kind, name, number in FIELD.findall(body):
        shape = {"optional": "one", "repeated": "many"}.get(label, "map")
        fields[number] = [name, shape, _full(value or kind, package)]
    return fields


def _full(kind: str, package: str) -> str:
    if kind in SCALARS:
        return kind
    return kind.removeprefix(".") if "." in kind else f"{package}.{kind}"


def reachable(roots: Any, messages: dict[str, Any]) -> dict[str, Any]:
    """The messages that the roots consist of."""
    wanted: dict[str, Any] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in wanted and name not in SCALARS:
            wanted[name] = messages[name]
            waiting += [field[2] for field in messages[name].values()]
    return wanted


if __name__ == "__main__":
    sys.exit(main())
