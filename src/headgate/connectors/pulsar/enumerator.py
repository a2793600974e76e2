"""The enumerator of `headgate.pulsar`: all it does is `TopicEnumerator`'s."""

from __future__ import annotations

from headgate.connectors.pulsar.split import PulsarSplit, PulsarState, topic_name
from headgate.enumerators.partition import TopicPartition
from headgate.enumerators.topics import TopicEnumerator


class PulsarEnumerator(TopicEnumerator[PulsarSplit, PulsarState]):
    """Discovers the partitions of Pulsar's topics and assigns them."""

    source = "headgate.pulsar"
    state_type = PulsarState

    @classmethod
    def split_id(cls, partition: TopicPartition) -> str:
        """Return the topic under which Pulsar stores the partition."""
        return topic_name(partition)
