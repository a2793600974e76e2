"""The source that docs/full-source.md builds, and the tests of it in docs/testing-connectors.md, which run here."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

_DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _run(page: str, names: dict[str, object]) -> None:
    """Run the Python blocks of a page, one after the other, with the page's own line numbers in errors."""
    text = (_DOCS / page).read_text()
    for block in _BLOCK.finditer(text):
        lines_before = "\n" * text.count("\n", 0, block.start(1))
        exec(compile(lines_before + block[1], str(_DOCS / page), "exec", dont_inherit=True), names)


_journal = ModuleType("journal")
sys.modules["journal"] = _journal  # the other page imports it, and sources are pickled by their module
_run("full-source.md", vars(_journal))
_run("testing-connectors.md", globals())


def test_the_tests_of_the_page_are_collected() -> None:
    assert {"test_the_journal_keeps", "test_splits_of_a_failed_reader_wait_for_it"} <= globals().keys()
