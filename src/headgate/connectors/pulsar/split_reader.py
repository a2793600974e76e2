"""Reads partitions, each by a `pulsar.Reader` of its own, all with one client and on one thread.

Never: block in Pulsar's client on the fetcher's thread, or poll partitions that are idle.

A partition is *opened* on a thread beside (the brokers are asked whether its position is still there); then what its
queue holds is *drained*. An empty queue of an unbounded read is *armed*: the client calls back with the next message.
That of a bounded read is looked at again, as messages must be there; when nothing comes, the brokers are asked whether
anything is left, which may not be if the last entries hold nothing for readers (ends of transactions).

Where messages of two ledgers follow each other, or entries were passed over, messages wait until the brokers have
reported whether any between them were given up or not delivered: see `ledgers` and `entries`.

Follows FLIP-27, "High-level Readers"; FLIP-217 for pausing.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headgate.connectors.pulsar.admin import PulsarAdmin
from headgate.connectors.pulsar.client import NAME, ClientConfig
from headgate.connectors.pulsar.columns import PulsarColumns
from headgate.connectors.pulsar.entries import Entry, Holds, entries_of, is_encrypted, passed_over
from headgate.connectors.pulsar.jobs import Jobs
from headgate.connectors.pulsar.ledgers import Ledgers, is_lost, remembered
from headgate.connectors.pulsar.opening import (
    did_not_come,
    in_chunks,
    messages_gone,
    not_decrypted,
    not_delivered,
    open_reader,
    release,
)
from headgate.connectors.pulsar.position import Position, after_message, is_beyond, is_chunked
from headgate.connectors.pulsar.split import PulsarSplit
from headgate.errors import DataLossError, HeadgateError, SourceUnavailableError
from headgate.source.metrics import MetricGroup
from headgate.source.split_reader import FetchedBatch, SplitReader

logger = logging.getLogger(__name__)

_OPENING_THREADS = 4
_MOST_MESSAGES = 8192
_BATCH_BYTES = 4 << 20
"""About how large a batch is made, by the size of the one before."""
_QUEUE_BYTES, _MOST_QUEUED = 256 << 20, 5000
"""How much the client may hold for all partitions of a reader, by the sizes of entries, and how many messages of one.
It counts messages, of which an entry may have many: the bound is for those that are sent one by one."""
_POLL_MS = 10
"""How soon an empty queue of a bounded read is looked at again."""
_LOOK_MS = 200
"""After so much silence a bounded read asks whether anything is left, and again."""
_IDLE_LOOK_MS = 30_000
"""So often an idle partition's ledgers are looked at, so that it is known later that nothing of them was lost."""
_RETRY_MS = 1000
_MOST_ASKED = 64
"""For so many entries the brokers are asked at a time."""


class _Opened(NamedTuple):
    reader: Any
    ledgers: Ledgers
    position: Position | None


class _Looked(NamedTuple):
    ledgers: Ledgers | None
    is_more: bool
    following: Holds | None  # what is next
    reached: Position | None  # up to which there is nothing


class _Partition:
    """What the split reader knows of one partition."""

    def __init__(self, split: PulsarSplit) -> None:
        self.split = split
        self.opening: Any = None  # the reader as soon as there is one, seen by the thread that opens it
        self.reader: Any = None
        self.ledgers = Ledgers(())  # what is known of them: see `remembered`
        self.messages: deque[Any] = deque()  # that came while nobody drained
        self.unchecked: list[Any] = []  # taken, and waiting for what the brokers say of their ledgers
        self.reported: Ledgers | None = None  # what they reported
        self.passed: Position | None = None  # up to which entries hold nothing that was not read
        self.has_skipped = False  # messages that could not be decrypted
        self.queue = 0  # how many messages the client may hold
        self.unreturned = 0  # for how many of them it will not ask again
        self.is_armed = False
        self.is_ready = False
        self.is_looking = False
        self.open_ms: int | None = None  # when it is opened again, after that failed
        self.due_ms = 0  # not drained before
        self.silent_ms: int | None = None  # since when its queue is known to be empty
        self.look_ms = 0  # when the brokers are asked next
        self.failures = 0  # how often it could not be opened, in a row
        self.most = 100  # messages of a batch


