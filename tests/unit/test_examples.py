"""The tests among the documentation's examples pass, as they would in a project of their own."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
PAGES = ROOT / "docs" / "framework"
SANDBOX_PAGE = ROOT / "docs" / "sandbox.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks_of(page: Path, language: str) -> list[str]:
    return [block for name, block in BLOCK.findall(page.read_text()) if name == language]


def test_example_tests_pass() -> None:
    # Without the options of this project, which nobody else has.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--override-ini=addopts=", str(EXAMPLES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_example_tests_pass_by_the_command_on_the_pages() -> None:
    pages = [(PAGES / page).read_text() for page in ("tutorial.md", "testing.md")]
    printed = {tuple(re.findall(r"^\.venv/bin/python (-m pytest .*)$", page, re.MULTILINE)) for page in pages}
    ((arguments,),) = printed
    command = [sys.executable, *arguments.split(), "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert set(re.findall(r"^docs/examples/(\w+\.py) ", done.stdout, re.MULTILINE)) == {
        path.name for path in EXAMPLES.glob("test_*.py")
    }


def test_examples_typecheck() -> None:
    files = sorted(str(file) for file in EXAMPLES.glob("*.py"))
    command = [sys.executable, "-m", "mypy", "--strict", *files]
    variables = os.environ | {"MYPYPATH": str(EXAMPLES)}
    checked = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)

    assert files
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("page", ["testing.md", "own-kind.md"])
def test_examples_on_the_page_run(page: str) -> None:
    whole = [block for block in blocks_of(PAGES / page, "python") if block.startswith(("import ", "from "))]

    assert len(whole) == 2
    for block in whole:
        assert "assert " in block
        exec(compile(block, page, "exec"), {"__name__": "page"})


def test_page_about_a_kind_of_ones_own_shows_the_example_as_it_is() -> None:
    example = (EXAMPLES / "widget.py").read_text()
    parts = [
        block for block in blocks_of(PAGES / "own-kind.md", "python") if not block.startswith(("import ", "from "))
    ]

    assert len(parts) == 6
    for part in parts:
        assert part in example
    assert len([line for line in example.splitlines() if line]) < 90


# -- commands ---------------------------------------------------------------------------------------------------------

BINARIES = {"python": "", "gpu-mirage-sandbox": "-m controllers.sandbox"}


@pytest.fixture
def bin_directory(tmp_path: Path) -> Path:
    """What .venv/bin has, also where this project is not installed."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name, arguments in BINARIES.items():
        script = directory / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        script.chmod(0o755)
    kubectl = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or shutil.which("kubectl")
    assert kubectl is not None
    (directory / "kubectl").symlink_to(kubectl)
    return directory


def pasted(block: str, directory: Path) -> str:
    """What is shown where a block is pasted into an interactive bash: it reads on while its commands run."""
    temporary = directory.parent / "tmp"
    temporary.mkdir()
    home = {"HOME": str(directory.parent), "HISTFILE": "", "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        cwd=ROOT,
        env=os.environ | home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        # What is left running holds the output open, so that this does not come to its end.
        shown, _ = shell.communicate(block.replace(".venv/bin/", f"{directory}/"), timeout=90)
    finally:
        if shell.returncode is None:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    assert list(temporary.iterdir()) == []
    return shown


def with_free_ports(block: str) -> str:
    for port in sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", block))):
        with socket.create_server(("127.0.0.1", 0)) as server:
            block = block.replace(port, str(server.getsockname()[1]))
    return block


def test_commands_of_the_tutorial_work_when_they_are_pasted(bin_directory: Path) -> None:
    (block,) = [block for block in blocks_of(PAGES / "tutorial.md", "sh") if "gpu-mirage-sandbox" in block]
    shown = pasted(with_free_ports(block), bin_directory)

    assert shown.count("configmap/team condition met") == 2, shown
    assert "payments\n" in shown
    assert "[+]caches ok" in shown
    assert 'controller_runtime_reconcile_total{controller="team-configmap",result="success"}' in shown


def test_commands_for_a_kind_of_ones_own_work_when_they_are_pasted(bin_directory: Path) -> None:
    (block,) = blocks_of(PAGES / "own-kind.md", "sh")
    shown = pasted(block, bin_directory)

    assert "widget.example.com/door condition met" in shown, shown
    assert re.search(r"widget.example.com/door +red +True", shown)
    before, _, after = shown.partition('widget.example.com "door" deleted')
    assert "default.door" in before
    assert "default.door" not in after


def test_commands_for_the_sandbox_work_when_they_are_pasted(bin_directory: Path) -> None:
    start = blocks_of(SANDBOX_PAGE, "sh")[0].replace("make venv\n", "")
    end = re.search(r"`(kill \$sandbox;[^`]*)` ends it", SANDBOX_PAGE.read_text())
    assert end is not None
    shown = pasted(f"{start}{end[1]}\n", bin_directory)

    assert "computedomains.resource.nvidia.com condition met" in shown, shown
    assert "namespace/gpu-mirage" in shown.partition("condition met")[2]


def test_commands_for_faults_work_when_they_are_pasted(bin_directory: Path) -> None:
    (block,) = [block for block in blocks_of(SANDBOX_PAGE, "sh") if "--admin" in block]
    shown = pasted(block, bin_directory)

    assert '"times":5' in shown.replace(" ", ""), shown
