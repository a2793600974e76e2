"""Finds out of what event time the next records of partitions are, and where records are too late to be read now.

Never: run in a task, or read more than it has to: of each partition the first record at its position, once. Only where
that does not show where to stop (disorder; event time that is a field of the value), some more. Nor fail because of a
value: what is wrong with it the task says that reads it.

The broker's index (`KafkaCluster.at_timestamps`) knows the first record of a time or later in the whole partition. That
is where a range ends, unless it lies before the position: then some record that was read was as late, earlier ones may
follow, and only looking at them shows where the next one as late is. The index does not know fields of values:
there it is never asked, and always looked at.

    next record          first one too late, by the index   the range ends
    -------------------  ---------------------------------  ----------------------------------------------------
    none                                                    after what no reader can see (markers, aborted), and
                                                            some records without event time
    too late                                                where it begins: there is none
    early enough         none                               where the partition does
    early enough         after the next record              there
    early enough         at the next record, or before it   before the first record too late that is found, or
                                                            after so many that were looked at

Follows FLIP-217 for what is aligned.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.connectors.kafka.cluster import as_source_error
from headgate.connectors.kafka.columns import KafkaColumns
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
)
from headgate.connectors.kafka.consumer_pool import acquire
from headgate.connectors.kafka.reading_settings import reading_settings
from headgate.connectors.kafka.records import Records, Wanted
from headgate.connectors.kafka.split import KafkaSplit
from headgate.enumerators.partition import TopicPartition
from headgate.errors import SourceUnavailableError
from headgate.formats.shared_options import PERMISSIVE
from headgate.source.event_time import LATEST_MS

if TYPE_CHECKING:
    from headgate.connectors.kafka.client_config import ClientConfig

_BUFFERED_BYTES = 1 << 20
_FETCH_BYTES = 64 << 10
"""Asked for of a partition at a time: brokers send one batch of records at least, which often is more."""
_MOST_MESSAGES = 10_000
_WAIT_MS = 100
_FIRST_PARSED = 64
"""So many records are parsed at first, then more and more: the one that is looked for mostly is among the first."""
_WITHOUT_TIME = 1000
"""So many records of a partition are passed over, at most, to find its next one with an event time."""
_NO_TIME = np.iinfo(np.int64).min


class EventTimes(Protocol):
    """Says of what event time records are."""

    wanted: Wanted
    """What it needs of them."""
    most_without: int
    """How many records may be passed over to find one that has an event time."""

    def of(self, records: Records) -> npt.NDArray[np.int64]:
        """Return a number for each record, in milliseconds; `_NO_TIME`, before all others, where there is none."""
        ...


class TimeStamps:
    """The records' own time stamps."""

    wanted = Wanted(keys=False, values=False)
    most_without = 1

    def of(self, records: Records) -> npt.NDArray[np.int64]:
        """Return the time stamps, but for those that are not in milliseconds: the task refuses these."""
        assert records.timestamps_ms is not None
        return np.where(records.timestamps_ms <= LATEST_MS, records.timestamps_ms, _NO_TIME)