class PulsarSplitReader(SplitReader[PulsarSplit]):
    """Reads the partitions it is given, in turn.

    Parameters
    ----------
    config
        Makes the client.
    columns
        Makes the batches.
    fail_on_data_loss
        Whether messages that are gone are an error; else a warning.
    poll_timeout_ms
        The longest wait for messages that must be there, in milliseconds.
    reader_arguments
        Further arguments of `pulsar.Client.create_reader`.
    metric_group
        Takes how many messages were received.
    """

    def __init__(
        self, config: ClientConfig, columns: PulsarColumns, *, fail_on_data_loss: bool, poll_timeout_ms: int,
        reader_arguments: dict[str, Any], metric_group: MetricGroup,
    ) -> None:  # fmt: skip
        self._config = config
        self._columns = columns
        self._fail_on_data_loss = fail_on_data_loss
        self._poll_timeout_ms = poll_timeout_ms
        self._reader_arguments = reader_arguments
        self._received = metric_group.counter("receivedMessages")
        self._skipped = metric_group.counter("skippedMessages")
        self._admin = PulsarAdmin(config)
        self._jobs = Jobs(_OPENING_THREADS)
        self._partitions: dict[str, _Partition] = {}
        self._turns: deque[_Partition] = deque()
        self._paused: set[str] = set()
        self._found: list[FetchedBatch[PulsarSplit]] = []
        self._trouble: str | None = None

    def fetch(self, timeout_ms: int) -> Sequence[FetchedBatch[PulsarSplit]]:
        """Drain the next partition that has messages, or wait for one.

        Raises
        ------
        BadDataError, DataLossError
            Messages that were to be read cannot be decrypted, or are gone, and ``failOnDataLoss`` is set.
        SourceError
            Messages were sent in chunks.
        SourceUnavailableError
            Messages of a bounded read do not come within ``pollTimeoutMs``.
        """
        # What is there already may be a call of `wake_up`: then nothing is waited for.
        if not self._jobs.wait(0) and not self._found and not self._is_any_ready(_now_ms()):
            self._jobs.wait(self._patience_ms(timeout_ms))
        found, self._found = self._found, []
        now_ms = _now_ms()
        for _ in range(len(self._turns)):
            partition = self._turns[0]
            self._turns.rotate(-1)
            if self._may_drain(partition, now_ms):
                batch = self._drain(partition, now_ms)
                if batch is not None:
                    found.append(batch)
                    break
        for partition in list(self._partitions.values()):
            self._look_after(partition, now_ms)
        return found

    def handle_splits_changes(self, added: Sequence[PulsarSplit]) -> None:
        """Take splits; their partitions are opened on threads beside."""
        for split in added:
            partition = _Partition(split)
            self._partitions[split.split_id] = partition
            self._turns.append(partition)
            self._open(partition)

    def pause_or_resume_splits(
        self, splits_to_pause: Sequence[PulsarSplit], splits_to_resume: Sequence[PulsarSplit]
    ) -> None:
        """Leave paused partitions' messages in their queues: when these are full, the brokers send no more."""
        self._paused.update(split.split_id for split in splits_to_pause if split.split_id in self._partitions)
        for split in splits_to_resume:
            self._paused.discard(split.split_id)
            partition = self._partitions.get(split.split_id)
            if partition is not None:
                partition.silent_ms = _now_ms() if partition.is_armed else None

    def trouble(self) -> str | None:
        """Return why partitions could not be opened or looked at last time."""
        return self._trouble

    def wake_up(self) -> None:
        """End the wait of `fetch`."""
        self._jobs.post(_nothing)

    def close(self) -> None:
        """Let go of the partitions without waiting for the brokers."""
        self._jobs.close()
        for partition in self._partitions.values():
            if partition.opening is not None:
                release(partition.opening)

    # -- what is due ------------------------------------------------------------------------------------------------

    def _may_drain(self, partition: _Partition, now_ms: int) -> bool:
        is_open = partition.reader is not None and partition.split.split_id not in self._paused
        return is_open and partition.is_ready and not _waits(partition) and partition.due_ms <= now_ms

    def _is_any_ready(self, now_ms: int) -> bool:
        return any(self._may_drain(each, now_ms) for each in self._turns)

    def _patience_ms(self, timeout_ms: int) -> int:
        """Return how long to wait for an event: until the first partition is due."""
        now_ms = _now_ms()
        due = [
            each.due_ms
            for each in self._turns
            if each.is_ready and not _waits(each) and each.split.split_id not in self._paused
        ]
        due += [each.look_ms for each in self._turns if each.reader is not None and not each.is_looking]
        due += [each.open_ms for each in self._turns if each.open_ms is not None]
        return max(1, min([timeout_ms, *(each - now_ms for each in due)]))

    def _look_after(self, partition: _Partition, now_ms: int) -> None:
        """Ask the brokers about a partition of which nothing was heard, or open it again, if that is due."""
        if partition.open_ms is not None and now_ms >= partition.open_ms:
            partition.open_ms = None
            self._open(partition)
        if partition.reader is None or partition.is_looking or now_ms < partition.look_ms:
            return
        bounded = partition.split.stop is not None
        wait_ms = _LOOK_MS if bounded else _IDLE_LOOK_MS
        if partition.split.split_id in self._paused or partition.silent_ms is None:
            partition.look_ms = now_ms + wait_ms
            return
        silence_ms = now_ms - partition.silent_ms
        if silence_ms < wait_ms:
            partition.look_ms = partition.silent_ms + wait_ms
            return
        if bounded and silence_ms > self._poll_timeout_ms:
            why = f"though it is to be read up to {partition.split.stop}"
            if self._trouble:
                why += f" ({self._trouble.rstrip('.')})"
            raise did_not_come(self._config, partition.split, why, self._poll_timeout_ms)
        partition.is_looking = True
        reader, split, last = partition.reader, partition.split, _explained(partition)

        def look() -> _Looked:
            ledgers = self._admin.ledgers(split.name)
            until = split.stop if ledgers is None or split.stop is not None else ledgers.end
            following, reached = None, until
            if ledgers is not None and until is not None and (last is None or last < until):
                following, place = self._first_held(split, passed_over((), last, until, ledgers), 1)
                reached = reached if place is None else Position(place.ledger, place.entry - 1)
            return _Looked(ledgers, not bounded or reader.has_message_available(), following, reached)

        self._jobs.run(look, partial(self._on_looked, partition, partition.silent_ms))

    # -- opening ----------------------------------------------------------------------------------------------------

    def _open(self, partition: _Partition) -> None:
        split = partition.split

        def work() -> _Opened:
            ledgers = self._admin.ledgers(split.name)
            if ledgers is None:
                raise _missing(split)
            self._columns.look_at(split.topic)
            position = split.position
            if position is not None and is_lost(position, None, ledgers, ledgers):
                self._lost(split, ledgers)
                position = ledgers.beginning
            opened = partition.opening = self._new_reader(partition, position, ledgers)
            if self._jobs.closed:  # nobody will take it
                release(opened)
            return _Opened(opened, ledgers, position)

        self._jobs.run(work, partial(self._on_opened, partition))

    def _new_reader(self, partition: _Partition, position: Position | None, ledgers: Ledgers) -> Any:
        most = _QUEUE_BYTES // max(1, len(self._partitions)) // ledgers.entry_bytes
        arguments = {"receiver_queue_size": max(100, min(_MOST_QUEUED, most))} | self._reader_arguments
        partition.queue = arguments["receiver_queue_size"]
        return open_reader(self._config, partition.split, position, arguments)

    def _on_opened(self, partition: _Partition, opened: _Opened | None, error: Exception | None) -> None:
        if error is not None or opened is None:
            assert error is not None
            self._failed(partition, error)
            return
        self._trouble = None
        partition.reader, partition.ledgers, partition.failures = opened.reader, opened.ledgers, 0
        partition.split = msgspec.structs.replace(partition.split, position=opened.position)
        partition.is_ready = True

    def _open_again(self, partition: _Partition) -> None:
        """Open a partition from its position on, with a queue that is empty: what is in this one comes again."""
        release(partition.reader)
        partition.reader, partition.silent_ms = None, None
        partition.is_armed = partition.is_ready = False
        partition.messages.clear()
        partition.unreturned = 0
        self._open(partition)

    def _failed(self, partition: _Partition, error: Exception) -> None:
        """Open a partition again after a while where that may help, else raise."""
        split = partition.split
        if isinstance(error, DataLossError) and not self._fail_on_data_loss:
            logger.warning("%s It is not read any longer (failOnDataLoss is false).", error)
            self._finish(partition)
            return
        partition.failures += 1
        is_over = split.stop is not None and partition.failures * _RETRY_MS > self._poll_timeout_ms
        if not isinstance(error, SourceUnavailableError) or is_over:
            raise error
        self._trouble = str(error)
        partition.open_ms = _now_ms() + _RETRY_MS

    # -- reading ----------------------------------------------------------------------------------------------------

    def _drain(self, partition: _Partition, now_ms: int) -> FetchedBatch[PulsarSplit] | None:
        """Return what there is of a partition, at most a batch; an empty queue is armed."""
        messages = self._take(partition, now_ms)
        if not messages:
            return None
        split = partition.split
        after = after_message(messages[-1].message_id().serialize())
        if is_chunked(messages[0].message_id().serialize()):  # of others a part was passed over
            raise in_chunks(split)
        finished = split.stop is not None and after >= split.stop
        entries, until = entries_of(messages), split.stop if finished else None
        ledgers = self._checked_ledgers(partition, entries, until)
        if ledgers is None:
            self._ask_ledgers(partition, messages, entries, until)
            return None
        if finished:
            assert split.stop is not None
            while messages and is_beyond(messages[-1].message_id().serialize(), split.stop):
                messages.pop()
            after = after_message(messages[-1].message_id().serialize()) if messages else split.stop
        messages = self._decrypted(partition, messages, entries)
        partition.silent_ms = now_ms if partition.is_armed else None
        try:
            batch, kept = self._columns.rows(split.name, messages, split.topic)
        except SourceUnavailableError as error:  # a schema could not be asked for
            self._put_back(partition, messages, error, now_ms)
            return None
        partition.ledgers = ledgers
        self._received.inc(len(messages))
        moved = msgspec.structs.replace(split, position=after, backlog_bytes=None)
        partition.split = moved
        if batch is not None and batch.num_rows:
            fit = _BATCH_BYTES * len(messages) // max(1, batch.nbytes)
            partition.most = max(16, min(_MOST_MESSAGES, fit, 8 * partition.most))
        if finished:
            self._finish(partition, say=False)
        elif partition.unreturned * 2 >= partition.queue:
            self._open_again(partition)
        return FetchedBatch(
            split=moved,
            batch=batch,
            finished=finished,
            position_at=None if batch is None else _positions(split, messages, kept),
        )

    def _decrypted(self, partition: _Partition, messages: list[Any], entries: Sequence[Entry]) -> list[Any]:
        """Return the messages without those that could not be decrypted, whole batches; raise if none may be lost."""
        there = [each.place for each in entries if each.place < len(messages)]
        encrypted = [place for place in there if is_encrypted(messages[place])]
        if not encrypted:
            return messages
        error = not_decrypted(partition.split, messages[encrypted[0]])
        if self._fail_on_data_loss:
            raise error
        count = sum(max(1, messages[place].encryption_context().batch_size()) for place in encrypted)
        self._skipped.inc(count)
        if not partition.has_skipped:
            logger.warning("%s It is false: such messages are left out, and counted as skippedMessages.", error)
        partition.has_skipped = True
        partition.unreturned += count - len(encrypted)
        left_out = set(encrypted)
        return [message for place, message in enumerate(messages) if place not in left_out]

    def _take(self, partition: _Partition, now_ms: int) -> list[Any]:
        import pulsar

        if partition.unchecked:
            messages, partition.unchecked = partition.unchecked, []
            return messages
        messages = list(partition.messages)
        partition.messages.clear()
        if partition.is_armed:
            partition.is_ready = False
            return messages
        receive, append = partition.reader.read_next, messages.append
        try:
            for _ in range(partition.most - len(messages)):
                append(receive(0))
        except pulsar.Timeout:
            if not messages and partition.silent_ms is None:
                partition.silent_ms = now_ms
            if partition.split.stop is None:
                partition.is_ready = False
                self._arm(partition)
            else:
                partition.due_ms = now_ms + _POLL_MS
        except pulsar.PulsarException as error:
            raise self._config.error(error, f"read {partition.split.name}", split=partition.split.split_id) from None
        return messages

    def _arm(self, partition: _Partition) -> None:
        import pulsar

        jobs, reader = self._jobs, partition.reader
        partition.is_armed = True

        def received(result: Any, message: Any) -> None:  # on the client's thread
            if result == pulsar.Result.Ok:
                jobs.post(lambda: self._on_message(partition, reader, message))
            elif result != pulsar.Result.AlreadyClosed:
                jobs.post(lambda: self._on_no_message(partition, reader, result))

        reader.read_next_async(received)

    def _on_message(self, partition: _Partition, reader: Any, message: Any) -> None:
        if reader is partition.reader:
            partition.messages.append(message)
            partition.is_armed, partition.is_ready = False, True

    def _on_no_message(self, partition: _Partition, reader: Any, result: Any) -> None:
        if reader is not partition.reader:
            return
        self._trouble = f"{NAME}: {partition.split.name} cannot be read now: {result}."
        partition.is_armed, partition.is_ready, partition.due_ms = False, True, _now_ms() + _RETRY_MS

    def _put_back(self, partition: _Partition, messages: list[Any], error: Exception, now_ms: int) -> None:
        """Keep messages of which something has to be known first, for a while."""
        self._trouble = str(error)
        partition.messages.extendleft(reversed(messages))
        partition.is_ready, partition.due_ms = True, now_ms + _RETRY_MS

    def _ask_ledgers(
        self, partition: _Partition, messages: list[Any], entries: Sequence[Entry], until: Position | None
    ) -> None:
        """Ask the brokers what there is, after these messages came; others wait after them."""
        partition.unchecked = messages
        split, last = partition.split, _explained(partition)

        def ask() -> Ledgers:
            ledgers = self._admin.ledgers(split.name) or Ledgers(())
            held, place = self._first_held(split, passed_over(entries, last, until, ledgers), _MOST_ASKED)
            if held == "a part of one":
                raise in_chunks(split)
            if held == "a message" and place is not None:
                self._report(not_delivered(split, place))
            return ledgers

        self._jobs.run(ask, partial(self._on_ledgers, partition))

    def _first_held(
        self, split: PulsarSplit, entries: Iterator[tuple[int, int]], count: int
    ) -> tuple[Holds | None, Position | None]:
        """Return what the first entry holds that is there and holds something, and the position after it. Blocks.

        The brokers are asked for ``count`` of the entries at first, then for more and more.
        """
        while asked := list(islice(entries, count)):
            for place, held in zip(asked, self._admin.entries(split.name, asked), strict=True):
                if held is not None and held != "nothing":
                    return held, Position(*place)
            count = min(2 * count, _MOST_ASKED)
        return None, None

    def _on_ledgers(self, partition: _Partition, reported: Ledgers | None, error: Exception | None) -> None:
        if partition.split.split_id not in self._partitions:
            return
        partition.reported = reported
        if isinstance(error, SourceUnavailableError):
            now_ms = _now_ms()
            messages, partition.unchecked = partition.unchecked, []
            self._put_back(partition, messages, error, now_ms)
            partition.silent_ms = partition.silent_ms or now_ms  # a bounded read does not wait for ever
        elif error is not None:
            raise error
        partition.is_ready = True

    def _checked_ledgers(
        self, partition: _Partition, entries: Sequence[Entry], until: Position | None
    ) -> Ledgers | None:
        """Return what is known of the ledgers; None if that does not say what became of what was passed over.

        Raise where some were lost.
        """
        last = partition.split.position
        now, partition.reported = partition.reported, None
        if now is None:
            is_new = entries[-1].ledger != (entries[0].ledger if last is None else last.ledger)
            passed = passed_over(entries, _explained(partition), until, partition.ledgers)
            return None if is_new or next(passed, None) is not None else partition.ledgers
        for each in entries:
            if last is not None and is_lost(last, Position(each.ledger, -1), partition.ledgers, now):
                self._lost(msgspec.structs.replace(partition.split, position=last), now)
            last = Position(each.ledger, each.entry)
        return now

    def _on_looked(
        self, partition: _Partition, silent_ms: int, looked: _Looked | None, error: Exception | None
    ) -> None:
        partition.is_looking = False
        partition.look_ms = _now_ms() + (_LOOK_MS if partition.split.stop is not None else _IDLE_LOOK_MS)
        split_id = partition.split.split_id
        is_older = partition.silent_ms != silent_ms or bool(partition.unchecked)  # than what was read meanwhile
        if split_id not in self._partitions or split_id in self._paused or is_older:
            return
        if error is not None or looked is None:
            self._trouble = str(error)
            return
        self._trouble = None
        split, ledgers = partition.split, looked.ledgers
        if ledgers is None:
            self._failed(partition, _deleted(split))
            return
        if looked.following == "a part of one":
            raise in_chunks(split)
        if split.position is not None and is_lost(split.position, None, partition.ledgers, ledgers):
            self._lost(split, ledgers)
        partition.ledgers = remembered(partition.ledgers, ledgers, split.position)
        partition.passed = looked.reached
        if not looked.is_more and looked.following is None and split.stop is not None:
            # Everything up to the stop was received; what is in the queue is drained before this is believed.
            batch = self._drain(partition, _now_ms())
            if batch is not None:
                self._found.append(batch)
            is_drained = batch is None and not partition.messages and not partition.unchecked
            if is_drained and partition.split.split_id in self._partitions:
                self._finish(partition)

    def _finish(self, partition: _Partition, *, say: bool = True) -> None:
        split_id = partition.split.split_id
        del self._partitions[split_id]
        self._turns.remove(partition)
        self._paused.discard(split_id)
        if partition.reader is not None:
            release(partition.reader)
        if say:
            self._found.append(FetchedBatch(split=partition.split, finished=True))

    def _lost(self, split: PulsarSplit, ledgers: Ledgers) -> None:
        self._report(messages_gone(split, ledgers.beginning))

    def _report(self, error: HeadgateError) -> None:
        if self._fail_on_data_loss:
            raise error
        logger.warning("%s It is false: reading goes on.", error)


