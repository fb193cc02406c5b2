"""The documentation: its links lead somewhere, its example works, its tables name all that exists."""

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from controllers.api.core import Namespace
from controllers.runtime import Client, ClientOptions, Key, Manager, ObjectMeta
from controllers.runtime.cache import Store
from controllers.runtime.errors import PermissionNotDeclared
from controllers.runtime.options import ManagerOptions
from controllers.runtime.testing import Answer, ScriptedTransport, run_virtual
from controllers.sandbox import __main__ as sandbox
from tests.unit.binaries import BINARIES, Binary

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLE = ROOT / "docs" / "examples" / "team_configmap.py"
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and GitLab make them."""
    headings = re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def relative_links(page: Path) -> list[str]:
    targets = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose(page))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def table_column(page: Path, heading: str) -> list[str]:
    """The words in backticks in the first column of the tables below a heading."""
    section = page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return [word for cell in cells for word in re.findall("`([^`]+)`", cell)]


def test_there_are_pages_to_check() -> None:
    assert len(PAGES) > 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    broken = []
    for link in relative_links(page):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_name_make_targets_that_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^\$ |^)make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE))
    assert named <= targets


def emitted_reasons(trees: Iterable[ast.Module]) -> set[str]:
    """The reasons of Events that are written out in the code."""
    found = set()
    for call in (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)):
        function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        place = {"BadClaim": 0, "Refusal": 1, "_warn": 1, "event": 2, "warn": 0}.get(function)
        if place is not None and len(call.args) > place:
            reason = call.args[place]
            if isinstance(reason, ast.Constant) and isinstance(reason.value, str):
                found.add(reason.value)
    return found


STATUS_REASONS = {"compute-domain": {"Ready", "NotReady"}}
"""Reasons that no call has written out: a domain's status itself."""

binaries = pytest.mark.parametrize("binary", BINARIES, ids=lambda binary: binary.name)


@binaries
def test_page_explains_exactly_the_reasons_that_the_controller_emits(binary: Binary) -> None:
    emitted = emitted_reasons(ast.parse(file.read_text()) for file in binary.package.glob("*.py"))

    assert set(table_column(binary.page, "Events")) == emitted | STATUS_REASONS.get(binary.name, set())


def test_reasons_are_found_in_the_code() -> None:
    sources = [file for binary in BINARIES for file in binary.package.glob("*.py")]
    emitted = emitted_reasons(ast.parse(file.read_text()) for file in sources)
    assert {"InvalidSpec", "CliqueFull", "UnknownDomain", "ForeignResourceSlice"} <= emitted


def flags_of(main: Any, capsys: pytest.CaptureFixture[str]) -> set[str]:
    with pytest.raises(SystemExit):
        main(["--help"])
    return set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help"}


def options(page: Path) -> set[str]:
    return {option.partition("=")[0] for option in table_column(page, "Options")}


@binaries
def test_page_explains_exactly_the_flags_of_the_binary_that_not_all_have(
    binary: Binary, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = flags_of(binary.main, capsys)
    assert "--kubeconfig" in flags
    assert options(README) <= flags

    assert options(binary.page) == flags - options(README)


def test_page_of_the_sandbox_names_all_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "sandbox.md").read_text()
    rows = {
        flag for row in re.findall(r"^\| (`--.*?) \|", page, re.MULTILINE) for flag in re.findall(r"--[a-z-]+", row)
    }
    assert rows == flags_of(sandbox.main, capsys)


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("team_configmap", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reconcile_example(labels: dict[str, str], maps: Sequence[dict[str, Any]]) -> list[Any]:
    """The bodies that the example writes for one namespace."""
    example = load_example()
    namespaces, present = Store[Namespace](), Store[Any]()
    namespaces.put(Namespace(metadata=ObjectMeta(name="shop", uid="u1", labels=labels)))
    for body in maps:
        present.put(example.ConfigMap.decode(msgspec.json.encode(body)))
    written = {"metadata": {"name": "team", "namespace": "shop", "uid": "u2", "resourceVersion": "2"}}
    transport = ScriptedTransport(lambda _: Answer(body=written))
    client = Client(transport, ClientOptions("tests")).restricted_to(example.DECLARATION.everything)
    run_virtual(example.TeamReconciler(client, namespaces, present).reconcile(Key("", "shop")))
    return [msgspec.json.decode(request.body) for request in transport.requests if request.body]


def test_example_writes_the_team_of_a_labelled_namespace() -> None:
    (body,) = reconcile_example({"team": "payments"}, [])

    assert body["data"] == {"team": "payments"}
    assert body["metadata"]["ownerReferences"][0]["uid"] == "u1"


def test_example_writes_nothing_where_nothing_differs() -> None:
    written = {"metadata": {"name": "team", "namespace": "shop"}, "data": {"team": "payments"}}

    assert reconcile_example({"team": "payments"}, [written]) == []
    assert reconcile_example({}, []) == []


def test_example_in_the_framework_page_is_the_file() -> None:
    page = (ROOT / "docs" / "framework.md").read_text()

    assert f"```python\n{EXAMPLE.read_text()}```" in page


def test_tutorial_is_made_of_the_example() -> None:
    page = (ROOT / "docs" / "framework" / "tutorial.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)

    rest = EXAMPLE.read_text()
    for block in blocks:
        assert block in rest
        rest = rest.replace(block, "")
    left = [line for line in rest.splitlines() if line and not line.startswith(("from ", "import ", '"""'))]
    assert left == []
    assert len([line for line in EXAMPLE.read_text().splitlines() if line]) <= 40


def test_tutorial_says_what_the_client_says_of_an_undeclared_verb() -> None:
    example = load_example()
    manager = Manager(Client(ScriptedTransport([]), ClientOptions("tests")), ManagerOptions())
    client = manager.client_for(example.DECLARATION)
    with pytest.raises(PermissionNotDeclared) as refused:
        run_virtual(client.delete(example.ConfigMap(metadata=ObjectMeta(name="team", namespace="shop", uid="u"))))

    page = (ROOT / "docs" / "framework" / "tutorial.md").read_text()
    assert f"`{refused.value}`" in " ".join(page.split())


def test_example_typechecks() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(EXAMPLE)], cwd=ROOT, capture_output=True, text=True
    )

    assert (checked.returncode, checked.stdout) == (0, "Success: no issues found in 1 source file\n")
