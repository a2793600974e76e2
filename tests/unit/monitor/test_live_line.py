"""The live line: in a terminal one line in one place, elsewhere nothing at all."""

from __future__ import annotations

import io
import sys

import pytest

from headgate.monitor.live_line import LiveLine
from headgate.monitor.progress import ProgressReporter, QueryIdentity

IDENTITY = QueryIdentity(query_id="q", run_id="r", name="rides", sources={"a": "kafka"}, sinks={"b": "noop"})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show_twice(stream: io.StringIO) -> str:
    reporter = ProgressReporter(IDENTITY, started_ms=0)
    line = LiveLine(stream)
    line.show(reporter.report(1000)[0])
    line.show(reporter.report(2000)[0])
    line.close()
    return stream.getvalue()


def test_in_a_terminal_the_line_is_written_over_and_taken_away() -> None:
    text = show_twice(Terminal())
    assert text.count("rides: 0 rows/s in") >= 2
    assert text.rfind("\x1b[?25h", 0, text.index("rides: 0", 20)) > 0, "the cursor is visible"
    assert text.count("\n") == 1, "the cursor stays in the line until the end"
    assert text[text.index("\n") :].count("\x1b[1A\x1b[2K") == 1, "then the line is erased"


def test_elsewhere_nothing_is_written() -> None:
    assert show_twice(io.StringIO()) == ""


def test_without_rich_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert show_twice(Terminal()) == ""
