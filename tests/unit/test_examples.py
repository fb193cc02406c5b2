"""The tests among the documentation's examples pass, as they would in a project of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"


def test_example_tests_pass() -> None:
    # Without the options of this project, which nobody else has.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--override-ini=addopts=", str(EXAMPLES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_example_tests_typecheck() -> None:
    files = sorted(str(file) for file in EXAMPLES.glob("test_*.py"))
    command = [sys.executable, "-m", "mypy", "--strict", *files]
    variables = os.environ | {"MYPYPATH": str(EXAMPLES)}
    checked = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)

    assert files
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_examples_on_the_page_about_testing_run() -> None:
    page = ROOT / "docs" / "framework" / "testing.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    whole = [block for block in blocks if block.startswith(("import ", "from "))]

    assert len(whole) == 2
    for block in whole:
        assert "assert " in block
        exec(compile(block, page.name, "exec"), {"__name__": "page"})
