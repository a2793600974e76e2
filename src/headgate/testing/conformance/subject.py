"""The source that is checked, and what checks do with it again and again.

Never: decide whether a promise is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from headgate.errors import UnsupportedOperationError
from headgate.readers import SourceReaderBase
from headgate.source.enumerator import Boundedness
from headgate.source.reader import SourceReader, SourceReaderContext
from headgate.source.source import Source
from headgate.source.split import Split
from headgate.source.split_reader import SplitReader
from headgate.testing.conformance.report import Promise
from headgate.testing.enumerator_harness import EnumeratorHarness, arrow_schema
from headgate.testing.reader_harness import ReaderHarness
from headgate.testing.source_harness import SourceHarness

MakeSource: TypeAlias = Callable[[], Source[Any, Any]]
Rows: TypeAlias = list[dict[str, Any]]
MAX_STEPS = 100_000
_MAX_DISCOVERIES = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
    add_rows
        Adds rows to what the source reads; None: nobody can.
    unavailable
        Makes the system that is read from fail or hang as long as the context lasts; None: nobody can.

    Attributes
    ----------
    doing
        What is being done with it, in words; None: nothing that the promise does not say.
    """

    def __init__(
        self,
        make_source: MakeSource,
        schema: pa.Schema | None = None,
        *,
        add_rows: Callable[[], object] | None = None,
        unavailable: Callable[[], AbstractContextManager[object]] | None = None,
    ) -> None:
        self.make_source = make_source
        self.schema = arrow_schema(make_source(), schema)
        self._add_rows = add_rows
        self._unavailable = unavailable
        self.doing: str | None = None

    def does(self, what: str) -> None:
        """Note what is done from now on, for the report."""
        self.doing = what

    def needs(self, boundedness: Boundedness) -> None:
        """Raise `DoesNotApply` if the source cannot be read in this way."""
        if not self.make_source().supports(boundedness):
            kind = "bounded" if boundedness is Boundedness.BOUNDED else "unbounded"
            raise DoesNotApply(f"the source has no {kind} read (Source.supports)")

    def add_rows(self) -> None:
        """Add rows to what the source reads, or raise `DoesNotApply`."""
        self.can_add_rows()
        assert self._add_rows is not None
        self._add_rows()
        for name in ("rows", "split_rows"):
            self.__dict__.pop(name, None)

    def can_add_rows(self) -> None:
        """Raise `DoesNotApply` if nobody can add rows."""
        if self._add_rows is None:
            raise DoesNotApply("give add_rows=, a function that adds rows to what the source reads")

    def unavailable(self) -> AbstractContextManager[object]:
        """Return a context in which the system fails or hangs, or raise `DoesNotApply`."""
        if self._unavailable is None:
            raise DoesNotApply(
                "give unavailable=, which returns a context manager: within it the system fails or does not answer"
            )
        return self._unavailable()

    @cached_property
    def rows(self) -> Rows:
        """All rows of a bounded read."""
        return self.read(self.make_source())

    @cached_property
    def split_rows(self) -> dict[str, Rows]:
        """The rows of each split of a bounded read, in their order."""
        with self.harness() as harness:
            harness.run_to_end()
            reader = harness.readers[0]
            return {split_id: reader.rows(split_id) for split_id in reader.finished}

    @cached_property
    def event_time_column(self) -> str:
        """The column of event times: the one that the source's options name, else the first one of timestamps."""
        named = str(getattr(self.make_source(), "options", {}).get("eventTimeColumn") or "").lower()
        for field in self.schema:
            if field.name.lower() == named or (not named and pa.types.is_timestamp(field.type)):
                return str(field.name)
        raise DoesNotApply("there is no column of event times: read a timestamp, or set the option eventTimeColumn")

    def event_ms(self, row: dict[str, Any]) -> int | None:
        """Return a row's event time in milliseconds, rounded down; None: it has none."""
        value: datetime | None = row[self.event_time_column]
        return None if value is None else (value.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)

    def unbounded_splits(self) -> list[Any]:
        """Return the splits that one reader is given in an unbounded read, or raise `DoesNotApply`."""
        self.needs(Boundedness.CONTINUOUS_UNBOUNDED)
        enumerator = self.enumerator(boundedness=Boundedness.CONTINUOUS_UNBOUNDED)
        enumerator.start()
        enumerator.register_reader(0)
        for _ in range(_MAX_DISCOVERIES):
            if 0 not in enumerator.no_more_splits:
                enumerator.request_split(0)
            if enumerator.assigned[0] or not enumerator.run_next_call():
                break
        enumerator.close()
        if not enumerator.assigned[0]:
            raise DoesNotApply("an unbounded read has no splits now")
        return list(enumerator.assigned[0].values())

    def read(self, source: Source[Any, Any]) -> Rows:
        """Return the rows of a bounded read."""
        with SourceHarness(source, schema=self.schema) as harness:
            harness.run_to_end()
            return harness.rows()

    def harness(self, **arguments: Any) -> SourceHarness[Any, Any]:
        """Return a harness around a new source."""
        return self.harness_of(self.make_source(), **arguments)

    def harness_of(self, source: Source[Any, Any], **arguments: Any) -> SourceHarness[Any, Any]:
        """Return a harness around this source."""
        return SourceHarness(source, schema=self.schema, **arguments)

    def reader(self, **arguments: Any) -> ReaderHarness[Any]:
        """Return a harness around a reader of a new source."""
        source = self.make_source()
        return ReaderHarness(source.create_reader, source.split_serializer, self.schema, **arguments)

    def enumerator(self, **arguments: Any) -> EnumeratorHarness[Any, Any]:
        """Return a harness around an enumerator of a new source."""
        return EnumeratorHarness(self.make_source(), schema=self.schema, **arguments)

    def splits(self, source: Source[Any, Any] | None = None) -> list[Any]:
        """Return the splits of a bounded read, pulled or pushed."""
        enumerator = EnumeratorHarness(source or self.make_source(), schema=self.schema)
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


def wrap_split_readers(
    source: Source[Any, Any], wrap: Callable[[SplitReader[Any]], SplitReader[Any]]
) -> Source[Any, Any]:
    """Have all split readers of a source's ready-made readers wrapped; return the source.

    Making a reader raises `DoesNotApply` if it is not a ready-made one.
    """
    create_reader = source.create_reader

    def create(context: SourceReaderContext) -> SourceReader[Any]:
        reader = create_reader(context)
        make_split_reader = ready_made(reader).split_reader_factory
        ready_made(reader).split_reader_factory = lambda: wrap(make_split_reader())
        return reader

    source.create_reader = create  # type: ignore[method-assign]
    return source


def ready_made(reader: SourceReader[Any]) -> SourceReaderBase[Any]:
    """Return the reader as what it is, or raise `DoesNotApply`."""
    if not isinstance(reader, SourceReaderBase):
        raise DoesNotApply("the reader is not one of the ready-made ones: there is no split reader")
    return reader


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