class FieldOfValues:
    """A field of values that are JSON.

    Parameters
    ----------
    field
        The column, a timestamp.
    options
        Parsed options of headgate.kafka. Times without a zone are of ``timeZone``, or UTC: planners know no session.
    """

    most_without = _WITHOUT_TIME

    def __init__(self, field: pa.Field, options: Mapping[str, Any]) -> None:
        self._columns = KafkaColumns(pa.schema([field]), {**options, "mode": PERMISSIVE}, None)
        self.wanted = self._columns.wanted

    def of(self, records: Records) -> npt.NDArray[np.int64]:
        """Parse the values, as the tasks do that read them."""
        batch, _ = self._columns.rows(records)
        assert batch is not None, "of no records, which nobody asks"
        # Spark's timestamps are in microseconds.
        micros = batch.column(0).cast(pa.int64()).fill_null(_NO_TIME).to_numpy(zero_copy_only=False)
        return np.where(micros == _NO_TIME, _NO_TIME, micros // 1000)


class NextRecord(msgspec.Struct, frozen=True):
    """What was found of a partition.

    Parameters
    ----------
    offset
        The offset of the record; if there is none, all below it was looked at.
    time_ms
        Its time stamp, in milliseconds since 1970-01-01 UTC; None: there is no such record.
    """

    offset: int
    time_ms: int | None

    def is_before(self, time_ms: int) -> bool:
        """Whether there is a record, and it is of an earlier time."""
        return self.time_ms is not None and self.time_ms < time_ms


def range_ends(
    found: Mapping[TopicPartition, NextRecord], by_index: Mapping[TopicPartition, int | None], before_ms: int
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return where ranges end, as the module's table says.

    Parameters
    ----------
    found
        The next record of each partition.
    by_index
        The first record of ``before_ms`` or later, as far as the brokers were asked; None: there is none.
    before_ms
        The event time that ranges do not reach, in milliseconds.

    Returns
    -------
    before
        The offset before which a range ends, where there is one.
    unknown
        Partitions that have to be looked at for it, from these offsets on.
    """
    before: dict[TopicPartition, int] = {}
    unknown: dict[TopicPartition, int] = {}
    for partition, record in found.items():
        first = by_index.get(partition, 0)
        if record.time_ms is None:
            before[partition] = record.offset
        elif not record.is_before(before_ms):
            before[partition] = 0
        elif first is None:
            continue
        elif first > record.offset:
            before[partition] = first
        else:
            unknown[partition] = record.offset
    return before, unknown


class _Known(msgspec.Struct, frozen=True):
    """What was found of a partition: from a position on, and where the plan before the next one ended."""

    topic_id: str | None
    position: int
    record: NextRecord
    too_late: NextRecord | None = None

    def at(self, split: KafkaSplit) -> NextRecord | None:
        """Return the next record where a split is, if it is known."""
        if self.topic_id != split.topic_id:
            return None
        if self.position == split.position:
            return self.record
        if self.too_late is not None and self.too_late.offset == split.position and self.too_late.time_ms is not None:
            return self.too_late
        return None


class _PartitionMoved(Exception):
    """A partition is not any more what it was when its offsets were asked for."""


class RecordTimes:
    """Looks at records. Blocks. The consumer is one of the process's cache, and goes back there after each look.

    Parameters
    ----------
    client
        How to connect, and how long to wait.
    event_times
        Of what event time records are.
    """

    def __init__(self, client: ClientConfig, event_times: EventTimes) -> None:
        self._client = client
        self._event_times = event_times
        self._known: dict[TopicPartition, _Known] = {}

    def next_records(
        self, splits: Sequence[KafkaSplit], latest: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, NextRecord] | None:
        """Return the first record with an event time that readers see of each split, at its position or later.

        Parameters
        ----------
        splits
            Splits that have something to read, one of a partition.
        latest
            Where the partitions end now. Nothing after it counts.

        Returns
        -------
        None: a partition has changed since its end was asked for; ask again.

        Raises
        ------
        SourceUnavailableError
            The brokers do not send records within ``kafka.default.api.timeout.ms``.
        SourceError
            They refuse this client.
        """
        found: dict[TopicPartition, NextRecord] = {}
        begins: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, int] = {}
        for split in splits:
            partition = split.topic_partition
            end = latest[partition] if split.stop is None else min(latest[partition], split.stop)
            ends[partition] = end
            known = self._known.get(partition)
            record = None if known is None else known.at(split)
            if record is not None and record.offset >= end:
                found[partition] = NextRecord(end, None)  # either there is none, or it is after the stop
            elif record is not None and record.time_ms is not None:
                found[partition] = record
            else:
                begins[partition] = split.position
        try:
            looked_at = self._look(begins, ends, _NO_TIME + 1, self._event_times.most_without)
        except _PartitionMoved:
            return None
        self._known.update(
            (split.topic_partition, _Known(split.topic_id, split.position, looked_at[split.topic_partition]))
            for split in splits
            if split.topic_partition in looked_at
        )
        return found | looked_at

    def first_too_late(
        self, begins: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], before_ms: int, most: int
    ) -> dict[TopicPartition, int] | None:
        """Return how far each partition can be read without a record of ``before_ms`` or later.

        Parameters
        ----------
        begins
            From where on.
        latest
            Where the partitions end.
        before_ms
            The event time that is too late, in milliseconds.
        most
            About so many records of each partition are looked at, at most.

        Returns
        -------
        The offset of the first such record, or else one after the records that were looked at. None, and raises: as
        `next_records`.
        """
        try:
            looked_at = self._look(begins, latest, before_ms, most)
        except _PartitionMoved:
            return None
        for partition, record in looked_at.items():
            if partition in self._known:
                # It is the next record of a plan that goes on there.
                self._known[partition] = msgspec.structs.replace(self._known[partition], too_late=record)
        return {partition: record.offset for partition, record in looked_at.items()}

    def _look(
        self, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], from_ms: int, most: int
    ) -> dict[TopicPartition, NextRecord]:
        """Return of each partition the first record of ``from_ms`` or later, of ``most`` from where it begins."""
        if not begins:
            return {}
        # The user's settings for connecting and for the broker's side stay, but not those for reading much.
        settings = reading_settings(self._client.consumer(), _BUFFERED_BYTES, bounded=True)
        settings |= {"max.partition.fetch.bytes": _FETCH_BYTES, "fetch.min.bytes": 1}
        settings.pop("fetch.max.bytes", None)
        lease = acquire(self._client, settings, "auto")
        walk = _Walk(self._event_times, begins, ends, from_ms, most)
        deadline_s = time.monotonic() + self._client.timeout_ms / 1000
        last_error, is_done = "none", False
        try:
            lease.consumer.assign(begins)
            while walk.left:
                consumed = lease.consumer.consume(self._event_times.wanted, _MOST_MESSAGES, _WAIT_MS)
                lease.consumer.unassign(walk.note(consumed))
                for event in consumed.events:
                    last_error = self._on_event(event) or last_error
                if walk.left and time.monotonic() >= deadline_s:
                    raise self._unavailable(walk.left, last_error)
            is_done = True
        finally:
            lease.release(assigned=walk.left, failed=not is_done)
        return walk.found

    def _on_event(self, event: ClientEvent) -> str | None:
        """Return what the client reported, if waiting may help."""
        if event.code in (PARTITION_EOF, ALL_BROKERS_DOWN):
            return None
        if event.code in OUT_OF_RANGE or event.code in GONE:
            raise _PartitionMoved(event.text)
        is_untrusted = event.code == SSL and "verif" in event.text
        if event.code in REFUSED | DAMAGED or event.code in (TOPIC_REFUSED, FATAL) or is_untrusted:
            from confluent_kafka import KafkaError

            about = "records" if event.source is None else str(event.source)
            raise as_source_error(self._client, KafkaError(event.code, event.text), f"read {about}")
        return self._client.redact(event.text)

    def _unavailable(self, left: Mapping[TopicPartition, int], last_error: str) -> SourceUnavailableError:
        partition, offset = next(iter(left.items()))
        return SourceUnavailableError(
            f"headgate.kafka: {self._client.address} sent nothing of {partition} from offset {offset} on within "
            f"{self._client.timeout_ms} ms (kafka.default.api.timeout.ms): the event time of its next record is not "
            f"known. The client's last error: {last_error}.",
            source="headgate.kafka", address=self._client.address, split=str(partition), position=offset,
        )  # fmt: skip


class _Walk:
    """What has been seen of some partitions, and what is still to be seen.

    ``left`` has the partitions that are not done, and where they go on; ``found`` the others.
    """

    def __init__(
        self, event_times: EventTimes, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int],
        from_ms: int, most: int,
    ) -> None:  # fmt: skip
        self._event_times = event_times
        self._ends = ends
        self._from_ms = from_ms
        self._rows_left = dict.fromkeys(begins, most)
        self.left = dict(begins)
        self.found: dict[TopicPartition, NextRecord] = {}

    def note(self, consumed: Consumed) -> list[TopicPartition]:
        """Take in what came; return the partitions that are done by it."""
        before = list(self.left)
        for records in consumed.records:
            if records.source in self.left:
                self._note_records(records)
        for event in consumed.events:
            if event.code == PARTITION_EOF and event.source in self.left and event.offset >= self._ends[event.source]:
                self._done(event.source, self._ends[event.source], None)
        return [each for each in before if each not in self.left]

    def _note_records(self, records: Records) -> None:
        source, end = records.source, self._ends[records.source]
        begin, stop = (int(each) for each in np.searchsorted(records.offsets, (self.left[source], end)))
        first, time_ms = self._first_late(records, begin, stop)
        if time_ms is not None:
            self._done(source, int(records.offsets[first]), time_ms)
        elif stop < len(records.offsets):
            self._done(source, end, None)
        elif stop > begin:
            self.left[source] = position = int(records.offsets[stop - 1]) + 1
            self._rows_left[source] -= stop - begin
            if position >= end or self._rows_left[source] <= 0:
                self._done(source, position, None)

    def _first_late(self, records: Records, begin: int, stop: int) -> tuple[int, int | None]:
        """Return which record is the first one as late, and its time; None: there is none."""
        size = _FIRST_PARSED
        while begin < stop:
            times_ms = self._event_times.of(records.slice(begin, min(begin + size, stop)))
            late = np.flatnonzero(times_ms >= self._from_ms)
            if len(late):
                return begin + int(late[0]), int(times_ms[late[0]])
            begin, size = begin + size, 4 * size
        return stop, None

    def _done(self, source: TopicPartition, offset: int, time_ms: int | None) -> None:
        del self.left[source]
        self.found[source] = NextRecord(offset, time_ms)
