"""The first record of a partition is the one where it was assigned, or the client says twice that it is not."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from headgate.connectors.kafka.consumers import PARTITION_EOF, ClientEvent, Consumed
from headgate.connectors.kafka.records import Records, Wanted
from headgate.connectors.kafka.split import TopicPartition
from headgate.connectors.kafka.verified_consumer import VerifiedConsumer

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
WANTED = Wanted(keys=False, values=False)


class Client:
    """A client that gives what it is told, and notes what is assigned."""

    def __init__(self, *answers: Consumed) -> None:
        self.answers = list(answers)
        self.assigned: list[tuple[str, dict[TopicPartition, int]]] = []

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self.assigned.append(("assign", dict(positions)))

    def unassign(self, sources: Iterable[TopicPartition]) -> None:
        self.assigned.append(("unassign", dict.fromkeys(sources, 0)))

    def consume(self, *_: Any) -> Consumed:
        return self.answers.pop(0)


def records(source: TopicPartition, *offsets: int) -> Records:
    return Records(source, np.array(offsets, np.int64))


def end(source: TopicPartition, offset: int) -> ClientEvent:
    return ClientEvent(PARTITION_EOF, "", source, offset)


def came(*each: Records | ClientEvent) -> Consumed:
    return Consumed(
        [one for one in each if isinstance(one, Records)], [one for one in each if isinstance(one, ClientEvent)]
    )


def read(consumer: VerifiedConsumer) -> list[tuple[str, int]]:
    """Return what comes in one call: the topic and the first offset of records, and of ends."""
    consumed = consumer.consume(WANTED, 100, 0)
    found = [(each.source.topic, int(each.offsets[0])) for each in consumed.records]
    return found + [(f"end of {each.source.topic}", each.offset) for each in consumed.events if each.source is not None]


def test_records_that_the_client_skipped_come_and_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(came(records(A, 756, 757), records(B, 5), end(A, 758)), came(records(A, 0, 1)), came(records(A, 9)))
    consumer = VerifiedConsumer(client)  # type: ignore[arg-type]
    consumer.assign({A: 0, B: 5})
    with caplog.at_level(logging.WARNING):
        assert [read(consumer) for _ in range(3)] == [[("b", 5)], [("a", 0)], [("a", 9)]]
    assert client.assigned[1:] == [("unassign", {A: 0}), ("assign", {A: 0})]
    assert [each.getMessage() for each in caplog.records] == [
        "The Kafka client gave a-0 from offset 756 on instead of 0, and was asked again."
    ]


@pytest.mark.parametrize("answer", [records(A, 9), end(A, 9)], ids=["records", "the end"])
def test_a_gap_that_is_there_twice_is_one(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(came(answer), came(answer), came(records(A, 20)))
    consumer = VerifiedConsumer(client)  # type: ignore[arg-type]
    consumer.assign({A: 3})
    with caplog.at_level(logging.WARNING):
        assert [len(read(consumer)) for _ in range(3)] == [0, 1, 1]
    assert client.assigned[1:] == [("unassign", {A: 0}), ("assign", {A: 3})]
    assert not caplog.records


def test_the_end_of_a_partition_where_it_begins_is_no_gap() -> None:
    client = Client(came(end(A, 3)), came(records(A, 3)), came(records(A, 7)))
    consumer = VerifiedConsumer(client)  # type: ignore[arg-type]
    consumer.assign({A: 3})
    assert [read(consumer) for _ in range(3)] == [[("end of a", 3)], [("a", 3)], [("a", 7)]]
    assert len(client.assigned) == 1


def test_a_partition_that_is_assigned_anew_is_doubted_anew() -> None:
    client = Client(came(records(A, 9)), came(records(A, 9)), came(records(A, 1)))
    consumer = VerifiedConsumer(client)  # type: ignore[arg-type]
    consumer.assign({A: 3})
    assert read(consumer) == []
    consumer.unassign([A])
    consumer.assign({A: 1})
    assert [read(consumer) for _ in range(2)] == [[], [("a", 1)]]
