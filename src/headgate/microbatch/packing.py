"""Which splits share a Spark task: as many tasks as keep the cores busy, of about equal size.

Never: depend on anything but its arguments, so that a replayed batch is cut the same way.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TypeVar

from headgate.source import Split

SplitT = TypeVar("SplitT", bound=Split)

TASK_BYTES = 128 << 20
"""What one task reads at most, unless a single split is larger. Spark's ``spark.sql.files.maxPartitionBytes``."""
OPEN_COST_BYTES = 4 << 20
"""What opening a split costs, in bytes that could be read meanwhile. Spark's ``spark.sql.files.openCostInBytes``."""


def pack(splits: Sequence[SplitT], parallelism: int) -> list[list[SplitT]]:
    """Return the splits in groups, one per task.

    Parameters
    ----------
    splits
        The splits; each keeps its place after the earlier ones of its group.
    parallelism
        How many tasks there are at least, if there are as many splits.

    Notes
    -----
    Largest first into the lightest task, which keeps the heaviest within 4/3 of the best possible. A split of unknown
    size weighs as much as the average of the known ones.
    """
    if not splits:
        return []
    sizes = [split.remaining().bytes for split in splits]
    known = [size for size in sizes if size is not None]
    average = sum(known) // len(known) if known else 0
    weights = [OPEN_COST_BYTES + (average if size is None else size) for size in sizes]
    wanted = max(1, -(-sum(weights) // (TASK_BYTES + OPEN_COST_BYTES)))
    wanted = -(-wanted // parallelism) * parallelism  # full rounds: no core waits while another reads one task more
    tasks = [(0, number) for number in range(min(len(splits), wanted))]
    groups: list[list[int]] = [[] for _ in tasks]
    for index in sorted(range(len(splits)), key=lambda each: (-weights[each], each)):
        weight, number = heapq.heappop(tasks)
        groups[number].append(index)
        heapq.heappush(tasks, (weight + weights[index], number))
    return [[splits[index] for index in sorted(group)] for group in groups]
