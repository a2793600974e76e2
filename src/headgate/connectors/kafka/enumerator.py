"""The enumerator of `headgate.kafka`: all it does is `TopicEnumerator`'s."""

from __future__ import annotations

from headgate.connectors.kafka.split import KafkaSplit, KafkaState
from headgate.enumerators.topics import TopicEnumerator


class KafkaEnumerator(TopicEnumerator[KafkaSplit, KafkaState]):
    """Discovers the partitions of Kafka's topics and assigns them."""

    source = "headgate.kafka"
    state_type = KafkaState
