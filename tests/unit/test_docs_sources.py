"""The source that docs/full-source.md builds, and the tests of it in docs/testing-connectors.md, which run here.

Of docs/own-source.md: what it shows of ``headgate sources new``, and the promises that it names. Its broken promise is
in tests/real/test_own_connector.py.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from headgate.cli.new_source import package_files
from headgate.testing.conformance import PROMISES
from tests.unit.cli.stored_query import run

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


def test_every_promise_stands_in_the_table() -> None:
    text = (_DOCS / "testing-connectors.md").read_text()
    table = text.partition("### The promises")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == [promise.name for promise in PROMISES]


def test_the_promises_that_the_way_to_a_full_source_names_exist() -> None:
    section = (_DOCS / "own-source.md").read_text().partition("## From twenty lines")[2]
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", section))
    assert len(named) > 10 and named <= {promise.name for promise in PROMISES}


def test_the_tests_of_the_page_are_collected() -> None:
    assert {"test_the_journal_keeps", "test_splits_of_a_failed_reader_wait_for_it"} <= globals().keys()


def test_the_page_shows_what_the_command_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (_DOCS / "own-source.md").read_text()
    assert f"```text\n$ headgate sources new weather\n{run('sources', 'new', 'weather').output}```\n" in page
    (line,) = re.findall(r"^```python\n(test_promise = .*\n)```$", page, re.MULTILINE)
    assert line in package_files("weather")[Path("tests/test_weather.py")]
