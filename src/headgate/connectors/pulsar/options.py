"""The options of `headgate.pulsar` as a source: the names of StreamNative's Spark connector, and a few of ours.

Never: connect to anything, or say a secret: a property of ``pulsar.client`` may be one.

What they mean together is in `subscription`, `discovery` and `client`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from headgate.connectors.pulsar.position import Position, after_message, before_message
from headgate.connectors.pulsar.subscription import full_name, topic_pattern
from headgate.source.options import Options, OptionSpec, boolean, choice, duration_ms, integer, size_bytes, text

TOPICS = ("topic", "topics", "topicsPattern")
"""The options of which exactly one says what is read."""


class Start(msgspec.Struct, frozen=True):
    """Where a partition is read from, or up to: one of the four is set.

    Parameters
    ----------
    word
        All that is there, or nothing of it.
    position
        The position before a message; of an end, after it.
    time_ms
        The first message published then or later; milliseconds since 1970-01-01 UTC.
    event_time_ms
        The first message whose event time is then or later.
    """

    word: Literal["earliest", "latest"] | None = None
    position: Position | None = None
    time_ms: int | None = None
    event_time_ms: int | None = None


Offsets = Start | dict[str, Start]
"""What ``startingOffsets`` may be: for all topics, or by topic."""

_EXAMPLE = (
    "earliest, latest, a time like 2026-01-31T12:00:00Z, or these or message ids by topic as JSON, like "
    '{"persistent://public/default/rides-partition-0": [8, 11, 16, 101, 24, 0, 32, 1]} (the bytes of '
    "MessageId.serialize())"
)


def offsets(value: str) -> Offsets:
    """Parse ``earliest``, ``latest``, a time, or each of them, or the bytes of a message id, by topic."""
    return _offsets(value, before_message)


def ending_offsets(value: str) -> Offsets:
    """Parse the same as where a read ends: a message that is named is read."""
    return _offsets(value, after_message)


def _offsets(value: str, place: Callable[[bytes], Position]) -> Offsets:
    if not value.strip().startswith("{"):
        return _start(value, place)
    try:
        by_topic = json.loads(value)
    except ValueError:
        raise ValueError(_EXAMPLE) from None
    if not by_topic:
        raise ValueError(_EXAMPLE)
    return {full_name(topic): _start(each, place) for topic, each in by_topic.items()}


def moment(value: str) -> int:
    """Parse a time: milliseconds since 1970-01-01 UTC, or ISO 8601."""
    if value.strip().isdecimal():
        return int(value)
    try:
        parsed = datetime.datetime.fromisoformat(value.strip())
    except ValueError:
        raise ValueError("a time like 2026-01-31T12:00:00Z, or milliseconds since 1970-01-01 UTC") from None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=datetime.UTC)
    return int(parsed.timestamp() * 1000)


def _start(value: Any, place: Callable[[bytes], Position]) -> Start:
    if isinstance(value, list):
        try:
            return Start(position=place(bytes(each + 256 if -128 <= each < 0 else each for each in value)))
        except (ValueError, TypeError):
            raise ValueError(_EXAMPLE) from None
    word = str(value).strip().lower()
    if word == "earliest" or word == "latest":
        return Start(word=word)  # type: ignore[arg-type]
    try:
        return Start(time_ms=moment(str(value)))
    except ValueError:
        raise ValueError(_EXAMPLE) from None


def topic(value: str) -> str:
    """Parse the name of a topic."""
    return full_name(value)


def topic_list(value: str) -> tuple[str, ...]:
    """Parse names of topics with commas between them."""
    found = tuple(sorted({full_name(each) for each in value.split(",") if each.strip()}))
    if not found:
        raise ValueError("one or more topics with commas between them")
    return found


LEAST_QUEUED = 2
"""The smallest queue of a reader: the client drops the message after which it starts, and asks for no other instead."""


def key_file(value: str) -> str:
    """Parse the path of a file, or a ``file:`` address of it."""
    path = value.strip().removeprefix("file://").removeprefix("file:")
    if not path or path.startswith("data:"):
        raise ValueError("the path of a file")
    return path


_READER = {
    "receiverQueueSize": integer(LEAST_QUEUED),
    "readerName": text,
    "subscriptionRolePrefix": text,
    "defaultCryptoKeyReader": key_file,
}
"""The properties of ``pulsar.reader.*`` that have an effect."""


def _rejected(name: str, why: str) -> OptionSpec:
    return OptionSpec(name, text, status="rejected", why=why)


OPTION_SPECS: tuple[OptionSpec, ...] = (
    OptionSpec("service.url", text, None, "the brokers' address, like pulsar://broker1:6650 or pulsar+ssl://…"),
    OptionSpec("admin.url", text, None, "the address of their HTTP API, like http://broker1:8080, or http://broker1:8080,broker2:8080"),
    OptionSpec("topic", topic, None, "the topic to read, with all its partitions"),
    OptionSpec("topics", topic_list, None, "the topics to read, with commas between them"),
    OptionSpec(
        "topicsPattern", topic_pattern, None,
        "read the topics of a namespace whose whole name the pattern matches: tenant/namespace/pattern",
    ),
    OptionSpec(
        "startingOffsets", offsets, None,
        "where a new query starts: earliest (default of a batch), latest (of a stream), a time of publication, or "
        "these or message ids by topic as JSON",
    ),
    OptionSpec("startingTime", moment, None, "a new query starts with what was published at this time or later"),
    OptionSpec(
        "startingEventTime", moment, None,
        "a new query starts with each partition's first message whose event time is this or later",
    ),
    OptionSpec(
        "endingOffsets", ending_offsets, None, "where a batch ends: latest, or as startingOffsets; a message id is read"
    ),
    OptionSpec("endingTime", moment, None, "a batch ends before what was published at this time or later"),
    OptionSpec("failOnDataLoss", boolean, True, "whether messages that are gone end the query with an error"),
    OptionSpec(
        "predefinedSubscription", text, None,
        "a durable subscription, made if it is missing, by which Pulsar keeps what no checkpoint has",
    ),
    OptionSpec("maxBytesPerTrigger", size_bytes, None, "about how many bytes a micro-batch has, whole entries"),
    OptionSpec("pollTimeoutMs", integer(1), 120_000, "longest wait for messages that must be there"),
    OptionSpec(
        "valueFormat", choice("schema", "binary", "json"), "schema",
        "schema: values as their topic's schema says; binary: their bytes; json: parsed into the schema's columns",
    ),
    OptionSpec("allowDifferentTopicSchemas", boolean, False, "the same as valueFormat binary, if true"),
    OptionSpec("partition.discovery.interval", duration_ms, 10_000, "time between looks for new partitions and topics"),
    OptionSpec(
        "scan.split-assigner", choice("hash", "round-robin"), "hash",
        "how partitions are shared out: each topic evenly, or all together evenly",
    ),
    OptionSpec("pulsar.client.*", text, None, "a property of the client, by Java's name"),
    OptionSpec("pulsar.admin.*", text, None, "a property of requests to admin.url; else that of pulsar.client"),
    OptionSpec("pulsar.reader.*", text, None, f"a property of readers: {', '.join(_READER)}"),
    _rejected("pulsar.reader.readCompacted", "what a compacted topic has changes: a range read again is not the same."),
    _rejected("pulsar.reader.subscriptionName", "readers have their own; see predefinedSubscription."),
    _rejected("subscriptionPrefix", "use 'predefinedSubscription': nobody would remove subscriptions of chance."),
    _rejected("waitingForNonExistedTopic", "create the topic first, or use 'topicsPattern', which finds it later."),
    OptionSpec("pulsar.producer.*", text, None, "", status="no-op", why="It belongs to writing."),
)  # fmt: skip
"""All options of the source; those of parsed values are in `headgate.formats.json_values`."""


def check(options: Options) -> None:
    """Check what the options must be together, whichever way the source is read.

    Raises
    ------
    OptionError
        Not exactly one option says what to read, ``admin.url`` is missing, or two say where it starts or ends.
    """
    chosen = [name for name in TOPICS if options.is_set(name)]
    if not chosen:
        raise options.error("topic", "is missing: set one of topic, topics and topicsPattern.")
    if len(chosen) > 1:
        raise options.error(chosen[0], f"cannot be set together with {' and '.join(chosen[1:])}: leave one.")
    if not options["admin.url"]:
        raise options.error(
            "admin.url",
            "must be set: the brokers' HTTP address, like 'http://broker1:8080'. It is asked for partitions and for "
            "what was deleted, which Pulsar's client for Python cannot ask.",
        )
    starts, ends = ("startingOffsets", "startingTime", "startingEventTime"), ("endingOffsets", "endingTime")
    for names in (starts, ends):
        given = [name for name in names if options.is_set(name)]
        if len(given) > 1:
            raise options.error(given[0], f"cannot be set together with {' and '.join(given[1:])}: leave one.")


def reader_arguments(options: Options) -> dict[str, Any]:
    """Return the properties of ``pulsar.reader.*`` as arguments of `pulsar.Client.create_reader`.

    Raises
    ------
    OptionError
        A property is unknown or has a bad value.
    """
    by_lower = {name.lower(): name for name in _READER}
    python = {"receiverQueueSize": "receiver_queue_size", "readerName": "reader_name",
              "subscriptionRolePrefix": "subscription_role_prefix",
              "defaultCryptoKeyReader": "crypto_key_reader"}  # fmt: skip
    found = {}
    for given, value in options.matching("pulsar.reader.*").items():
        name = by_lower.get(given.lower())
        if name is None:
            raise options.error(
                f"pulsar.reader.{given}", f"is not one that has an effect. These have: {', '.join(_READER)}."
            )
        try:
            found[python[name]] = _READER[name](value)
        except ValueError as error:
            raise options.error(f"pulsar.reader.{name}", f"is {value!r}; it must be {error}.") from None
    return found


def start_of(options: Options, *, bounded: bool) -> Offsets:
    """Return where partitions that are there at the start are read from.

    Raises
    ------
    OptionError
        A batch that starts at ``latest``: it would always be empty.
    """
    if options["startingTime"] is not None:
        return Start(time_ms=options["startingTime"])
    if options["startingEventTime"] is not None:
        return Start(event_time_ms=options["startingEventTime"])
    chosen: Offsets | None = options["startingOffsets"]
    if chosen is None:
        return Start(word="earliest" if bounded else "latest")
    if bounded and Start(word="latest") in (chosen.values() if isinstance(chosen, dict) else [chosen]):
        raise options.error("startingOffsets", "is 'latest', so that a batch would be empty. Use 'earliest' or a time.")
    return chosen


def end_of(options: Options, *, bounded: bool) -> Offsets:
    """Return where a bounded read of partitions ends.

    Raises
    ------
    OptionError
        The read is a stream, or a batch that ends at ``earliest``.
    """
    if not bounded:
        for name in ("endingOffsets", "endingTime"):
            if options.is_set(name):
                raise options.error(name, "is for reads with an end: micro-batches have none.")
    if options["endingTime"] is not None:
        return Start(time_ms=options["endingTime"])
    chosen: Offsets = options["endingOffsets"] or Start(word="latest")
    if Start(word="earliest") in (chosen.values() if isinstance(chosen, dict) else [chosen]):
        raise options.error("endingOffsets", "is 'earliest', so that a batch would be empty. Use 'latest' or a time.")
    return chosen
