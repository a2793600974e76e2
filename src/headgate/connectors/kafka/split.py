"""A partition of a topic, or a range of one, with the position in it; the enumerator's state; how both are written.

Never: ask a broker. A start position is resolved before a split is made, once, and then lives in it (FLINK-38453).

Follows FLIP-27, "Reader Interface and Threading Model"; FLIP-537, "Kafka connector", for the state.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.enumerators.partition import PartitionSplit, PartitionsState
from headgate.source.serialization import VersionedSerializer
from headgate.source.split import Remaining


class KafkaSplit(PartitionSplit, frozen=True, kw_only=True, omit_defaults=True):
    """A partition from ``position`` on, or up to a stop.

    The id of a whole partition is ``topic-partition``; pieces of one (a batch read cut by ``minPartitions``) have
    ``topic-partition@start`` instead.

    Parameters
    ----------
    topic, partition
        What is read.
    position
        The offset at which reading continues: that of the next record, or one below it where records are missing.
    stop
        The first offset that is not read; None: read for ever.
    topic_id
        Kafka's own id of the topic, which distinguishes a topic that was deleted and created again from its
        predecessor; None: the broker reports none.
    """

    position: int
    stop: int | None = None
    topic_id: str | None = None

    def remaining(self) -> Remaining:
        """Return the offsets left: at least as many as there are records."""
        return Remaining(rows=None if self.stop is None else max(0, self.stop - self.position))


class KafkaState(PartitionsState[KafkaSplit], frozen=True, kw_only=True):
    """What the enumerator must know to go on."""


def _readers_not_known(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state of version 1 as one of version 2: it had only the numbers of assigned partitions."""
    assigned = state.get("assigned", {})
    return state | {"assigned": {topic: [[number, None] for number in numbers] for topic, numbers in assigned.items()}}


SPLIT_SERIALIZER: VersionedSerializer[KafkaSplit] = VersionedSerializer(
    KafkaSplit, version=1, what="a split of headgate.kafka"
)
"""Version 1 since 0.2.0."""
STATE_SERIALIZER: VersionedSerializer[KafkaState] = VersionedSerializer(
    KafkaState, version=2, what="the enumerator state of headgate.kafka", upgrades={1: _readers_not_known}
)
"""Version 1 since 0.2.0; version 2, which knows who has the assigned partitions, since 0.3.0."""


def after_rows(
    split: KafkaSplit, offsets: npt.NDArray[np.int64], kept: pa.BooleanArray | None, rows: int
) -> KafkaSplit:
    """Return the split after its first ``rows`` rows, which is at the record of the next row.

    What lies between two rows (gaps, records that have no row) needs not be read again.
    """
    record = rows if kept is None else int(np.flatnonzero(kept.to_numpy(zero_copy_only=False))[rows])
    return msgspec.structs.replace(split, position=int(offsets[record]))
