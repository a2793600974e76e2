"""A partition of a topic, or a range of one, with the position in it; the enumerator's state; how both are written.

Never: ask a broker. A start position is resolved before a split is made, once, and then lives in it.

Follows FLIP-27, "Reader Interface and Threading Model"; FLIP-537 for the state.
"""

from __future__ import annotations

from headgate.connectors.pulsar.position import Position
from headgate.enumerators.partition import PartitionSplit, PartitionsState, TopicPartition
from headgate.source.serialization import VersionedSerializer
from headgate.source.split import Remaining

NOT_PARTITIONED = -1
"""The number of the partition of a topic that has none."""


def topic_name(partition: TopicPartition) -> str:
    """Return the topic under which Pulsar stores a partition; it is also the id of its split."""
    if partition.partition == NOT_PARTITIONED:
        return partition.topic
    return f"{partition.topic}-partition-{partition.partition}"


class PulsarSplit(PartitionSplit, frozen=True, kw_only=True, omit_defaults=True):
    """A partition from ``position`` on, or up to a stop.

    Parameters
    ----------
    topic, partition
        What is read: the full name, and the partition's number, or `NOT_PARTITIONED`.
    position
        After which message reading continues; None: with the first one that there is.
    stop
        After which message it ends; None: read for ever.
    backlog_bytes
        About how many bytes there are up to the stop; None: there is no stop.
    """

    position: Position | None = None
    stop: Position | None = None
    backlog_bytes: int | None = None

    @property
    def name(self) -> str:
        """The topic under which Pulsar stores the partition."""
        return topic_name(self.topic_partition)

    def remaining(self) -> Remaining:
        """Return about how many bytes are left."""
        return Remaining(bytes=self.backlog_bytes)


class PulsarState(PartitionsState[PulsarSplit], frozen=True, kw_only=True):
    """What the enumerator must know to go on."""


SPLIT_SERIALIZER: VersionedSerializer[PulsarSplit] = VersionedSerializer(
    PulsarSplit, version=1, what="a split of headgate.pulsar"
)
STATE_SERIALIZER: VersionedSerializer[PulsarState] = VersionedSerializer(
    PulsarState, version=1, what="the enumerator state of headgate.pulsar"
)
