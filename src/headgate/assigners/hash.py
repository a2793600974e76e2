"""Spreads each group separately: of one topic no subtask has two splits more than another.

Never: use Python's ``hash``, which differs from process to process.

Follows FLIP-537, "Kafka connector, Behaviour Changes"; unlike Flink's, a split goes to the subtask with the fewest of
its group, so that partitions added after a rescale do not pile up (its Case 2).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping

from headgate.assigners.assigner import natural_order


class HashAssigner:
    """Gives a split to the subtask with the fewest splits of its group; a hash of the group says where it begins.

    Groups begin at different subtasks, so that many small ones do not all burden the first. Over all groups together
    counts may differ.
    """

    def assign(
        self, new: Iterable[tuple[str, str]], owners: Mapping[str, tuple[str, int]], parallelism: int
    ) -> dict[str, int]:
        """Return the subtask of each new split; see `SplitAssigner`."""
        counts: dict[str, list[int]] = {}
        for group, subtask in owners.values():
            counts.setdefault(group, [0] * parallelism)[subtask] += 1
        assigned: dict[str, int] = {}
        for group, split_id in sorted(new, key=natural_order):
            of_group = counts.setdefault(group, [0] * parallelism)
            start = zlib.crc32(group.encode()) % parallelism
            rotation = ((start + step) % parallelism for step in range(parallelism))
            subtask = min(rotation, key=of_group.__getitem__)
            of_group[subtask] += 1
            assigned[split_id] = subtask
        return assigned
