"""The options of `headgate.kafka` as a source: Spark's own names, defaults and rules, and a few of ours.

Never: connect to anything, or say a secret: a value of ``kafka.*`` may be one, so errors about these name no value.

Follows Spark 4.2, ``KafkaSourceProvider`` (``validateGeneralOptions`` and its likes): each of its options is supported,
a no-op with a reason, or rejected with a reason. What they mean together is in `subscription`, `positions` and
`client_config`.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from headgate.connectors.kafka.client_config import GROUP_ID_PREFIX
from headgate.connectors.kafka.client_properties import REFUSED
from headgate.connectors.kafka.subscription import compiled
from headgate.enumerators.partition import TopicPartition
from headgate.source.options import Options, OptionSpec, boolean, choice, duration_ms, integer, size_bytes, text

SUBSCRIPTIONS = ("assign", "subscribe", "subscribePattern")
"""The options of which exactly one says what is read."""

_OFFSETS_EXAMPLE = '{"topicA": {"0": 23, "1": -2}} (-2 is the earliest, -1 the latest)'
_TIMES_EXAMPLE = '{"topicA": {"0": 1767225600000, "1": 1767225600000}}, in milliseconds since 1970-01-01 UTC'


def milliseconds(value: str) -> int:
    """Parse an interval like ``15m``; a bare number is one of milliseconds, as in Spark's ``maxTriggerDelay``."""
    if value.strip().isdecimal():
        return int(value)
    return duration_ms(value)


def topic_list(value: str) -> tuple[str, ...]:
    """Parse names of topics with commas between them."""
    topics = tuple(sorted({each.strip() for each in value.split(",") if each.strip()}))
    if not topics:
        raise ValueError("one or more topics with commas between them")
    return topics


def topic_pattern(value: str) -> str:
    """Parse a pattern for the names of topics."""
    if not value.strip():
        raise ValueError("a regular expression")
    compiled(value.strip())
    return value.strip()


def assignment(value: str) -> tuple[TopicPartition, ...]:
    """Parse partitions as ``assign`` has them."""
    wrong = ValueError('a JSON object of partition numbers by topic, like {"topicA": [0, 1], "topicB": [2]}')
    by_topic = _json_object(value)
    if not by_topic or not all(isinstance(numbers, list) for numbers in by_topic.values()):
        raise wrong
    found = {TopicPartition(topic, number) for topic, numbers in by_topic.items() for number in map(_whole, numbers)}
    if not found or any(each.partition < 0 for each in found):
        raise wrong
    return tuple(sorted(found))


def offsets(value: str) -> Literal["earliest", "latest"] | dict[TopicPartition, int]:
    """Parse ``earliest``, ``latest`` or offsets by partition."""
    word = value.strip().lower()
    if word == "earliest" or word == "latest":
        return word  # type: ignore[return-value]
    found = _by_partition(value)
    if not found or min(found.values()) < -2:
        raise ValueError(f"earliest, latest, or offsets by partition as JSON, like {_OFFSETS_EXAMPLE}")
    return found


def timestamps(value: str) -> dict[TopicPartition, int]:
    """Parse times by partition, in milliseconds since 1970-01-01 UTC."""
    found = _by_partition(value)
    if not found or min(found.values()) < 0:
        raise ValueError(f"times by partition as JSON, like {_TIMES_EXAMPLE}")
    return found


def _by_partition(value: str) -> dict[TopicPartition, int] | None:
    """Return ``{"topic": {"0": number}}`` by partition; None: it is not that."""
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _json_object(value).items():
        if not isinstance(numbers, dict):
            return None
        for partition, number in numbers.items():
            if not partition.isdecimal() or type(number) is not int:
                return None
            found[TopicPartition(topic, int(partition))] = number
    return found


