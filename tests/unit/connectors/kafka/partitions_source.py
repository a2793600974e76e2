"""A source of the partitions of a dict: Kafka's enumerator and plans, without a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headgate.assigners import ASSIGNERS
from headgate.connectors.kafka.enumerator import KafkaEnumerator
from headgate.connectors.kafka.ranges import Available, lag, plan_ranges
from headgate.connectors.kafka.split import SPLIT_SERIALIZER, STATE_SERIALIZER, KafkaSplit, KafkaState
from headgate.connectors.kafka.subscription import Subscription
from headgate.enumerators.partition import TopicPartition
from headgate.source import (
    Boundedness,
    PlanLimits,
    PlannedRange,
    Source,
    SourceReader,
    SourceReaderContext,
    SplitEnumeratorContext,
    SupportsSplitReassignmentOnRecovery,
)
from headgate.source.options import OptionSpec, boolean, integer, text
from headgate.testing import EnumeratorHarness

BOUNDED, UNBOUNDED = Boundedness.BOUNDED, Boundedness.CONTINUOUS_UNBOUNDED
Harness = EnumeratorHarness[KafkaSplit, KafkaState]


class Cluster:
    """For each topic the latest offset of each partition; records begin at 0 unless ``earliest`` says otherwise."""

    def __init__(self, **topics: list[int]) -> None:
        self.topics = topics
        self.earliest: dict[TopicPartition, int] = {}
        self.ids: dict[str, str] = {}
        self.error: Exception | None = None
        self.discoveries: list[tuple[frozenset[TopicPartition], bool]] = []

    def latest(self) -> dict[TopicPartition, int]:
        return {
            TopicPartition(topic, number): latest
            for topic, ends in self.topics.items()
            for number, latest in enumerate(ends)
        }


class PartitionsSource(Source[KafkaSplit, KafkaState], SupportsSplitReassignmentOnRecovery):
    name = "partitions"
    option_specs = (
        OptionSpec("subscribe", text, ""),
        OptionSpec("startingOffsets", text, "latest"),
        OptionSpec("discovery", integer(1), None),
        OptionSpec("scan.split-assigner", text, "hash"),
        OptionSpec("failOnDataLoss", boolean, True),
    )
    split_serializer = SPLIT_SERIALIZER
    state_serializer = STATE_SERIALIZER

    def __init__(self, cluster: Cluster, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self.cluster = cluster
        names = self.options["subscribe"]
        self.subscription = Subscription(names=frozenset(names.split(","))) if names else Subscription(pattern=".")

    def schema(self) -> pa.Schema:
        return pa.schema([("value", pa.binary())])

    def create_enumerator(self, context: SplitEnumeratorContext[KafkaSplit]) -> KafkaEnumerator:
        return self._enumerator(context, None)

    def restore_enumerator(self, context: SplitEnumeratorContext[KafkaSplit], state: KafkaState) -> KafkaEnumerator:
        return self._enumerator(context, state)

    def _enumerator(self, context: SplitEnumeratorContext[KafkaSplit], state: KafkaState | None) -> KafkaEnumerator:
        def discover(known: frozenset[TopicPartition], initial: bool) -> list[KafkaSplit]:
            cluster = self.cluster
            cluster.discoveries.append((known, initial))
            if cluster.error is not None:
                raise cluster.error
            return [
                KafkaSplit(
                    split_id=str(partition),
                    topic=partition.topic,
                    partition=partition.partition,
                    position=latest
                    if initial and self.options["startingOffsets"] == "latest"
                    else cluster.earliest.get(partition, 0),
                    stop=latest if context.boundedness is BOUNDED else None,
                    topic_id=cluster.ids.get(partition.topic),
                )
                for partition, latest in cluster.latest().items()
                if self.subscription.matches(partition) and partition not in known
            ]

        assigner = ASSIGNERS[self.options["scan.split-assigner"]]()
        return KafkaEnumerator(context, discover, self.subscription, assigner, self.options["discovery"], state)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[KafkaSplit]:
        raise AssertionError("nothing is read here")

    def plan_ranges(
        self, splits: Sequence[KafkaSplit], limits: PlanLimits, now_ms: int
    ) -> Sequence[PlannedRange[KafkaSplit]]:
        available = Available(
            latest=self.cluster.latest(), earliest=self.cluster.earliest, topic_ids=dict(self.cluster.ids)
        )
        return plan_ranges(splits, available, limits.max_rows, fail_on_data_loss=self.options["failOnDataLoss"])

    def lag(self, splits: Sequence[KafkaSplit], now_ms: int) -> Mapping[str, int]:
        return lag(splits, self.cluster.latest())


def begin(
    cluster: Cluster,
    parallelism: int = 1,
    boundedness: Boundedness = UNBOUNDED,
    state: bytes | None = None,
    **options: str,
) -> Harness:
    """Start an enumerator; no reader has registered yet, and discovery has not run."""
    names = {"assigner": "scan.split-assigner"}
    source = PartitionsSource(cluster, {names.get(name, name): value for name, value in options.items()})
    harness = EnumeratorHarness(source, boundedness=boundedness, parallelism=parallelism, state=state)
    harness.start()
    return harness


def discovered(cluster: Cluster, parallelism: int = 1, boundedness: Boundedness = UNBOUNDED, **options: str) -> Harness:
    """Start an enumerator, let all readers register, and discover once."""
    harness = begin(cluster, parallelism, boundedness, **options)
    register(harness)
    harness.run_next_call()
    return harness


def register(harness: Harness, reports: Mapping[int, Sequence[KafkaSplit]] | None = None) -> None:
    """Let all readers register, with what they report."""
    for subtask in range(harness.parallelism):
        harness.register_reader(subtask, reported_splits=(reports or {}).get(subtask, ()))


def pull(harness: Harness) -> None:
    """Let the readers of a bounded read ask in turn, until each was notified that there are no more splits."""
    while asking := sorted(harness.readers.keys() - harness.no_more_splits):
        for subtask in asking:
            harness.request_split(subtask)
            assert subtask not in harness.requests, "it was not answered"


def held(harness: Harness) -> dict[int, list[str]]:
    """Return the ids of the splits that each reader holds."""
    return {subtask: sorted(splits) for subtask, splits in harness.assigned.items() if splits}


def positions(harness: Harness) -> dict[str, int]:
    """Return the position of each split that a reader holds."""
    return {name: split.position for splits in harness.assigned.values() for name, split in splits.items()}


def split(topic: str, number: int, position: int = 0, stop: int | None = None) -> KafkaSplit:
    return KafkaSplit(split_id=f"{topic}-{number}", topic=topic, partition=number, position=position, stop=stop)


def state_of(harness: Harness) -> KafkaState:
    state = STATE_SERIALIZER.deserialize(harness.snapshot())
    assert isinstance(state, KafkaState)
    return state


def reports_of(harness: Harness) -> dict[int, list[KafkaSplit]]:
    """Return what the readers hold, as a checkpoint has it."""
    return {subtask: list(splits.values()) for subtask, splits in harness.assigned.items()}
