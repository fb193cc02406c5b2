"""The examples on the pages about queue, controller and writing run, and end as they say."""

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).resolve().parents[3] / "docs" / "framework"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples(page: str) -> list[str]:
    """The blocks that are whole: those that begin with what they import."""
    return [block for block in BLOCK.findall((PAGES / page).read_text()) if block.startswith(("import ", "from "))]


@pytest.mark.parametrize(("page", "count"), [("queue.md", 2), ("controller.md", 1), ("writing.md", 2)])
def test_examples_of_the_page_run(page: str, count: int) -> None:
    blocks = examples(page)
    assert len(blocks) == count
    for block in blocks:
        assert "assert " in block
        exec(compile(block, page, "exec"), {"__name__": page})