def _json_object(value: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _whole(number: Any) -> int:
    return number if type(number) is int else -1


OPTION_SPECS: tuple[OptionSpec, ...] = (
    OptionSpec("kafka.*", text, None, "a property of the client: kafka.bootstrap.servers and others, see below"),
    OptionSpec("subscribe", topic_list, None, "the topics to read, with commas between them"),
    OptionSpec("subscribePattern", topic_pattern, None, "read the topics whose names contain a match of this pattern"),
    OptionSpec("assign", assignment, None, 'read these partitions only: {"topicA": [0, 1]}'),
    OptionSpec("startingOffsets", offsets, None, "where a new query starts: earliest, latest, or offsets as JSON"),
    OptionSpec("startingTimestamp", integer(0), None, "a new query starts at the first records of this time or later"),
    OptionSpec("startingOffsetsByTimestamp", timestamps, None, "the same, with a time for each partition, as JSON"),
    OptionSpec(
        "startingOffsetsByTimestampStrategy", choice("error", "latest"), "error",
        "what to do where no record is that late",
    ),
    OptionSpec("endingOffsets", offsets, None, "where a batch read ends: latest, or offsets as JSON"),
    OptionSpec("endingTimestamp", integer(0), None, "a batch read ends before the first records of this time or later"),
    OptionSpec("endingOffsetsByTimestamp", timestamps, None, "the same, with a time for each partition, as JSON"),
    OptionSpec("failOnDataLoss", boolean, True, "whether records that are gone end the query with an error"),
    OptionSpec("includeHeaders", boolean, False, "add the column headers"),
    OptionSpec("maxOffsetsPerTrigger", integer(1), None, "most offsets in a micro-batch, over all partitions"),
    OptionSpec("minOffsetsPerTrigger", integer(0), None, "fewest offsets that make a micro-batch"),
    OptionSpec("maxTriggerDelay", milliseconds, 900_000, "longest wait for minOffsetsPerTrigger"),
    OptionSpec("minPartitions", integer(1), None, "cut ranges so that there are about as many tasks, or more"),
    OptionSpec("maxRecordsPerPartition", integer(1), None, "cut ranges so that none has more offsets"),
    OptionSpec("kafkaConsumer.pollTimeoutMs", integer(1), 120_000, "longest wait for records that must be there"),
    OptionSpec("fetchOffset.numRetries", integer(0), 3, "how often a failed question for offsets is asked again"),
    OptionSpec("fetchOffset.retryIntervalMs", integer(0), 1000, "milliseconds between two of these questions"),
    OptionSpec("groupIdPrefix", text, GROUP_ID_PREFIX, "what the names of consumer groups begin with"),
    OptionSpec("partition.discovery.interval", milliseconds, 1000, "time between looks for new partitions; 0: none"),
    OptionSpec(
        "scan.split-assigner", choice("hash", "round-robin"), "hash",
        "how partitions are shared out: each topic evenly, or all together evenly", changeable=True,
    ),
    OptionSpec("scan.parallelism", integer(1), None, "how many tasks share the ranges of a read; else one for each"),
    OptionSpec("valueFormat", choice("binary", "json"), "binary", "json: values are parsed into the schema's columns"),
    OptionSpec("maxBufferedBytes", size_bytes, 64 << 20, "what a task's reader holds in memory at most"),
    OptionSpec(
        "topic", text, status="rejected",
        why="it belongs to writing; to read, name topics in subscribe, subscribePattern or assign.",
    ),
    *(OptionSpec(f"kafka.{name}", text, status="rejected", why=why) for name, why in REFUSED.items()),
)  # fmt: skip
"""All options of the source; those of parsed values are in `values`."""


def check(options: Options) -> None:
    """Check what the options must be together, whichever way the source is read.

    Raises
    ------
    OptionError
        Not exactly one option says what to read, or the limits of a micro-batch contradict each other.
    """
    chosen = [name for name in SUBSCRIPTIONS if options.is_set(name)]
    if not chosen:
        raise options.error("subscribe", "is missing: set one of subscribe, subscribePattern and assign.")
    if len(chosen) > 1:
        raise options.error(chosen[0], f"cannot be set together with {' and '.join(chosen[1:])}: leave one.")
    fewest = options["minOffsetsPerTrigger"]
    for name in ("maxOffsetsPerTrigger", "maxRowsPerTrigger"):
        most = options[name]
        if fewest is not None and most is not None and fewest > most:
            raise options.error(
                "minOffsetsPerTrigger", f"is {fewest}, more than {name}, {most}: lower it, or raise that."
            )
