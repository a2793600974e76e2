"""The source that is checked, and what checks do with it again and again.

Never: decide whether a promise is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from headgate.errors import UnsupportedOperationError
from headgate.source.enumerator import Boundedness
from headgate.source.source import Source
from headgate.source.split import Split
from headgate.testing.conformance.report import Promise
from headgate.testing.enumerator_harness import EnumeratorHarness, arrow_schema
from headgate.testing.reader_harness import ReaderHarness
from headgate.testing.source_harness import SourceHarness

MakeSource: TypeAlias = Callable[[], Source[Any, Any]]
Rows: TypeAlias = list[dict[str, Any]]
MAX_STEPS = 100_000


class DoesNotApply(Exception):  # a finding, not an error
    """The promise means nothing for this source; the text says why, and what to give the kit if that is missing."""


class Subject:
    """A source under examination, made afresh for each trial.

    Parameters
    ----------
    make_source
        Makes the source, with the same options over the same data each time.
    schema
        The columns that are read; None: what the source says.

    Attributes
    ----------
    doing
        What is being done with it, in words; None: nothing that the promise does not say.
    """

    def __init__(self, make_source: MakeSource, schema: pa.Schema | None = None) -> None:
        self.make_source = make_source
        self.schema = arrow_schema(make_source(), schema)
        self.doing: str | None = None

    def does(self, what: str) -> None:
        """Note what is done from now on, for the report."""
        self.doing = what

    def needs(self, boundedness: Boundedness) -> None:
        """Raise `DoesNotApply` if the source cannot be read in this way."""
        if not self.make_source().supports(boundedness):
            kind = "bounded" if boundedness is Boundedness.BOUNDED else "unbounded"
            raise DoesNotApply(f"the source has no {kind} read (Source.supports)")

    @cached_property
    def rows(self) -> Rows:
        """All rows of a bounded read."""
        return self.read(self.make_source())

    def read(self, source: Source[Any, Any]) -> Rows:
        """Return the rows of a bounded read."""
        with SourceHarness(source, schema=self.schema) as harness:
            harness.run_to_end()
            return harness.rows()

    def harness(self, **arguments: Any) -> SourceHarness[Any, Any]:
        """Return a harness around a new source."""
        return SourceHarness(self.make_source(), schema=self.schema, **arguments)

    def reader(self, **arguments: Any) -> ReaderHarness[Any]:
        """Return a harness around a reader of a new source."""
        source = self.make_source()
        return ReaderHarness(source.create_reader, source.split_serializer, self.schema, **arguments)

    def enumerator(self, **arguments: Any) -> EnumeratorHarness[Any, Any]:
        """Return a harness around an enumerator of a new source."""
        return EnumeratorHarness(self.make_source(), schema=self.schema, **arguments)

    def splits(self) -> list[Any]:
        """Return the splits of a bounded read, pulled or pushed."""
        enumerator = self.enumerator()
        enumerator.start()
        enumerator.register_reader(0)
        splits = pull_all(enumerator)
        enumerator.close()
        return splits

    def read_splits(self, splits: Sequence[Split]) -> Rows:
        """Return the rows of splits, read by one reader."""
        with self.reader() as harness:
            harness.add_splits(*splits)
            return harness.run_to_end()


class Check(msgspec.Struct, frozen=True):
    """A promise and the function that finds out whether it is kept: by `AssertionError`, or whatever is raised."""

    promise: Promise
    run: Callable[[Subject], None]


def promise(*, name: str, sentence: str, how: str, contract: str) -> Callable[[Callable[[Subject], None]], Check]:
    """Make a `Check` of a function."""
    return lambda run: Check(Promise(name=name, sentence=sentence, how=how, contract=contract), run)


def steps(harness: SourceHarness[Any, Any], count: int) -> None:
    """Take up to so many steps."""
    for _ in range(count):
        harness.step()


def pull_all(enumerator: EnumeratorHarness[Any, Any]) -> list[Any]:
    """Let reader 0 ask until there are no more splits, and return those that it has."""
    while 0 not in enumerator.no_more_splits:
        before = len(enumerator.outbox)
        if 0 not in enumerator.requests:
            enumerator.request_split(0)
        if len(enumerator.outbox) == before:
            assert enumerator.run_next_call(), "the enumerator neither assigns nor ends nor has work to do"
    return list(enumerator.assigned[0].values())


def try_to_pause(reader: ReaderHarness[Any], *split_ids: str) -> None:
    """Pause splits, or raise `DoesNotApply` if the reader cannot."""
    try:
        reader.pause_or_resume(split_ids)
    except UnsupportedOperationError:
        raise DoesNotApply(
            "the reader cannot pause single splits: implement pause_or_resume_splits to align them in event time"
        ) from None
