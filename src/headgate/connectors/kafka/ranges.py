"""Fixes what a micro-batch reads of each partition, and computes a query's lag.

Never: ask a broker. What there is, is an argument (`Available`), so that the same facts give the same plan; a plan that
was made is never made again (it is in an offset).

Follows Spark's ``KafkaMicroBatchStream`` for ``maxOffsetsPerTrigger``, ``failOnDataLoss`` and the names of metrics.
Other than Spark's, a plan never has more rows than allowed; where that is less than one for each partition, they take
turns.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from headgate.connectors.kafka.split import KafkaSplit
from headgate.enumerators.partition import TopicPartition
from headgate.errors import DataLossError
from headgate.source.source import PlannedRange

logger = logging.getLogger(__name__)


class Available(msgspec.Struct, frozen=True, kw_only=True):
    """What the brokers had when they were asked.

    Parameters
    ----------
    latest
        The offset after the last record of each partition that may be read; one that is absent does not exist.
    earliest
        The offset of the first record, where it was asked for. One above a split's position is a loss of data.
    ends
        The offset after the last record, open transactions or not, where it was asked for; elsewhere ``latest``. One
        below a split's position is a loss of data; below ``latest`` alone it waits for a transaction to end.
    topic_ids
        Kafka's own id by topic, where it is known.
    """

    latest: Mapping[TopicPartition, int]
    earliest: Mapping[TopicPartition, int] = msgspec.field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = msgspec.field(default_factory=dict)
    topic_ids: Mapping[str, str | None] = msgspec.field(default_factory=dict)

    def end(self, partition: TopicPartition) -> int | None:
        """Return the offset after the last record; None: there is no such partition."""
        return self.ends.get(partition, self.latest.get(partition))


def plan_ranges(
    splits: Sequence[KafkaSplit], available: Available, max_rows: int | None, *, fail_on_data_loss: bool,
    before: Mapping[TopicPartition, int] | None = None,
) -> list[PlannedRange[KafkaSplit]]:  # fmt: skip
    """Return the ranges that the next micro-batch reads.

    Parameters
    ----------
    splits
        The splits in progress.
    available
        What the brokers have now. ``earliest`` is needed where data was lost and ``fail_on_data_loss`` is false;
        without it such a split goes on at the latest offset.
    max_rows
        How many offsets the ranges have at most, together; None: all there are. Each partition gets a share in
        proportion to what waits in it, and at least one row; if there are more partitions than rows, they take turns.
    fail_on_data_loss
        Whether lost data is an error. If not, each loss is logged: a split whose partition was deleted, or whose range
        up to its stop is gone, is finished by an empty range; another goes on at the earliest record there is.
    before
        The offset that no range of a partition reaches, where there is one, so that what is read stays aligned in event
        time. One at or below a split's position leaves it without a range.

    Returns
    -------
    At most one range per split, in their order; none for a split that has nothing new.

    Raises
    ------
    DataLossError
        A partition was deleted, recreated or truncated, or records after a split's position were deleted.
    """
    present, moved = _found(splits, available, fail_on_data_loss=fail_on_data_loss)
    waiting = {split.split_id: _waiting(split, available, before or {}) for split in present}
    shares = _shares(present, waiting, max_rows)
    ranges: list[PlannedRange[KafkaSplit]] = []
    for split in present:
        end = split.position + shares[split.split_id]
        is_finished = split.stop is not None and end >= split.stop
        if end == split.position and not is_finished and split.split_id not in moved:
            continue
        ranges.append(
            PlannedRange(
                split=msgspec.structs.replace(split, stop=end),
                rest=None if is_finished else msgspec.structs.replace(split, position=end),
            )
        )
    return ranges


def readable(splits: Sequence[KafkaSplit], available: Available) -> list[KafkaSplit]:
    """Return the splits that have something to read now, each at its next position: after what was lost of it."""
    going_on = [split if _loss(split, available) is None else _after_loss(split, available) for split in splits]
    return [split for split in going_on if _waiting(split, available, {})]


def lag(splits: Sequence[KafkaSplit], latest: Mapping[TopicPartition, int]) -> dict[str, int]:
    """Return how many offsets lie between the splits and the latest ones.

    Parameters
    ----------
    splits
        The splits in progress.
    latest
        The latest offsets; splits of partitions that are absent do not count.

    Returns
    -------
    ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest`` over partitions, as Spark's
    Kafka source reports them, and their sum ``rowsBehind``, as other sources of Headgate do. Without splits: nothing.
    """
    lags = [
        max(0, latest[split.topic_partition] - split.position) for split in splits if split.topic_partition in latest
    ]
    if not lags:
        return {}
    return {
        "minOffsetsBehindLatest": min(lags),
        "maxOffsetsBehindLatest": max(lags),
        "avgOffsetsBehindLatest": sum(lags) // len(lags),
        "rowsBehind": sum(lags),
    }


# -- lost data -------------------------------------------------------------------------------------------------------


def _found(
    splits: Sequence[KafkaSplit], available: Available, *, fail_on_data_loss: bool
) -> tuple[list[KafkaSplit], set[str]]:
    """Return the splits where they go on, and the ids of those that lost data."""
    moved: set[str] = set()
    present: list[KafkaSplit] = []
    for split in splits:
        wants_nothing = split.stop is not None and split.position >= split.stop  # so nothing of it can be lost
        loss = None if wants_nothing else _loss(split, available)
        if loss is None:
            present.append(split)
            continue
        if fail_on_data_loss:
            raise loss
        logger.warning("%s", loss)
        moved.add(split.split_id)
        present.append(_after_loss(split, available))
    return present, moved


def _loss(split: KafkaSplit, available: Available) -> DataLossError | None:
    """Return the error for what a split wants and no longer finds, if there is any."""
    partition = split.topic_partition
    end = available.end(partition)
    earliest = available.earliest.get(partition)
    if end is None:
        return _error(split, "the partition does not exist any longer", None)
    found = (earliest, end)
    if _is_recreated(split, available):
        return _error(split, "the topic was deleted and created again", found)
    if max(split.position, split.stop or 0) > end:
        return _error(split, "the partition ends before it; it was truncated, or its topic created again", found)
    if earliest is not None and split.position < earliest:
        return _error(split, "its records were deleted before they were read", found)
    return None


def _is_recreated(split: KafkaSplit, available: Available) -> bool:
    now = available.topic_ids.get(split.topic)
    return now is not None and split.topic_id is not None and now != split.topic_id


def _error(split: KafkaSplit, what: str, found: tuple[int | None, int] | None) -> DataLossError:
    wanted = f"from {split.position}" + ("" if split.stop is None else f" to {split.stop}")
    there = "nothing" if found is None else f"{'?' if found[0] is None else found[0]} to {found[1]}"
    return DataLossError(
        f"headgate.kafka: offsets {wanted} of topic {split.topic!r}, partition {split.partition}, are gone: {what}. "
        f"Available: {there}. Set 'failOnDataLoss' to false to go on without them, or start with a new "
        "'checkpointLocation'.",
        source="headgate.kafka",
        split=split.split_id,
        topic=split.topic,
        partition=split.partition,
        wanted=(split.position, split.stop),
        available=found,
    )


def _after_loss(split: KafkaSplit, available: Available) -> KafkaSplit:
    """Return the split where it goes on: finished if nothing of it can come any more, else at what there is."""
    partition = split.topic_partition
    end = available.end(partition)
    if end is None:
        return msgspec.structs.replace(split, stop=split.position)
    earliest = available.earliest.get(partition, end)
    is_another = _is_recreated(split, available) or split.position > end
    if is_another and split.stop is not None:
        return msgspec.structs.replace(split, stop=split.position)  # its end was that of the records that are gone
    if is_another:
        topic_id = available.topic_ids.get(split.topic, split.topic_id)
        return msgspec.structs.replace(split, position=earliest, topic_id=topic_id)
    if split.stop is None:
        return msgspec.structs.replace(split, position=max(split.position, earliest))
    stop = min(split.stop, end)
    return msgspec.structs.replace(split, position=min(max(split.position, earliest), stop), stop=stop)


# -- shares ----------------------------------------------------------------------------------------------------------


def _waiting(split: KafkaSplit, available: Available, before: Mapping[TopicPartition, int]) -> int:
    """Return how many offsets of a split can be read now."""
    partition = split.topic_partition
    end = available.latest.get(partition, split.position)
    end = min(end, before.get(partition, end))
    return max(0, (end if split.stop is None else min(split.stop, end)) - split.position)


def _shares(splits: Sequence[KafkaSplit], waiting: Mapping[str, int], max_rows: int | None) -> dict[str, int]:
    """Return how many offsets each split may read, by id: together at most ``max_rows``."""
    total = sum(waiting.values())
    if max_rows is None or total <= max_rows:
        return dict(waiting)
    shares = dict.fromkeys(waiting, 0)
    hungry = [split for split in splits if waiting[split.split_id]]
    if len(hungry) > max_rows:
        # The sum of positions grows by just as many rows as were read, so the next plan begins after this one.
        turn = sum(split.position for split in hungry) % len(hungry)
        for split in (hungry[turn:] + hungry[:turn])[:max_rows]:
            shares[split.split_id] = 1
        return shares
    for split in hungry:
        size = waiting[split.split_id]
        shares[split.split_id] = 1 + (size - 1) * (max_rows - len(hungry)) // (total - len(hungry))
    left_over = max_rows - sum(shares.values())
    for split in [each for each in hungry if shares[each.split_id] < waiting[each.split_id]][:left_over]:
        shares[split.split_id] += 1  # what rounding left over
    return shares
