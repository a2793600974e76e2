"""Reads partitions and ranges of them: one consumer for all splits of a reader.

Never: join a consumer group, commit an offset, or let the client choose a position: every partition is assigned at the
split's own, and an offset that is not there is an error (`DataLossError`) unless the user chose otherwise.

A split is added -> read: its partition is assigned at its position; one split of a partition at a time -> finished, and
its partition unassigned, when a record at or beyond its stop is seen, or its last offset, or the partition's end at or
beyond its stop: what is missing there (transactions' markers, aborted or compacted-away records) ends a range as well.

Pausing is lazy, for alignment pauses and resumes a partition hundreds of times a second. What the client has fetched
ahead would be thrown away and fetched again, so a paused split stays assigned, and what comes of it is set aside here
until it is resumed, which then costs nothing. Only when so much is aside as the partition's share of a batch is it
unassigned; resumed, it is assigned again at its position after what is aside. So nothing is lost or repeated, and
the client has no paused partitions that could fall out of step with ours (FLINK-39728).

A topic that was deleted and made again has records at offsets that look right, so its id is compared with the splits':
before the first fetch and then every second, and where losses are allowed after each fetch as well, before anything of
it is given out. Only so are the records of the former topic known from those of the new one, which is read from its
beginning. Ranges of a plan are compared only where losses are allowed: otherwise the next plan finds out.

    split    event          next     why
    -------  -------------  -------  ------------------------------------------------------------------------
    read     pause          aside    its partition stays assigned; what comes is set aside
    aside    resume         read     what is aside is given out first
    aside    enough aside   left     its partition is unassigned: this alone costs something
    aside    other split    left     a split of the same partition that is not paused is read instead
    left     resume         read     what is aside is given out, its partition is assigned at the position after it

Follows FLIP-27, "High-level Readers"; FLIP-217 for pausing. Semantics of ``failOnDataLoss`` are Spark's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from headgate.connectors.kafka.consumer import (
    ALL_BROKERS_DOWN,
    DAMAGED,
    FATAL,
    GONE,
    OUT_OF_RANGE,
    PARTITION_EOF,
    REFUSED,
    SSL,
    TOPIC_REFUSED,
    ClientEvent,
    Consumed,
    KafkaConsumer,
)
from headgate.connectors.kafka.consumer_pool import Decoder, Lease, acquire
from headgate.connectors.kafka.reader_metrics import ReaderMetrics
from headgate.connectors.kafka.reading_settings import BYTES_BESIDE_A_RECORD, reading_settings
from headgate.connectors.kafka.records import Records, Wanted
from headgate.connectors.kafka.split import KafkaSplit, after_rows
from headgate.enumerators.partition import TopicPartition
from headgate.errors import DataLossError, SourceError, SourceUnavailableError
from headgate.source.metrics import MetricGroup
from headgate.source.split_reader import FetchedBatch, Signal, SplitReader

if TYPE_CHECKING:
    from headgate.connectors.kafka.client_config import ClientConfig

_log = logging.getLogger(__name__)

MOST_ROWS = 50_000
"""The most records of one fetch: below it batches are small for what follows, beyond it nothing gets faster."""
MOST_BYTES = 8 * 1024 * 1024
"""About the most bytes of one fetched batch, if it has more than one record."""
_MUCH_BYTES = 256 * 1024
"""After a poll that brought more a thread of its own reads on."""
_FIRST_ROWS = 1000
"""Records of the first fetch, before their size is known."""
_ASK_MS = 5000
"""How long brokers may take to answer what an error is about."""
_TOPIC_IDS_AGAIN_S = 1.0
"""How often topics' ids are compared."""
_MOST_NAMED = 5
"""The most partitions that a trouble names."""
_LOOK_S = 0.05
"""How often a fetch that waits for an answer looks whether it should return."""


class Columns(Protocol):
    """Makes rows of records."""

    @property
    def wanted(self) -> Wanted:
        """What is needed of each record."""

    def rows(self, records: Records) -> tuple[pa.RecordBatch | None, pa.BooleanArray | None]:
        """Return the rows of these records, None if they have none, and which records have one; None: all do."""


