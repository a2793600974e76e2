"""The rows of ``./run bench keyed`` and what their windows must come to: the same formula for every engine.

Never: use a clock or a random generator. Row i has the key ``i * 48271 % 2147483647 % 10000``, which is as good as
drawn (48271 is a generator of that prime), the value i, and the event time of i times 170 microseconds: 10 million rows
are 170 windows of ten seconds with every key in each. Of skewed rows the key 0 has half, and 5,000 keys the others.

Each engine must give the same number of groups and the same total over all windows that are over with the last row;
what it does with the window that is still open then is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.progress import Progress

from bench.frame import console
from local.topics import Message, create_topic, delete_topic

if TYPE_CHECKING:
    from local.kafka import Broker

KEYS = 10_000
MULTIPLIER, PRIME = 48_271, 2_147_483_647
ROW_US = 170
WINDOW_US = 10_000_000
HOT_OF = 1_000
PARTITIONS = 2
BEGIN_MS = 1_767_225_600_000
"""2026-01-01: event time of the first record in a topic. Generated rows begin with 1970."""


@dataclass(frozen=True)
class Answer:
    """What the windows that are over come to.

    Parameters
    ----------
    groups
        How many there are, over all windows.
    total
        The sum of all values in them.
    """

    groups: int
    total: int


def over_us(rows: int) -> int:
    """Return where the last window ends that is over with so many rows, in microseconds after the first row."""
    return rows * ROW_US // WINDOW_US * WINDOW_US


def key_of(*, skewed: bool = False) -> str:
    """Return the key of a row as an expression of Spark's SQL."""
    drawn = f"value * {MULTIPLIER} % {PRIME}"
    return f"IF({drawn} % {HOT_OF} < {HOT_OF // 2}, 0, {drawn} % {KEYS})" if skewed else f"{drawn} % {KEYS}"


def expected(rows: int, *, skewed: bool = False) -> Answer:
    """Return what every engine must say."""
    numbers = np.arange(-(-over_us(rows) // ROW_US), dtype=np.int64)
    drawn = numbers * MULTIPLIER % PRIME
    keys = np.where(drawn % HOT_OF < HOT_OF // 2, 0, drawn % KEYS) if skewed else drawn % KEYS
    groups = np.bincount(numbers * ROW_US // WINDOW_US * KEYS + keys)
    return Answer(int((groups > 0).sum()), int(numbers.sum()))


def check(who: str, rows: int, found: Answer, *, skewed: bool = False) -> None:
    """End the bench if an engine's answer is not the right one."""
    wanted = expected(rows, skewed=skewed)
    if found != wanted:
        raise SystemExit(f"{who}: {found} of {rows:,} rows; it must be {wanted}")


def topic(broker: Broker, rows: int) -> str:
    """Return a topic with the rows as JSON, in turn in two partitions, made if it is not there yet.

    After them each partition has one row that is a minute later: Structured Streaming closes the last window with it.
    """
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

    name = f"keyed-{rows}"
    done = broker.folder / f"{name}.done"
    if done.exists():
        return name
    console.print(f"filling the topic {name} with {rows:,} records (kept in {broker.folder})", soft_wrap=True)
    admin = AdminClient({"bootstrap.servers": broker.plain})
    if name in admin.list_topics(timeout=30).topics:  # of a run that was interrupted
        delete_topic(broker.plain, name)
    create_topic(broker.plain, name, PARTITIONS)
    producer = Producer(
        {"bootstrap.servers": broker.plain, "compression.type": "lz4", "linger.ms": 50, "batch.num.messages": 20_000,
         "queue.buffering.max.messages": 500_000, "enable.idempotence": True}
    )  # fmt: skip
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("records", total=rows)
        for begin in range(0, rows, 10_000):
            for message in _messages(range(begin, min(begin + 10_000, rows))):
                while True:
                    try:
                        producer.produce(name, message.value, partition=message.partition)
                        break
                    except BufferError:
                        producer.poll(0.05)
            producer.poll(0)
            progress.update(bar, completed=begin)
        last_ms = BEGIN_MS + over_us(rows) // 1000 + 60_000
        for partition in range(PARTITIONS):
            producer.produce(name, _value(0, 0, _time_text(last_ms)), partition=partition)
        if producer.flush(60):
            raise SystemExit("the broker did not take all records")
    done.touch()
    return name


def _messages(rows: range) -> Sequence[Message]:
    return [
        Message(_value(row * MULTIPLIER % PRIME % KEYS, row, _time_text(BEGIN_MS + row * ROW_US // 1000)),
                partition=row % PARTITIONS)
        for row in rows
    ]  # fmt: skip


def _value(key: int, value: int, at: str) -> bytes:
    return b'{"key":%d,"v":%d,"at":"%s"}' % (key, value, at.encode())


def _time_text(at_ms: int) -> str:
    return f"{np.datetime64(at_ms, 'ms')}Z"
