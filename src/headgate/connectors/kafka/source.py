"""`KafkaSource`: the format ``headgate.kafka``, with the options, the schema and the meaning of Spark's ``kafka``.

Never: connect in the constructor or on an enumerator's thread, or carry a client into a pickle: the planner's client is
made when it is first needed, tasks have their own.

Follows FLIP-27, "Implementation Plan" (Kafka), and FLIP-537, "Kafka connector".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from headgate.assigners import ASSIGNERS
from headgate.connectors.kafka.client_config import ClientConfig, require_client_library
from headgate.connectors.kafka.cluster import KafkaCluster
from headgate.connectors.kafka.columns import KafkaColumns, kafka_schema
from headgate.connectors.kafka.enumerator import KafkaEnumerator
from headgate.connectors.kafka.event_times import FieldOfValues, NextRecord, RecordTimes, TimeStamps, range_ends
from headgate.connectors.kafka.options import OPTION_SPECS, check
from headgate.connectors.kafka.positions import EndingPositions, StartingPositions, check_ranges
from headgate.connectors.kafka.ranges import Available, lag, plan_ranges, readable
from headgate.connectors.kafka.reader import KafkaReader
from headgate.connectors.kafka.reader_metrics import ReaderMetrics
from headgate.connectors.kafka.split import SPLIT_SERIALIZER, STATE_SERIALIZER, KafkaSplit, KafkaState
from headgate.connectors.kafka.split_reader import KafkaSplitReader
from headgate.connectors.kafka.subscription import Subscription
from headgate.connectors.kafka.tasks import group
from headgate.enumerators.partition import TopicPartition
from headgate.errors import OptionError, SourceUnavailableError
from headgate.formats.json_values import JSON_OPTIONS
from headgate.readers import ReaderOptions
from headgate.source import (
    Boundedness,
    PlanLimits,
    PlannedRange,
    Source,
    SourceReader,
    SourceReaderContext,
    SplitEnumerator,
    SplitEnumeratorContext,
    SupportsSplitReassignmentOnRecovery,
)

logger = logging.getLogger(__name__)

_LATEST_AGAIN_MS = 50
"""An idle planner is asked a hundred times a second; the brokers are asked for their latest offsets less often."""
_OTHERS_AGAIN_MS = 1000
"""How often brokers are asked for what reveals lost data: the earliest offsets, and which topic it is."""
_LOOKED_AT = 50_000
"""So many records of a partition are looked at for a plan, at most, where only looking shows how far to read."""


class KafkaSource(Source[KafkaSplit, KafkaState], SupportsSplitReassignmentOnRecovery):
    """Topics of a Kafka cluster.

    Parameters
    ----------
    options
        Those of Spark's ``kafka`` format and a few of our own: docs/kafka.md.

    Raises
    ------
    OptionError
        An option is unknown, has a bad value, or contradicts another.
    """

    name = "headgate.kafka"
    option_specs = (*OPTION_SPECS, *JSON_OPTIONS)
    split_serializer = SPLIT_SERIALIZER
    state_serializer = STATE_SERIALIZER

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        check(self.options)
        self._is_json = self.options["valueFormat"] == "json"
        if not self._is_json:
            for spec in JSON_OPTIONS:
                if self.options.is_set(spec.name):
                    raise self.options.error(spec.name, "is for values that are parsed: set valueFormat to json.")
        self._client = ClientConfig.of(self.options)
        self._subscription = Subscription.of(self.options)
        self._has_index = _is_timestamp(self.options["eventTimeColumn"], self._is_json)
        self._assigner = ASSIGNERS[self.options["scan.split-assigner"]]()
        self._cluster: KafkaCluster | None = None
        self._missed: frozenset[str] = frozenset()  # named topics that were not there last time
        self._available = Available(latest={})
        self._latest_asked_ms = self._others_asked_ms = -_OTHERS_AGAIN_MS
        self._record_times = RecordTimes(self._client, TimeStamps())

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cluster": None, "_record_times": RecordTimes(self._client, TimeStamps())}

    def schema(self) -> pa.Schema:
        """Return the columns of Spark's ``kafka`` format.

        Raises
        ------
        OptionError
            Values are to be parsed, and there is no schema to parse them with.
        """
        if self._is_json:
            raise OptionError(
                f"{self.name}: with valueFormat 'json' the values' fields must be given: "
                'add .schema("user string, amount double"), with _key, _topic, _partition, _offset or _timestamp for '
                "Kafka's own columns.",
                option="valueFormat", value="json",
            )  # fmt: skip
        return kafka_schema(self.options["includeHeaders"])

    def create_enumerator(self, context: SplitEnumeratorContext[KafkaSplit]) -> SplitEnumerator[KafkaSplit, KafkaState]:
        """Return an enumerator that discovers afresh.

        Raises
        ------
        OptionError
            A starting or an ending option is not one of reads of this boundedness.
        """
        return self._enumerator(context, None)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[KafkaSplit], state: KafkaState
    ) -> SplitEnumerator[KafkaSplit, KafkaState]:
        """Return an enumerator that goes on from ``state``; raises as `create_enumerator`."""
        return self._enumerator(context, state)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[KafkaSplit]:
        """Return a reader with one consumer for all its partitions.

        Raises
        ------
        OptionError
            The schema has a column that there is not, or an option of the values cannot be used.
        DeploymentError
            confluent-kafka is not installed here.
        """
        require_client_library()
        buffered_bytes: int = self.options["maxBufferedBytes"]
        queue_bytes = buffered_bytes // 4
        metrics = ReaderMetrics(context.metric_group)
        split_reader = partial(
            KafkaSplitReader,
            self._client,
            KafkaColumns(context.schema, self.options, context.time_zone),
            fail_on_data_loss=self.options["failOnDataLoss"],
            poll_timeout_ms=self.options["kafkaConsumer.pollTimeoutMs"],
            buffered_bytes=buffered_bytes - queue_bytes,
            metrics=metrics,
        )
        options = ReaderOptions(queue_bytes=queue_bytes)
        return KafkaReader(split_reader, context, options, self._client, metrics)

    def plan_ranges(
        self, splits: Sequence[KafkaSplit], limits: PlanLimits, now_ms: int
    ) -> Sequence[PlannedRange[KafkaSplit]]:
        """Plan up to the latest offsets, each partition its share of the rows that are allowed. Blocks.

        Ranges end before ``limits.before_event_time_ms``, if time stamps are the event time.

        Raises
        ------
        DataLossError
            What is to be read is no longer there, and ``failOnDataLoss`` is set.
        SourceUnavailableError
            The brokers do not answer within ``kafka.default.api.timeout.ms``.
        """
        available, before = self._before(splits, limits, now_ms)
        fail_on_data_loss = self.options["failOnDataLoss"]
        return plan_ranges(splits, available, limits.max_rows, fail_on_data_loss=fail_on_data_loss, before=before)

    def grouping(self) -> dict[str, Any]:
        """Return the options that cut ranges and say which share a task."""
        names = ("minPartitions", "maxRecordsPerPartition", "scan.parallelism", "scan.split-assigner")
        return {name: self.options[name] for name in names}

    def group_splits(self, splits: Sequence[KafkaSplit], grouping: Mapping[str, Any]) -> Sequence[Sequence[KafkaSplit]]:
        """Return which ranges share a task: by default, as in Spark, none do. Tasks are in the partitions' order."""
        return group(
            sorted(splits, key=lambda split: (split.topic_partition, split.position)),
            min_partitions=grouping["minPartitions"],
            max_records_per_partition=grouping["maxRecordsPerPartition"],
            parallelism=grouping["scan.parallelism"],
            assigner=ASSIGNERS[grouping["scan.split-assigner"]](),
        )

    def lag(self, splits: Sequence[KafkaSplit], now_ms: int) -> Mapping[str, int]:
        """Return how many offsets lie between the splits and the latest, by the names of Spark's metrics. Blocks."""
        return lag(splits, self._look(splits, now_ms).latest)

    def next_event_times(self, splits: Sequence[KafkaSplit]) -> Mapping[str, int | None] | None:
        """Return the event time of each split's next record, if there is a column of it; else None. Blocks.

        It is the records' time stamp, or a field of their values: these are parsed here as well as in the tasks.

        Raises
        ------
        SourceUnavailableError
            The brokers do not answer, or send no records, within ``kafka.default.api.timeout.ms``.
        SourceError
            They refuse this client.
        """
        if not self._seeks_event_time():
            return None
        found, _ = self._next_records(splits, time.time_ns() // 1_000_000)
        times = {split.split_id: found.get(split.topic_partition) for split in splits}
        return {name: each.time_ms for name, each in times.items() if each is not None and each.time_ms is not None}

    def _seeks_event_time(self) -> bool:
        return self._has_index or (self._is_json and self.options["eventTimeColumn"] is not None)

    def _event_time(self, context: SplitEnumeratorContext[KafkaSplit]) -> pa.Field:
        name: str = self.options["eventTimeColumn"]
        found = [field for field in context.schema if field.name.lower() == name.lower()]
        exact = [field for field in found if field.name == name] or found
        if len(exact) != 1:
            raise self.options.error(
                "eventTimeColumn", f"is {name!r}; it must name one column of {', '.join(context.schema.names)}."
            )
        return exact[0]

    def _before(
        self, splits: Sequence[KafkaSplit], limits: PlanLimits, now_ms: int
    ) -> tuple[Available, dict[TopicPartition, int]]:
        """Return what there is, and before which offsets ranges end so that they stay below an event time. Blocks."""
        before_ms = limits.before_event_time_ms
        if before_ms is None or not self._seeks_event_time():
            return self._look(splits, now_ms), {}
        deadline_s = time.monotonic() + self._client.timeout_ms / 1000
        while True:
            # Ends were asked for before the index: what is written in between is part of a later plan.
            found, available = self._next_records(splits, now_ms)
            early = [
                each for each, record in found.items() if record.time_ms is not None and record.time_ms < before_ms
            ]
            # To the brokers negative times are other questions.
            asked = dict.fromkeys(early, before_ms) if self._has_index and before_ms >= 0 else {}
            by_index = self._brokers().at_timestamps(asked) if asked else {}
            before, unknown = range_ends(found, by_index, before_ms)
            most = _LOOKED_AT if limits.max_rows is None else min(_LOOKED_AT, limits.max_rows)
            looked_at = self._record_times.first_too_late(unknown, available.latest, before_ms, most)
            if looked_at is not None:
                return available, before | looked_at
            self._look_anew(deadline_s)

    def _next_records(
        self, splits: Sequence[KafkaSplit], now_ms: int
    ) -> tuple[dict[TopicPartition, NextRecord], Available]:
        """Return the next records of the splits that have any now, and what there is of all splits. Blocks."""
        deadline_s = time.monotonic() + self._client.timeout_ms / 1000
        while True:
            available = self._look(splits, now_ms)
            found = self._record_times.next_records(readable(splits, available), available.latest)
            if found is not None:
                return found, available
            self._look_anew(deadline_s)

    def _look_anew(self, deadline_s: float) -> None:
        """See to it that the brokers are asked again what there is: records were gone, or a partition was."""
        if time.monotonic() >= deadline_s:
            raise SourceUnavailableError(
                f"{self.name}: {self._client.address} reports records, but has sent an error in place of them "
                f"for {self._client.timeout_ms} ms (kafka.default.api.timeout.ms).",
                source=self.name, address=self._client.address,
            )  # fmt: skip
        time.sleep(_LATEST_AGAIN_MS / 1000)
        self._available = Available(latest={})

    def _enumerator(self, context: SplitEnumeratorContext[KafkaSplit], state: KafkaState | None) -> KafkaEnumerator:
        require_client_library()
        # Validated here, when it is known how the source is read; resolved by the first discovery only.
        starts = StartingPositions.of(self.options, context.boundedness)
        ends = EndingPositions.of(self.options, context.boundedness)
        bounded = context.boundedness is Boundedness.BOUNDED
        if self._seeks_event_time() and not self._has_index and not bounded:
            self._record_times = RecordTimes(self._client, FieldOfValues(self._event_time(context), self.options))
        return KafkaEnumerator(
            context,
            partial(self._discover, starts, ends if bounded else None),
            self._subscription,
            self._assigner,
            self.options["partition.discovery.interval"] or None,
            state,
            self._disconnect,
        )

    def _discover(
        self, starts: StartingPositions, ends: EndingPositions | None, known: frozenset[TopicPartition], initial: bool
    ) -> list[KafkaSplit]:
        """Return the partitions that are not known yet, as splits at resolved positions. Blocks."""
        cluster = self._brokers()
        topics = cluster.topics(self._subscription.topics)
        missing = self._subscription.missing(topics)
        if initial and missing:
            raise OptionError(
                f"{self.name}: {', '.join(missing)} does not exist on {self._client.address}. Create it, or correct "
                "the option that names it; topics that come later are found by subscribePattern.",
                source=self.name, option="subscribe", value=missing,
            )  # fmt: skip
        for name in missing:
            if name not in self._missed:
                logger.warning("%s: %s does not exist on %s (yet)", self.name, name, self._client.address)
        self._missed = frozenset(missing)
        found = [each for each in self._subscription.select(topics) if each not in known]
        if not found:
            return []
        positions = starts.resolve(cluster, found) if initial else cluster.earliest(found)
        stops = {} if ends is None else ends.resolve(cluster, found)
        check_ranges(positions, stops, source=self.name)
        return [
            KafkaSplit(
                split_id=str(each),
                topic=each.topic,
                partition=each.partition,
                position=positions[each],
                stop=stops.get(each),
                topic_id=topics[each.topic].topic_id,
            )
            for each in found
            if each in positions and (ends is None or each in stops)
        ]

    def _look(self, splits: Sequence[KafkaSplit], now_ms: int) -> Available:
        """Return what there is of the splits' partitions, not always as it is this instant. Blocks."""
        partitions = {split.topic_partition: split for split in splits}
        known = self._available.latest.keys() >= partitions.keys()
        # A clock that was set back must not make facts look fresh until it is what it was again.
        if known and 0 <= now_ms - self._latest_asked_ms < _LATEST_AGAIN_MS:
            return self._available
        latest = self._brokers().latest(partitions)
        odd = {
            partition
            for partition, split in partitions.items()
            if max(split.position, split.stop or 0) > latest.get(partition, -1)
        }
        if odd or not known or not 0 <= now_ms - self._others_asked_ms < _OTHERS_AGAIN_MS:
            topics = self._brokers().topics({partition.topic for partition in partitions})
            earliest = self._brokers().earliest(partitions)
            # Where only committed records are read, the latest offset is that of the first open transaction: a query
            # that read on before, or was configured to start after it, has lost nothing.
            ends = self._brokers().ends(odd) if self._client.reads_committed else {}
            topic_ids = {name: topic.topic_id for name, topic in topics.items()}
            self._available = Available(latest=latest, earliest=earliest, ends=ends, topic_ids=topic_ids)
            self._others_asked_ms = now_ms
        else:
            self._available = msgspec.structs.replace(self._available, latest=latest)
            if any(latest[partition] > split.position for partition, split in partitions.items()):
                # A plan rests on it that these offsets are still those of the same topics, so it is asked after them.
                topics = self._brokers().topics({partition.topic for partition in partitions})
                topic_ids = {name: topic.topic_id for name, topic in topics.items()}
                self._available = msgspec.structs.replace(self._available, topic_ids=topic_ids)
        self._latest_asked_ms = now_ms
        return self._available

    def _brokers(self) -> KafkaCluster:
        if self._cluster is None:
            self._cluster = KafkaCluster(self._client)
        return self._cluster

    def _disconnect(self) -> None:
        if self._cluster is not None:
            self._cluster.close()


def _is_timestamp(event_time_column: str | None, is_json: bool) -> bool:
    """Whether the event time is the records' time stamp, by which brokers know where to find them."""
    return event_time_column is not None and event_time_column.lower() == ("_timestamp" if is_json else "timestamp")