class KafkaSplitReader(SplitReader[KafkaSplit]):
    """Reads its splits at once, with one consumer of this process's cache.

    Parameters
    ----------
    client
        How to connect.
    columns
        Makes rows of records.
    fail_on_data_loss
        Whether offsets that are no longer there are an error; else they are passed over, with a warning.
    poll_timeout_ms
        How long to wait for records that must be there, in milliseconds.
    buffered_bytes
        The memory that fetched records may take up before they are rows, about, in bytes.
    decoder
        ``auto``: in bulk if that can be had; ``plain``: message by message.
    metrics
        The reader's; None: nobody looks at them.
    """

    def __init__(
        self, client: ClientConfig, columns: Columns, *, fail_on_data_loss: bool, poll_timeout_ms: int,
        buffered_bytes: int, decoder: Decoder = "auto", metrics: ReaderMetrics | None = None,
    ) -> None:  # fmt: skip
        self._metrics = metrics or ReaderMetrics(MetricGroup())
        self._client = client
        self._columns = columns
        self._fail_on_data_loss = fail_on_data_loss
        self._poll_timeout_ms = poll_timeout_ms
        self._buffered_bytes = buffered_bytes
        self._decoder = decoder
        self._splits: dict[str, KafkaSplit] = {}  # at the positions after what was fetched
        self._paused: set[str] = set()
        self._aside: dict[str, list[FetchedBatch[KafkaSplit]]] = {}  # what came of paused splits, by split id
        self._aside_bytes: dict[str, int] = {}
        self._reading: dict[TopicPartition, str] = {}  # what is assigned, and for which split
        self._changed = False  # whether something else should be assigned
        self._unverified: set[str] = set()  # topics that are not read before their id was compared
        self._held: list[FetchedBatch[KafkaSplit]] = []  # not given out before the topics' ids were compared again
        self._question: tuple[frozenset[str], Future[Mapping[str, str | None]]] | None = None
        self._ask_again_s = 0.0
        self._may_ask = True  # until the brokers refuse to answer
        self._lease: Lease | None = None
        self._left: Consumed | None = None  # by a poll, to the next fetch
        self._polled_much = False
        self._failed = False
        self._woken = False
        self._rows = _FIRST_ROWS
        self._waited_ms = 0.0  # in fetches, since the client last reported anything of a partition
        self._down_since: datetime | None = None  # since when no broker is connected
        self._last_error = "none"

    # ---- called by the fetcher ----

    def handle_splits_changes(self, added: Sequence[KafkaSplit]) -> None:
        """Take splits, each to be read from its position on."""
        self._splits.update((split.split_id, split) for split in added)
        self._unverified.update(split.topic for split in added if split.topic_id is not None and split.stop is None)
        self._changed = True
        self._waited_ms = 0.0

    def pause_or_resume_splits(
        self, splits_to_pause: Sequence[KafkaSplit], splits_to_resume: Sequence[KafkaSplit]
    ) -> None:
        """Give out no more of splits, and again from where they were left. Unknown and finished ones are ignored."""
        for split in splits_to_pause:
            if split.split_id in self._splits or split.split_id in self._aside:
                self._paused.add(split.split_id)
                self._changed = True  # another split of the partition may take its turn
        for split in splits_to_resume:
            if split.split_id not in self._paused:
                continue
            self._paused.discard(split.split_id)
            self._changed = True
            if self._reading.get(split.topic_partition) != split.split_id:
                self._waited_ms = 0.0

    def wake_up(self) -> None:
        """Make a `fetch` that blocks, or the next one, return soon."""
        self._woken = True
        lease = self._lease
        if lease is not None:
            lease.consumer.wake_up()

    def fetch(self, timeout_ms: int) -> Sequence[FetchedBatch[KafkaSplit]]:
        """Read on in all splits that are not paused.

        Raises
        ------
        DataLossError
            Offsets of a split are no longer there, and ``fail_on_data_loss`` is set.
        SourceUnavailableError
            Records that must be there did not come within ``poll_timeout_ms``.
        SourceError
            The brokers refuse this client, or sent what cannot be read.
        """
        try:
            return self._fetch(timeout_ms)
        except BaseException:
            self._failed = True
            raise

    def trouble(self) -> str | None:
        """See `SplitReader.trouble`: no broker answers."""
        since, partitions = self._down_since, sorted(map(str, list(self._reading)))
        if since is None or not partitions:
            return None
        more = f" and {len(partitions) - _MOST_NAMED} more" if len(partitions) > _MOST_NAMED else ""
        return (
            f"No Kafka broker at {self._client.address} has answered since {since:%Y-%m-%dT%H:%M:%SZ}: "
            f"{', '.join(partitions[:_MOST_NAMED])}{more} cannot be read, and the query waits "
            f"for the brokers. The client's last error: {self._last_error}."
        )

    def close(self) -> None:
        """Give the consumer back."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release(assigned=list(self._reading), failed=self._failed)

    # ---- polled by the task's thread ----

    def begin_polling(self, signal: Signal) -> bool:
        """Get ready for `poll`, if partitions are just read on, without ends, and nothing of them may be lost."""
        self._polled_much = False
        return self._reads_on and self._consumer.begin_signals(signal)

    def poll(self) -> Sequence[FetchedBatch[KafkaSplit]] | None:
        """Return what the client has at once; None: it reported something, or the topic is not what it was."""
        try:
            if self._question is not None or time.monotonic() >= self._ask_again_s:
                self._ask_for_topic_ids()
                self._take_answer(0)
            return self._poll(self._consumer) if self._reads_on else None
        except BaseException:
            self._failed = True
            raise

    def has_waiting(self) -> bool:
        """Return whether the client has something."""
        return self._left is not None or self._consumer.has_waiting()

    def end_polling(self) -> None:
        """Have the client give no signals any more."""
        self._consumer.end_signals()

    @property
    def _reads_on(self) -> bool:
        """Whether there is nothing to do but to read on, and to note where partitions end."""
        undone = self._changed or self._held or self._unverified or self._paused or self._aside
        certain = self._fail_on_data_loss and self._down_since is None and self._left is None and not self._polled_much
        return certain and not undone and all(split.stop is None for split in self._splits.values())

    def _poll(self, consumer: KafkaConsumer) -> list[FetchedBatch[KafkaSplit]] | None:
        consumed = consumer.consume(self._columns.wanted, self._rows, 0)
        data_bytes = sum(each.data_bytes for each in consumed.records)
        if data_bytes > MOST_BYTES or any(each.code != PARTITION_EOF for each in consumed.events):
            self._left = consumed  # of a batch that is cut into several, too
            return None
        self._polled_much = data_bytes > _MUCH_BYTES
        consumer.signal_what_waits()
        self._metrics.fetched(consumer, consumed.records, self._reading, time.monotonic())
        fetched = {each.split.split_id: each for each in self._take_all(consumed)}
        for event in consumed.events:
            for at_end in self._on_event(event):
                of_split = fetched.get(at_end.split.split_id, at_end)
                fetched[at_end.split.split_id] = msgspec.structs.replace(of_split, split=at_end.split)
        return list(fetched.values())

    # ---- reading ----

    @property
    def _consumer(self) -> KafkaConsumer:
        if self._lease is None:
            bounded = all(split.stop is not None for split in self._splits.values())
            settings = reading_settings(self._client.consumer(), self._buffered_bytes, bounded)
            self._lease = acquire(self._client, settings, self._decoder)
        return self._lease.consumer

    def _fetch(self, timeout_ms: int) -> list[FetchedBatch[KafkaSplit]]:
        fetched = self._take_back()
        fetched += [
            self._finish(split)
            for split in list(self._splits.values())
            if split.stop is not None and split.position >= split.stop and split.split_id not in self._paused
        ]
        if fetched:
            self._assign()
            return fetched
        self._assign()
        consumer = self._consumer
        self._ask_for_topic_ids()
        if (self._held or self._unverified) and self._question is not None:
            return self._give_out(self._take_answer(timeout_ms))
        fetched += self._take_answer(0)
        if self._woken:
            timeout_ms = 0
        self._woken = False
        begin = time.monotonic()
        consumed, self._left = self._left, None
        if consumed is None:
            consumed = consumer.consume(self._columns.wanted, self._at_most(), timeout_ms)
        self._metrics.fetched(consumer, consumed.records, self._reading, begin)
        fetched += self._take_all(consumed)
        if self._reading:
            self._waited_ms += (time.monotonic() - begin) * 1000
        if consumed.records or any(each.code == PARTITION_EOF for each in consumed.events):
            self._waited_ms = 0.0
            self._down_since = None
        for event in consumed.events:
            fetched += self._on_event(event)
        if not consumed.records and self._waited_ms >= self._poll_timeout_ms:
            fetched += self._on_silence()
        if any(self._must_be_held(each) for each in fetched):
            self._held, self._question = fetched, None  # what was asked before it came says nothing of it
            self._ask_for_topic_ids()
            fetched = self._take_answer(timeout_ms)
        return self._give_out(fetched)

    def _give_out(self, fetched: list[FetchedBatch[KafkaSplit]]) -> list[FetchedBatch[KafkaSplit]]:
        fetched = [each for each in fetched if not self._set_aside(each)]
        self._assign()
        return fetched

    # ---- which topic it is ----

    def _must_be_held(self, fetched: FetchedBatch[KafkaSplit]) -> bool:
        may_ask = self._may_ask and not self._fail_on_data_loss
        return may_ask and fetched.batch is not None and fetched.split.topic_id is not None

    def _ask_for_topic_ids(self) -> None:
        """Ask for the ids of the topics if it is time, or if something waits for that."""
        if self._question is not None or not self._may_ask:
            return
        if not (self._held or self._unverified or time.monotonic() >= self._ask_again_s):
            return
        splits = [*self._splits.values(), *(each.split for each in self._held)]
        names = frozenset(
            split.topic
            for split in splits
            if split.topic_id is not None and (split.stop is None or not self._fail_on_data_loss)
        )
        self._unverified &= names
        if names and self._lease is not None:
            self._question = names, self._lease.ask_for_topic_ids(names)

    def _take_answer(self, timeout_ms: float) -> list[FetchedBatch[KafkaSplit]]:
        """Return what was held, if the brokers have answered whether it may be given out; wait for that at most."""
        if self._question is None:
            return []
        names, answer = self._question
        deadline_s = time.monotonic() + timeout_ms / 1000
        while not answer.done():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or self._woken:
                self._woken = False
                return []
            wait([answer], min(left_s, _LOOK_S))
        self._question, self._ask_again_s = None, time.monotonic() + _TOPIC_IDS_AGAIN_S
        error = answer.exception()
        if isinstance(error, SourceUnavailableError):
            _log.info("cannot check for recreated topics now: %s", error)
            return []  # what is held goes on waiting; so does what was not read yet
        self._down_since = None
        if error is not None:
            _log.warning("cannot check for recreated topics, and does not try again: %s", error)
            self._may_ask = False
            self._unverified.clear()
        self._compare({} if error is not None else answer.result())
        self._unverified -= names
        held, self._held = self._held, []
        return held

    def _compare(self, topic_ids: Mapping[str, str | None]) -> None:
        """Go on with the topics that exist now. The client reports those that do not exist."""
        for split in [*self._splits.values(), *(each.split for each in self._held if each.finished)]:
            topic_id = topic_ids.get(split.topic)
            if split.topic_id is not None and topic_id is not None and topic_id != split.topic_id:
                self._on_made_again(split, topic_id)

    def _on_made_again(self, split: KafkaSplit, topic_id: str) -> None:
        wanted = f"offsets {split.position} to {'the end' if split.stop is None else split.stop}"
        message = (
            f"The topic {split.topic!r} was deleted and made again: wanted are {wanted} of partition "
            f"{split.partition} of the topic with the id {split.topic_id}, and there is one with the id {topic_id}."
        )
        if self._fail_on_data_loss:
            raise DataLossError(
                f"{message} To read the new one from its beginning, set the option failOnDataLoss to false; else "
                "start with a new checkpoint location.",
                source="kafka", split=split.split_id, topic=split.topic, partition=split.partition,
                wanted=(split.position, split.stop),
            )  # fmt: skip
        self._held = [each for each in self._held if each.split.split_id != split.split_id]
        if split.stop is not None:
            _log.warning("%s failOnDataLoss is false: nothing more of this range is read.", message)
            self._splits[split.split_id] = split
            self._held.append(self._finish(split))
            return
        _log.warning("%s failOnDataLoss is false: the new one is read from its beginning.", message)
        self._splits[split.split_id] = msgspec.structs.replace(split, position=0, topic_id=topic_id)
        self._reassign(split.topic_partition)

    def _set_aside(self, fetched: FetchedBatch[KafkaSplit]) -> bool:
        """Keep what came of a paused split; return whether it is paused."""
        split_id = fetched.split.split_id
        if split_id not in self._paused:
            return False
        self._aside.setdefault(split_id, []).append(fetched)
        rows_bytes = BYTES_BESIDE_A_RECORD + (0 if fetched.batch is None else fetched.batch.nbytes)
        self._aside_bytes[split_id] = self._aside_bytes.get(split_id, 0) + rows_bytes
        self._changed = True
        return True

    def _take_back(self) -> list[FetchedBatch[KafkaSplit]]:
        """Return what was set aside of splits that are no longer paused."""
        resumed = self._aside.keys() - self._paused
        for split_id in resumed:
            del self._aside_bytes[split_id]
        return [each for split_id in sorted(resumed) for each in self._aside.pop(split_id)]

    def _is_filled(self, split_id: str) -> bool:
        """Whether as much of a paused split is aside as may be: all of them together have about a batch."""
        return self._aside_bytes.get(split_id, 0) >= MOST_BYTES // len(self._splits)

    def _assign(self) -> None:
        """Have the consumer read what should be read: of each partition the first split that is not paused.

        Where there is none, a paused split that is being read goes on until it has enough aside.
        """
        if not self._changed:
            return
        self._changed = False
        if self._lease is None and not self._splits:
            return
        wanted: dict[TopicPartition, str] = {}
        for split in self._splits.values():
            source = split.topic_partition
            if split.split_id not in self._paused and (
                source not in wanted or self._reading.get(source) == split.split_id
            ):
                wanted[source] = split.split_id
        for source, split_id in self._reading.items():
            if split_id in self._paused and split_id in self._splits and not self._is_filled(split_id):
                wanted.setdefault(source, split_id)
        left = [source for source, split_id in self._reading.items() if wanted.get(source) != split_id]
        begun = [source for source, split_id in wanted.items() if self._reading.get(source) != split_id]
        self._consumer.unassign(left)
        self._reading = wanted
        self._consumer.assign({source: self._splits[wanted[source]].position for source in begun})

    def _reassign(self, source: TopicPartition) -> None:
        """Have the partition assigned anew, at the position where its split is."""
        if self._reading.pop(source, None) is not None:
            self._consumer.unassign([source])
        self._changed = True

    def _at_most(self) -> int:
        """Return how many records to ask for: a client that has all there are does not wait for more."""
        left = 0
        for split_id in self._reading.values():
            split = self._splits[split_id]
            if split.stop is None:
                return self._rows
            left += split.stop - split.position
        return max(1, min(self._rows, left))

    def _take_all(self, consumed: Consumed) -> list[FetchedBatch[KafkaSplit]]:
        """Return the rows of the records that belong to the splits being read."""
        together = consumed.together
        if together is not None:
            splits = [self._split_of(part.source) for part in together.parts]
            if all(
                split is not None and split.stop is None and part.offsets[0] >= split.position
                for split, part in zip(splits, together.parts)
            ):
                return self._take_together(together)
        return [each for records in consumed.records for each in self._take(records)]

    def _take_together(self, together: Records) -> list[FetchedBatch[KafkaSplit]]:
        """Return the rows of records that all are of splits without an end: made at once, and a slice of each."""
        self._measure(together)
        batch, kept = self._columns.rows(together)
        fetched, row, record = [], 0, 0
        for part in together.parts:
            count = len(part.offsets)
            of_part = None if kept is None else kept.slice(record, count)
            rows = count if of_part is None else of_part.true_count
            split_id = self._reading[part.source]
            split = msgspec.structs.replace(self._splits[split_id], position=int(part.offsets[-1]) + 1)
            self._splits[split_id] = split
            if batch is None or not rows:
                fetched.append(FetchedBatch(split=split))
            else:
                position_at = partial(after_rows, split, part.offsets, of_part)
                fetched.append(FetchedBatch(split=split, batch=batch.slice(row, rows), position_at=position_at))
            row, record = row + rows, record + count
        return fetched

    def _take(self, records: Records) -> list[FetchedBatch[KafkaSplit]]:
        """Return the rows of the records that belong to the split being read."""
        self._measure(records)
        split = self._split_of(records.source)
        if split is None:
            return []
        begin = int(np.searchsorted(records.offsets, split.position)) if records.offsets[0] < split.position else 0
        end = len(records.offsets) if split.stop is None else int(np.searchsorted(records.offsets, split.stop))
        fetched = []
        for piece in records.slice(begin, end).pieces(MOST_BYTES):
            split = msgspec.structs.replace(split, position=int(piece.offsets[-1]) + 1)
            batch, kept = self._columns.rows(piece)
            position_at = None if batch is None else partial(after_rows, split, piece.offsets, kept)
            fetched.append(FetchedBatch(split=split, batch=batch, position_at=position_at))
        self._splits[split.split_id] = split
        if split.stop is not None and (end < len(records.offsets) or split.position >= split.stop):
            fetched.append(self._finish(split, fetched.pop() if fetched else None))
        return fetched

    def _measure(self, records: Records) -> None:
        data_bytes = records.data_bytes
        if data_bytes:
            self._rows = max(1, min(MOST_ROWS, MOST_BYTES * len(records.offsets) // data_bytes))

    def _finish(self, split: KafkaSplit, last: FetchedBatch[KafkaSplit] | None = None) -> FetchedBatch[KafkaSplit]:
        del self._splits[split.split_id]
        self._changed = True
        if split.stop is not None:
            split = msgspec.structs.replace(split, position=max(split.position, split.stop))
        if last is None:
            return FetchedBatch(split=split, finished=True)
        return msgspec.structs.replace(last, split=split, finished=True)

    # ---- what clients report besides records ----

    def _on_event(self, event: ClientEvent) -> list[FetchedBatch[KafkaSplit]]:
        if event.code == PARTITION_EOF:
            split = self._split_of(event.source)
            return [] if split is None else self._at_end(split, event.offset)
        if event.code != ALL_BROKERS_DOWN:  # it follows the errors that say why
            self._last_error = self._client.redact(event.text)
        _log.debug("the Kafka client says (%d, %s): %s", event.code, event.source, event.text)
        if event.code in OUT_OF_RANGE and event.source is not None:
            return self._look_again([event.source])
        if event.code in GONE:
            return self._look_again(list(self._reading))
        if event.code == ALL_BROKERS_DOWN and self._down_since is None:
            self._down_since, self._waited_ms = datetime.now(UTC), 0.0
            self._question = None  # an answer to what was asked before does not say that they are back
        if event.code in REFUSED or (event.code == SSL and "verif" in event.text):
            self._fail("refuse this client. Check user, password, certificates and kafka.security.protocol", event)
        if event.code == TOPIC_REFUSED:
            self._fail("do not let this user read the topic. Grant READ and DESCRIBE on it", event)
        if event.code in DAMAGED:
            self._fail("sent data that cannot be read", event)
        if event.code == FATAL:
            self._fail("made the client give up", event)
        return []

    def _at_end(self, split: KafkaSplit, end: int) -> list[FetchedBatch[KafkaSplit]]:
        """Pass over what there is up to the partition's end: markers, aborted and compacted-away records."""
        if split.stop is not None and end >= split.stop:
            return [self._finish(split)]
        if end <= split.position:
            return []
        self._splits[split.split_id] = split = msgspec.structs.replace(split, position=end)
        # A range ends later; without an end this position is what a checkpoint holds, and lag is measured from.
        return [FetchedBatch(split=split)] if split.stop is None else []

    def _fail(self, what: str, event: ClientEvent) -> NoReturn:
        split = self._split_of(event.source)
        facts = {"split": split.split_id, "position": split.position} if split is not None else {}
        raise SourceError(
            f"The Kafka brokers at {self._client.address} {what}: {self._client.redact(event.text)}",
            source="kafka",
            address=self._client.address,
            **facts,
        )

    def _split_of(self, source: TopicPartition | None) -> KafkaSplit | None:
        split_id = None if source is None else self._reading.get(source)
        return None if split_id is None else self._splits.get(split_id)

    def _on_silence(self) -> list[FetchedBatch[KafkaSplit]]:
        """Find out why nothing comes."""
        bounded = [source for source in self._reading if self._stop_of(source) is not None]
        if bounded:
            fetched = self._look_again(bounded)
            if fetched or self._changed:
                return fetched
            self._unavailable(bounded[0], "The brokers answer, but send no records; is a transaction left open?")
        if self._down_since is not None and self._reading:
            source = next(iter(self._reading))
            try:
                self._consumer.partitions(min(_ASK_MS, self._poll_timeout_ms))
            except ConnectionError as error:
                self._unavailable(source, f"They do not answer: {error}.")
            self._down_since = None
        self._waited_ms = 0.0
        return []

    def _stop_of(self, source: TopicPartition) -> int | None:
        split = self._split_of(source)
        return None if split is None else split.stop

    def _unavailable(self, source: TopicPartition, why: str) -> NoReturn:
        split = self._split_of(source)
        assert split is not None
        raise SourceUnavailableError(
            f"The Kafka brokers at {self._client.address} sent nothing of {source} from offset {split.position} on for "
            f"{self._poll_timeout_ms} ms (kafkaConsumer.pollTimeoutMs). {why} The client's last error: "
            f"{self._last_error}.",
            source="kafka",
            address=self._client.address,
            split=split.split_id,
            position=split.position,
        )

    def _look_again(self, sources: Sequence[TopicPartition]) -> list[FetchedBatch[KafkaSplit]]:
        """Ask which offsets there are, and go on within them if that is allowed."""
        fetched = []
        try:
            there = self._consumer.partitions(min(_ASK_MS, self._poll_timeout_ms))
            for source in sources:
                if self._split_of(source) is None:
                    continue
                available = None
                if source.partition < there.get(source.topic, 0):
                    available = self._consumer.watermarks(source, min(_ASK_MS, self._poll_timeout_ms))
                if available is None or not self._is_made_again(source):
                    fetched += self._go_on(source, available)
        except ConnectionError as error:
            if self._waited_ms >= self._poll_timeout_ms:
                self._unavailable(sources[0], f"They do not answer: {error}.")
            for source in sources:
                self._reassign(source)
        return fetched

    def _is_made_again(self, source: TopicPartition) -> bool:
        """Ask whether the topic is another one than the split's, after what else was asked, and go on with it if so."""
        split = self._split_of(source)
        if split is None or split.topic_id is None or self._lease is None:
            return False
        answer = self._lease.ask_for_topic_ids({source.topic})
        if not wait([answer], min(_ASK_MS, self._poll_timeout_ms) / 1000).done:
            raise ConnectionError("the topic's id did not arrive in time")
        if isinstance(answer.exception(), SourceUnavailableError):
            raise ConnectionError(str(answer.exception()))
        topic_id = None if answer.exception() is not None else answer.result().get(source.topic)
        if topic_id is None or topic_id == split.topic_id:
            return False
        self._on_made_again(split, topic_id)
        return True

    def _go_on(self, source: TopicPartition, available: tuple[int, int] | None) -> list[FetchedBatch[KafkaSplit]]:
        """Read on where records are, given the first and the next offset there are (None: no such partition)."""
        split = self._split_of(source)
        assert split is not None
        silent = self._waited_ms >= self._poll_timeout_ms
        if available is None:
            lost = "The topic or the partition does not exist any more"
            position = split.stop
        else:
            low, high = available
            lost = f"Available are {low} to {high} (not included)"
            # Records that are there and do not come are not lost, nor, with read_committed, what is beyond `high`:
            # there the first open transaction begins.
            short = silent and split.position == high and split.stop is not None and not self._client.reads_committed
            if low <= split.position <= high and not short:
                if not silent:
                    self._reassign(source)
                return []
            position = low if split.position < low else high
            if split.stop is not None and (position >= split.stop or position == high):
                position = split.stop
        wanted = f"offsets {split.position} to {'the end' if split.stop is None else split.stop}"
        message = f"Records of Kafka's partition {source} are gone: wanted are {wanted}. {lost}."
        if self._fail_on_data_loss:
            raise DataLossError(
                f"{message} They were deleted by retention, or the topic was deleted or made again. To go on with what "
                "is there, set the option failOnDataLoss to false.",
                source="kafka", split=split.split_id, topic=source.topic, partition=source.partition,
                wanted=(split.position, split.stop), available=available,
            )  # fmt: skip
        if position is None or position == split.stop:
            _log.warning("%s failOnDataLoss is false: nothing more of it is read.", message)
            return [self._finish(split)]
        _log.warning("%s failOnDataLoss is false: reading goes on at %d.", message, position)
        self._splits[split.split_id] = msgspec.structs.replace(split, position=position)
        self._reassign(source)
        return []
