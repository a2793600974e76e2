"""Which ranges share a Spark task, and how large ones are cut.

Never: depend on anything but its arguments, so that a replayed batch is cut the same way; or change what is read: the
pieces of a range cover it without gap or overlap.

Follows Spark's ``KafkaOffsetRangeCalculator`` for ``minPartitions`` and ``maxRecordsPerPartition``; FLIP-537,
``scan.split-assigner``, for which ranges go together.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

import msgspec

from headgate.assigners import SplitAssigner
from headgate.connectors.kafka.split import KafkaSplit


def group(
    splits: Sequence[KafkaSplit],
    *,
    min_partitions: int | None,
    max_records_per_partition: int | None,
    parallelism: int | None,
    assigner: SplitAssigner,
) -> list[list[KafkaSplit]]:
    """Return the ranges by task.

    Parameters
    ----------
    splits
        Ranges: splits with a stop. Empty ones need no task and are left out.
    min_partitions
        How many pieces there are at least, if there are as many offsets; the largest ranges are cut. None: no minimum.
    max_records_per_partition
        How many offsets a piece has at most; None: any number.
    parallelism
        How many tasks there are at most; None: one for each piece.
    assigner
        Decides which pieces go together, by topic, if ``parallelism`` is given.

    Returns
    -------
    The pieces of each task, those of a partition in the order of their offsets. No task is empty. A range that is cut
    has pieces with ids of their own, ``topic-partition@start``.
    """
    ranges = [split for split in splits if _size(split) > 0]
    counts = _counts(ranges, min_partitions, max_records_per_partition)
    pieces = [piece for split, count in zip(ranges, counts) for piece in _cut(split, count)]
    if parallelism is None:
        return [[piece] for piece in pieces]
    owners = assigner.assign([(piece.topic, piece.split_id) for piece in pieces], {}, parallelism)
    tasks: list[list[KafkaSplit]] = [[] for _ in range(parallelism)]
    for piece in pieces:
        tasks[owners[piece.split_id]].append(piece)
    return [task for task in tasks if task]


def _size(split: KafkaSplit) -> int:
    assert split.stop is not None, f"a task can only read a range, {split!r} has no stop"
    return split.stop - split.position


def _counts(
    ranges: Sequence[KafkaSplit], min_partitions: int | None, max_records_per_partition: int | None
) -> list[int]:
    """Return into how many pieces each range is cut.

    The range with the largest pieces is cut once more until there are enough: in proportion to sizes, and small ranges
    stay whole. Spark rounds instead and may end with fewer or more pieces.
    """
    sizes = [_size(split) for split in ranges]
    counts = [1 if max_records_per_partition is None else -(-size // max_records_per_partition) for size in sizes]
    missing = min(min_partitions or 0, sum(sizes)) - sum(counts)
    largest = [(-size / count, index) for index, (size, count) in enumerate(zip(sizes, counts))]
    heapq.heapify(largest)
    for _ in range(missing):
        _, index = largest[0]
        counts[index] += 1
        heapq.heapreplace(largest, (-sizes[index] / counts[index], index))
    return counts


def _cut(split: KafkaSplit, count: int) -> list[KafkaSplit]:
    if count == 1:
        return [split]
    size = _size(split)
    bounds = [split.position + size * number // count for number in range(count + 1)]
    return [
        msgspec.structs.replace(split, split_id=f"{split.topic_partition}@{start}", position=start, stop=stop)
        for start, stop in itertools.pairwise(bounds)
    ]
