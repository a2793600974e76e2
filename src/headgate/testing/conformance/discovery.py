"""Promises about unbounded reads: what comes later is found, once, also after a restore and by other readers.

Never: need that an unbounded read begins with what is there already, unless rows can be added.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from headgate.source.enumerator import Boundedness
from headgate.testing.conformance.subject import Rows, Subject, promise
from headgate.testing.rows import assert_same_rows
from headgate.testing.source_harness import SourceHarness

PATIENCE_S = 30.0
"""How long new rows may take, in seconds of real time."""


@promise(
    name="new-rows-are-found",
    sentence="An unbounded read finds rows that come later, each once, also after a restore at another parallelism.",
    how="Read what is there with two readers, take a checkpoint, add rows, read them, and restore with three readers "
    "and one from the checkpoints before and after.",
    contract='docs/full-source.md, "The enumerator"',
)
def new_rows_are_found(subject: Subject) -> None:
    """Add rows to an unbounded read."""
    subject.needs(Boundedness.BOUNDED)
    subject.needs(Boundedness.CONTINUOUS_UNBOUNDED)
    subject.can_add_rows()
    unbounded = Boundedness.CONTINUOUS_UNBOUNDED
    old = subject.rows
    with subject.harness(boundedness=unbounded, timeout_s=PATIENCE_S, parallelism=2) as harness:
        subject.does("Read what is there, with two readers and without an end.")
        _read_on(harness, len(old))
        assert_same_rows(harness.rows(), old, "rows of an unbounded read")
        before = harness.snapshot()
        subject.add_rows()
        new = _difference(subject.rows, old)
        assert new, "add_rows added nothing that a bounded read finds"
        subject.does(f"Read on after {len(new)} rows were added.")
        _read_on(harness, len(old) + len(new))
        _wait_for_more(harness)
        assert_same_rows(harness.rows(), old + new, "rows of an unbounded read, after rows were added")
        after = harness.snapshot()
    for parallelism, snapshot, expected in ((3, before, new), (1, after, [])):
        subject.does(f"Restore with {parallelism} readers, from a checkpoint when {len(expected)} rows were not read.")
        with subject.harness(
            boundedness=unbounded, timeout_s=PATIENCE_S, parallelism=parallelism, snapshot=snapshot
        ) as restored:
            _read_on(restored, len(expected))
            _wait_for_more(restored)
            assert_same_rows(restored.rows(), expected, "rows of a restored unbounded read")


def _read_on(harness: SourceHarness[Any, Any], count: int) -> None:
    """Read until so many rows have come, with a checkpoint after each split that ends: others may wait for that."""
    until, finished = time.monotonic() + PATIENCE_S, 0
    while harness.row_count < count:
        harness.step()
        if finished != (finished := sum(len(reader.finished) for reader in harness.readers)):
            harness.snapshot()
        assert time.monotonic() < until, f"{harness.row_count} of {count} rows came within {PATIENCE_S:g} s"


def _wait_for_more(harness: SourceHarness[Any, Any]) -> None:
    """Go on for a while: what comes too often has time to come."""
    for _ in range(10):
        if not harness.try_step() and not harness.enumerator.run_next_call():
            time.sleep(0.01)


def _difference(rows: Rows, others: Rows) -> Rows:
    """Return the rows that others are without."""
    left = Counter(map(repr, others))
    new = []
    for row in rows:
        if left[repr(row)]:
            left[repr(row)] -= 1
        else:
            new.append(row)
    return new


CHECKS = (new_rows_are_found,)
