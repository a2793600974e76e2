"""Promises about what a read gives: the same rows each time, by copies of the source and by several readers.

Never: need more than a bounded read.
"""

from __future__ import annotations

from headgate.pickling import dumps, loads
from headgate.source.enumerator import Boundedness
from headgate.testing.conformance.subject import Subject, promise
from headgate.testing.rows import assert_same_rows


@promise(
    name="reads-repeat",
    sentence="Two reads of the same data give the same rows, by splits of the same ids; an id names one piece of work.",
    how="Read all of the source twice, with one reader.",
    contract='docs/full-source.md, "The split"',
)
def reads_repeat(subject: Subject) -> None:
    """Read twice and compare rows and split ids."""
    subject.needs(Boundedness.BOUNDED)
    reads = []
    for _ in range(2):
        with subject.harness() as harness:
            harness.run_to_end()
            reads.append((harness.rows(), sorted(harness.readers[0].finished)))
    assert_same_rows(reads[1][0], reads[0][0], "rows of the second read")
    assert reads[0][1] == reads[1][1], f"split ids differ: {reads[0][1]}, then {reads[1][1]}"
    assert len(set(reads[0][1])) == len(reads[0][1]), f"a split id stands for two pieces of work: {reads[0][1]}"


@promise(
    name="source-can-be-pickled",
    sentence="A source is pickled to every reader: the copy reads the same rows.",
    how="Pickle the source with cloudpickle and read with the copy.",
    contract='docs/full-source.md, "The source"',
)
def source_can_be_pickled(subject: Subject) -> None:
    """Read with a copy."""
    copy = loads(dumps(subject.make_source()))
    subject.needs(Boundedness.BOUNDED)
    assert_same_rows(subject.read(copy), subject.rows, "rows of the pickled source")


@promise(
    name="parallel-readers-read-the-same",
    sentence="Several readers together read what one reads.",
    how="Read all of the source with two readers, then with three.",
    contract='docs/full-source.md, "The enumerator"',
)
def parallel_readers_read_the_same(subject: Subject) -> None:
    """Read with more readers."""
    subject.needs(Boundedness.BOUNDED)
    for parallelism in (2, 3):
        with subject.harness(parallelism=parallelism) as harness:
            harness.run_to_end()
            assert_same_rows(harness.rows(), subject.rows, f"rows of {parallelism} readers")


@promise(
    name="one-thread",
    sentence="One thread calls everything of an object but wake_up and available, and work given to call_async touches "
    "no method of the enumerator.",
    how="Read with two readers, while every call notes its thread.",
    contract='docs/full-source.md, "The enumerator"',
)
def one_thread(subject: Subject) -> None:
    """Read; the harnesses note threads."""
    subject.needs(Boundedness.BOUNDED)
    with subject.harness(parallelism=2) as harness:
        harness.run_to_end()


CHECKS = (reads_repeat, source_can_be_pickled, parallel_readers_read_the_same, one_thread)
