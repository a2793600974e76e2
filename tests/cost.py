"""What tests cost: ``./run test --cost`` shows the processor time of each file and of the dearest tests.

A test's is what its process and all that descends from it spent until its end. What a session's Java does between two
tests counts for the one that follows; the brokers that all processes share count for none. JUnit's times count what a
test waited for instead, and none of its children.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).resolve().parent.parent / ".cache"
"""Where each test's figures are left: file, test, seconds of processor time, seconds on the clock."""
SHOWN = 40


class OfEachTest:
    """In a process that runs tests: adds to each report at a test's end what it cost."""

    def pytest_collection_finish(self) -> None:
        """Begin: what it took to collect the tests is nobody's."""
        self._spent_s, self._at_s = spent_s(), time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
        """Measure when a test's fixtures are done with."""
        report: pytest.TestReport = yield
        if call.when == "teardown":
            spent, at = spent_s(), time.monotonic()
            report.user_properties.append(("cost", (spent - self._spent_s, at - self._at_s)))
            self._spent_s, self._at_s = spent, at
        return report


class OfAll:
    """In the process that reports: collects what each test cost, and shows it at the end."""

    def __init__(self, tier: str) -> None:
        self._table = FOLDER / f"test-cost-{tier}.tsv"
        self._tests: list[tuple[str, str, float, float]] = []
        self._began_s, self._busy_s = time.monotonic(), machine_busy_s()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a test's cost."""
        for name, cost in report.user_properties:
            if name == "cost" and report.when == "teardown":
                file, _, test = report.nodeid.partition("::")
                self._tests.append((file, test, *cost))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the table, and leave each test's figures in a file."""
        FOLDER.mkdir(exist_ok=True)
        lines = (f"{file}\t{test}\t{cpu:.3f}\t{clock:.3f}\n" for file, test, cpu, clock in self._tests)
        self._table.write_text("".join(lines))
        files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
        for file, _, cpu, clock in self._tests:
            files[file] = [files[file][0] + cpu, files[file][1] + clock, files[file][2] + 1]
        terminalreporter.section("processor time, children included")
        terminalreporter.write_line("processor s   clock s   tests  file")
        for file, (cpu, clock, count) in sorted(files.items(), key=lambda each: -each[1][0])[:SHOWN]:
            terminalreporter.write_line(f"{cpu:11.1f} {clock:9.1f} {count:7.0f}  {file}")
        for file, test, cpu, clock in sorted(self._tests, key=lambda each: -each[2])[:SHOWN]:
            terminalreporter.write_line(f"{cpu:11.1f} {clock:9.1f}          {file}::{test[:100]}")
        spent, busy, took = sum(each[2] for each in self._tests), machine_busy_s() - self._busy_s, time.monotonic()
        terminalreporter.write_line(
            f"all {len(self._tests)} tests: {spent:.0f} s of processor time; the machine was busy for {busy:.0f} s in "
            f"{took - self._began_s:.0f} s; each is in {self._table}"
        )


def spent_s() -> float:
    """Return the processor time of this process and of what descends from it: what has ended counts for its parent."""
    me, total_s = psutil.Process(), 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            total_s += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return total_s


def machine_busy_s() -> float:
    """Return the processor time of all that runs on this machine, the brokers that tests share included."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))
