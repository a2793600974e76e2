"""Bytes that released versions wrote are read for ever: tests/golden/kafka-*."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from headgate.connectors.kafka.split import SPLIT_SERIALIZER, STATE_SERIALIZER, KafkaSplit, KafkaState
from headgate.errors import CorruptStateError, UnsupportedVersionError

SPLIT = KafkaSplit(
    split_id="rides.v1-11@9000000000",
    topic="rides.v1",
    partition=11,
    position=9_000_000_123,
    stop=9_000_001_000,
    topic_id="q8Zt1YzFQeW4mUjXbP0c7A",
)
STATE = KafkaState(
    initial_discovery_finished=True,
    unassigned=(KafkaSplit(split_id="fares-0", topic="fares", partition=0, position=0), SPLIT),
    assigned={"fares": ((1, 0), (2, 2)), "rides.v1": ((0, None),)},
    parallelism=3,
    owners={"fares-0": 2},
)


def test_splits(repository: Path) -> None:
    golden = (repository / "tests/golden/kafka-split-v1.json").read_bytes().strip()
    assert SPLIT_SERIALIZER.deserialize(golden) == SPLIT
    assert SPLIT_SERIALIZER.serialize(SPLIT) == golden


def test_states(repository: Path) -> None:
    golden = (repository / "tests/golden/kafka-state-v2.json").read_bytes().strip()
    assert STATE_SERIALIZER.deserialize(golden) == STATE
    assert STATE_SERIALIZER.serialize(STATE) == golden


def test_states_of_version_1_did_not_say_who_has_what(repository: Path) -> None:
    golden = (repository / "tests/golden/kafka-state-v1.json").read_bytes().strip()
    assigned = {"fares": ((1, None), (2, None)), "rides.v1": ((0, None),)}
    assert STATE_SERIALIZER.deserialize(golden) == msgspec.structs.replace(STATE, assigned=assigned)


def test_a_partition_without_an_end_is_short() -> None:
    assert SPLIT_SERIALIZER.serialize(KafkaSplit(split_id="a-0", topic="a", partition=0, position=5)) == (
        b'{"partition":0,"position":5,"split_id":"a-0","topic":"a","v":1}'
    )


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"v": 2, "split_id": "a-0"}, UnsupportedVersionError),
        ({"v": 1, "split_id": "a-0", "topic": "a", "partition": 0, "position": "5"}, CorruptStateError),
        ({"v": 1, "split_id": "a-0", "topic": "a", "partition": 0}, CorruptStateError),
    ],
)
def test_what_cannot_be_read_is_refused(data: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"a split of headgate\.kafka"):
        SPLIT_SERIALIZER.deserialize(json.dumps(data).encode())
