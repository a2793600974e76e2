"""Runs all of a source without Spark, one step at a time: an enumerator, its readers, and what goes between them.

Never: take two steps at once. Only the fetchers of the ready-made readers run on their own, ahead of the steps.
"""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, wait
from typing import Any, Generic, Self, TypeVar

import msgspec
import pyarrow as pa

from headgate.source.enumerator import Boundedness
from headgate.source.events import SourceEvent
from headgate.source.reader import InputStatus
from headgate.source.source import Source, SupportsSplitReassignmentOnRecovery
from headgate.source.split import Split
from headgate.source.watermark import WatermarkStrategy
from headgate.testing.clock import VirtualClock
from headgate.testing.enumerator_harness import EnumeratorHarness, arrow_schema
from headgate.testing.reader_harness import ReaderHarness

SplitT = TypeVar("SplitT", bound=Split)
StateT = TypeVar("StateT")

_QUIET_S = 0.02
"""How long an unbounded read waits for its readers before discovery goes on, in seconds of real time."""


class SourceSnapshot(msgspec.Struct, frozen=True):
    """A checkpoint of a whole source, as bytes.

    Parameters
    ----------
    enumerator
        The enumerator's state.
    readers
        For each reader its splits.
    batches
        For each reader how many batches it had emitted since it was made.
    """

    enumerator: bytes
    readers: tuple[tuple[bytes, ...], ...]
    batches: tuple[int, ...] = ()