def _positions(
    split: PulsarSplit, messages: Sequence[Any], kept: pa.BooleanArray | None
) -> Callable[[int], PulsarSplit]:
    """Return what returns the split after the first rows of a batch."""

    def position_at(count: int) -> PulsarSplit:
        if count == 0:
            return split
        place = count - 1 if kept is None else pc.indices_nonzero(kept)[count - 1].as_py()
        after = after_message(messages[place].message_id().serialize())
        return msgspec.structs.replace(split, position=after, backlog_bytes=None)

    return position_at


def _explained(partition: _Partition) -> Position | None:
    """Return the position up to which it is known what became of each entry of a partition; None: its beginning."""
    positions = [each for each in (partition.split.position, partition.passed) if each is not None]
    return max(positions, default=None)


def _waits(partition: _Partition) -> bool:
    """Return whether what was taken of it waits for what the brokers report."""
    return bool(partition.unchecked) and partition.reported is None


def _missing(split: PulsarSplit) -> DataLossError | SourceUnavailableError:
    """Return the error for a partition that is not there: it was deleted, unless nothing of it was ever read."""
    if split.position is not None:
        return _deleted(split)
    return SourceUnavailableError(
        f"{NAME}: the partition {split.name} does not exist yet.", source=NAME, split=split.split_id
    )


def _deleted(split: PulsarSplit) -> DataLossError:
    return DataLossError(
        f"{NAME}: the topic {split.name} was deleted, and what was not read of it (after {split.position}) with it.",
        source=NAME, path=split.name, split=split.split_id,
    )  # fmt: skip


def _nothing() -> None:
    """Only wake the fetcher."""


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
