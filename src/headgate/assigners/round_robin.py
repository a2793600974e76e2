"""Spreads all splits: no subtask has two more than another, whatever groups they are of (FLINK-31762).

Never: look at groups, but for the order of what is assigned together.

Follows FLIP-537, "Kafka connector, Behaviour Changes".
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from headgate.assigners.assigner import natural_order


class RoundRobinAssigner:
    """Gives a split to the subtask with the fewest splits, the lowest number first."""

    def assign(
        self, new: Iterable[tuple[str, str]], owners: Mapping[str, tuple[str, int]], parallelism: int
    ) -> dict[str, int]:
        """Return the subtask of each new split; see `SplitAssigner`."""
        counts = [0] * parallelism
        for _, subtask in owners.values():
            counts[subtask] += 1
        lightest = [(count, subtask) for subtask, count in enumerate(counts)]
        heapq.heapify(lightest)
        assigned: dict[str, int] = {}
        for _, split_id in sorted(new, key=natural_order):
            count, subtask = lightest[0]
            heapq.heapreplace(lightest, (count + 1, subtask))
            assigned[split_id] = subtask
        return assigned