class SourceHarness(Generic[SplitT, StateT]):
    """A source under a test's control, wired as a runtime would.

    Parameters
    ----------
    source
        What to run.
    schema
        The columns that are read; None: what ``source.schema()`` says.
    boundedness, parallelism
        How it is read, and by how many readers.
    snapshot
        Where to go on, at any parallelism; None starts afresh.
    strategy
        How watermarks are made.
    clock
        The time of the enumerator's periodic work and of idleness.
    timeout_s
        After this real time without any progress, in seconds, a step fails.
    most_rows
        As for `ReaderHarness`.

    Attributes
    ----------
    enumerator, readers
        The harnesses of the parts.
    """

    def __init__(
        self,
        source: Source[SplitT, StateT],
        *,
        schema: pa.Schema | None = None,
        boundedness: Boundedness = Boundedness.BOUNDED,
        parallelism: int = 1,
        snapshot: SourceSnapshot | None = None,
        strategy: WatermarkStrategy | None = None,
        clock: VirtualClock | None = None,
        timeout_s: float = 30.0,
        most_rows: int | None = None,
    ) -> None:
        self.source = source
        self.schema = arrow_schema(source, schema)
        self.clock = clock or VirtualClock()
        self._strategy = strategy
        self._timeout_s = timeout_s
        self._most_rows = most_rows
        self._bounded = boundedness is Boundedness.BOUNDED
        self._turn = 0
        self._kept_rows: list[dict[str, Any]] = []
        self._finished: list[str] = []
        self.enumerator = EnumeratorHarness(
            source,
            schema=self.schema,
            boundedness=boundedness,
            parallelism=parallelism,
            state=snapshot.enumerator if snapshot else None,
            clock=self.clock,
        )
        self.readers = [self._new_reader(subtask) for subtask in range(parallelism)]
        self._ended = [False] * parallelism
        self._asked = [0] * parallelism  # how many requests of each reader the enumerator has seen
        self._last = snapshot or SourceSnapshot(b"", ())
        self._since: list[dict[str, SplitT]] = [{} for _ in range(parallelism)]
        self.enumerator.start()
        held = [data for reader in self._last.readers for data in reader]
        restored = tuple(tuple(held[subtask::parallelism]) for subtask in range(parallelism))
        self._last = msgspec.structs.replace(self._last, readers=restored, batches=(0,) * parallelism)
        for subtask in range(parallelism):
            self._register(subtask, restored[subtask])

    def step(self) -> bool:
        """Do one visible thing: emit a batch, end a split, assign, or run the enumerator's next work.

        Returns
        -------
        False when all readers have ended.

        Raises
        ------
        AssertionError
            Nothing happened within ``timeout_s``, or nothing can: readers wait and the enumerator has no work.
        """
        give_up_at = time.monotonic() + self._timeout_s
        while not all(self._ended):
            if self.try_step():
                return True
            if any(reader.splits for reader in self.readers) and self._wait():
                assert time.monotonic() < give_up_at, self._stuck("no row came")
                continue
            if self.enumerator.run_next_call():
                self._deliver()
                return True
            assert not self._bounded and time.monotonic() < give_up_at, self._stuck("the enumerator has no work")
        return False

    def try_step(self) -> bool:
        """Do one visible thing that neither waits nor needs the clock to move; return whether there was one."""
        done = self._deliver() or self.poll() or self.enumerator.run_due_calls() > 0
        delivered = self._deliver()
        return done or delivered

    @property
    def ended(self) -> bool:
        """Whether all readers have ended."""
        return all(self._ended)

    def poll(self) -> bool:
        """Poll the readers in turn, without waiting, until one of them did something; return whether one did."""
        for offset in range(len(self.readers)):
            subtask = (self._turn + offset) % len(self.readers)
            if not self._ended[subtask] and self._poll_one(subtask):
                self._turn = subtask + 1
                return True
        return False

    def run_to_end(self, max_steps: int = 1_000_000) -> None:
        """Step to the end of a bounded read."""
        for _ in range(max_steps):
            if not self.step():
                return
        raise AssertionError(self._stuck(f"{max_steps} steps did not reach the end"))

    def run_until_rows(self, count: int) -> None:
        """Step until so many rows were emitted."""
        give_up_at = time.monotonic() + self._timeout_s
        while (found := self.row_count) < count:
            assert self.step(), f"the input ended with {found} rows, before {count}"
            if self.row_count > found:
                give_up_at = time.monotonic() + self._timeout_s
            assert time.monotonic() < give_up_at, self._stuck(f"{found} of {count} rows came")

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows emitted, save for those that a failed reader emitted since the last snapshot."""
        return self._kept_rows + [row for reader in self.readers for row in reader.rows()]

    @property
    def row_count(self) -> int:
        """The number of `rows`."""
        counts: list[int] = [batch.num_rows for reader in self.readers for _, batch in reader.batches]
        return len(self._kept_rows) + sum(counts)

    def snapshot(self) -> SourceSnapshot:
        """Take a checkpoint, which completes, between two steps, after checking that every split is in one place."""
        self._deliver()
        readers = tuple(tuple(reader.snapshot()) for reader in self.readers)
        if self._finished:
            self.enumerator.enumerator.notify_splits_finished(tuple(self._finished))
            self._finished.clear()
        batches = tuple(len(reader.batches) for reader in self.readers)
        self._last = SourceSnapshot(self.enumerator.snapshot(), readers, batches)
        self._since = [{} for _ in self.readers]
        self.enumerator.complete_checkpoint()
        return self._last

    def fail_reader(self, subtask: int) -> None:
        """Let a reader fail and come back, restored from the last snapshot.

        What it was assigned since goes back to the enumerator; the rows it emitted since do not count.
        """
        self._deliver()
        failed = self.readers[subtask]
        kept = self._last.batches[subtask]
        self._kept_rows += [row for _, batch in failed.batches[:kept] for row in batch.to_pylist()]
        failed.close()
        restored = self._last.readers[subtask]
        self._last = msgspec.structs.replace(
            self._last, batches=tuple(0 if each == subtask else n for each, n in enumerate(self._last.batches))
        )
        lost = list(self._since[subtask].values())
        self._since[subtask] = {}
        again = {split.split_id for split in (*lost, *map(self.source.split_serializer.deserialize, restored))}
        self._finished = [split_id for split_id in self._finished if split_id not in again]
        self._ended[subtask] = False
        self._asked[subtask] = 0
        self.enumerator.fail_reader(subtask, lost)
        self.readers[subtask] = self._new_reader(subtask)
        self._register(subtask, restored)

    def close(self) -> None:
        """Close readers and enumerator."""
        for reader in self.readers:
            reader.close()
        self.enumerator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _new_reader(self, subtask: int) -> ReaderHarness[SplitT]:
        return ReaderHarness(
            self.source.create_reader,
            self.source.split_serializer,
            self.schema,
            subtask=subtask,
            strategy=self._strategy,
            clock=self.clock,
            timeout_s=self._timeout_s,
            most_rows=self._most_rows,
        )

    def _register(self, subtask: int, state: tuple[bytes, ...]) -> None:
        splits: list[SplitT] = [self.source.split_serializer.deserialize(data) for data in state]
        if isinstance(self.source, SupportsSplitReassignmentOnRecovery):
            # From here on they are the enumerator's: should the reader fail again, it has nothing to report.
            readers = tuple(() if each == subtask else of for each, of in enumerate(self._last.readers))
            self._last = msgspec.structs.replace(self._last, readers=readers)
            self.enumerator.register_reader(subtask, "localhost", splits)
            return
        self.enumerator.hold_restored(subtask, splits)
        self.readers[subtask].add_splits(*splits)
        self.enumerator.register_reader(subtask, "localhost")

    def _deliver(self) -> bool:
        """Bring to the readers what the enumerator sent; return whether there was anything."""
        messages, self.enumerator.outbox = self.enumerator.outbox, []
        for subtask, message in messages:
            if message is None:
                self.readers[subtask].reader.notify_no_more_splits()
            elif isinstance(message, SourceEvent):
                self.readers[subtask].reader.handle_source_event(message)
            else:
                self._since[subtask].update((split.split_id, split) for split in message)
                self.readers[subtask].add_splits(*message)
        return bool(messages)

    def _poll_one(self, subtask: int) -> bool:
        reader = self.readers[subtask]
        before, finished = reader.progress, len(reader.finished)
        status = reader.poll()
        self._ended[subtask] = status is InputStatus.END_OF_INPUT
        for split_id in reader.finished[finished:]:
            self.enumerator.finish_split(subtask, split_id)
            self._finished.append(split_id)
        while reader.events:
            self.enumerator.enumerator.handle_source_event(subtask, reader.events.pop(0))
        if reader.requests > self._asked[subtask]:  # in its start, perhaps
            self._asked[subtask] = reader.requests
            self.enumerator.request_split(subtask)
        return self._ended[subtask] or reader.progress != before

    def _wait(self) -> bool:
        """Wait until a reader has something; an unbounded read waits a moment only. False: nothing came."""
        futures = [reader.reader.available() for reader, ended in zip(self.readers, self._ended) if not ended]
        done, _ = wait(futures, self._timeout_s if self._bounded else _QUIET_S, FIRST_COMPLETED)
        return self._bounded or bool(done)

    def _stuck(self, why: str) -> str:
        held = [sorted(reader.splits) for reader in self.readers]
        return (
            f"{self.source.name} does not go on: {why}. Readers hold {held}, requests of {self.enumerator.requests} "
            f"are not answered, {len(self.enumerator.calls)} calls of the enumerator wait."
        )
