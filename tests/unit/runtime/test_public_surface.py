"""What the framework promises to its users by name. A change here is a change of the public interface."""

import ast
from pathlib import Path

import controllers.runtime
import controllers.runtime.cache

PACKAGE = Path(controllers.runtime.__file__).parent


def test_names_of_the_runtime() -> None:
    assert controllers.runtime.__all__ == [
        "Client",
        "ClientOptions",
        "Key",
        "KubeObject",
        "Manager",
        "NotFound",
        "ObjectMeta",
        "OwnerReference",
        "Projection",
        "Resource",
        "Selection",
        "owner_reference",
    ]
    assert all(hasattr(controllers.runtime, name) for name in controllers.runtime.__all__)


def test_names_of_the_cache() -> None:
    assert controllers.runtime.cache.__all__ == [
        "Action",
        "AsyncChangeHandler",
        "Change",
        "ChangeHandler",
        "ChangeType",
        "Check",
        "Happening",
        "Informer",
        "InformerObserver",
        "InformerOptions",
        "InformerPool",
        "ListPage",
        "MutationDetector",
        "Reader",
        "Reflector",
        "Registration",
        "Replacement",
        "Statistics",
        "Store",
        "StreamList",
        "Transform",
        "Wait",
        "Watch",
    ]
    assert all(hasattr(controllers.runtime.cache, name) for name in controllers.runtime.cache.__all__)


def imports_of(module: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_the_framework_knows_nothing_of_its_controllers() -> None:
    modules = list(PACKAGE.rglob("*.py"))
    assert len(modules) > 15
    for module in modules:
        own = {name for name in imports_of(module) if name.startswith("controllers.")}
        foreign = {name for name in own if not name.startswith("controllers.runtime")}
        assert not foreign, f"{module.name} imports {foreign}"


def test_only_the_transport_touches_the_official_package() -> None:
    users = {m.name for m in PACKAGE.rglob("*.py") if any(n.partition(".")[0] == "kubernetes" for n in imports_of(m))}
    assert users == {"transport.py"}
