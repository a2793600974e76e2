"""Splits of shards: sequence numbers are numbers, and bytes that released versions wrote are read for ever."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.kinesis.split import (
    SPLIT_SERIALIZER,
    STATE_SERIALIZER,
    KinesisSplit,
    KinesisState,
    after,
    at,
    at_timestamp,
)
from headgate.errors import CorruptStateError, UnsupportedVersionError

BIG = "49590338271490256608559692538361571095921575989136588"
SPLIT = KinesisSplit(
    split_id="shardId-000000000004",
    position=after(f"{BIG}898"),
    stop=f"{BIG}999",
    rows=17,
    parents=("shardId-000000000003", "shardId-000000000001"),
)
STATE = KinesisState(
    initial_discovery_finished=True,
    unassigned=(
        KinesisSplit(split_id="shardId-000000000002", position=at_timestamp(1_767_225_600_000)),
        KinesisSplit(split_id="shardId-000000000003", parents=("shardId-000000000001",)),
        KinesisSplit(split_id="shardId-000000000005", position=at("7"), ended=True),
    ),
    assigned={"shardId-000000000001": 1},
    ended=("shardId-000000000006",),
    finished=("shardId-000000000000",),
    parallelism=2,
)


@pytest.mark.parametrize(
    ("name", "serializer", "value"),
    [("kinesis-split-v1.json", SPLIT_SERIALIZER, SPLIT), ("kinesis-state-v3.json", STATE_SERIALIZER, STATE)],
)
def test_golden_bytes(repository, name, serializer, value):
    golden = (repository / "tests/golden" / name).read_bytes().strip()
    assert serializer.deserialize(golden) == value
    assert serializer.serialize(value) == golden


@pytest.mark.parametrize(("version", "owner"), [(1, None), (2, 1)])
def test_states_of_older_versions_are_read(repository, version, owner):
    """Version 1 did not say who has what, and neither which ends may be undone."""
    golden = (repository / f"tests/golden/kinesis-state-v{version}.json").read_bytes().strip()
    assigned = {"shardId-000000000001": owner}
    assert STATE_SERIALIZER.deserialize(golden) == msgspec.structs.replace(STATE, assigned=assigned, ended=())


@pytest.mark.parametrize("serializer", [SPLIT_SERIALIZER, STATE_SERIALIZER])
def test_an_unknown_version_is_refused(serializer):
    with pytest.raises(UnsupportedVersionError, match=r"headgate\.kinesis has version 9"):
        serializer.deserialize(json.dumps({"v": 9}).encode())


def test_a_damaged_split_is_refused_with_the_field():
    with pytest.raises(CorruptStateError, match=r"position\.kind"):
        SPLIT_SERIALIZER.deserialize(b'{"v":1,"split_id":"x","position":{"kind":"LATEST"}}')


@given(st.integers(1, 10**56), st.integers(1, 10**56))
def test_sequence_numbers_are_compared_as_numbers(position, stop):
    split = KinesisSplit(split_id="shardId-000000000000", position=after(str(position)), stop=str(stop))
    assert split.is_read == (position >= stop)


def test_what_is_read():
    whole = KinesisSplit(split_id="shardId-000000000000")
    assert not whole.is_read and not whole.read_up_to("9", 3).is_read
    assert KinesisSplit(split_id="shardId-000000000000", ended=True).is_read
    assert not KinesisSplit(split_id="shardId-000000000000", position=at("9"), stop="9", rows=1).is_read


def test_rows_left_are_counted():
    split = KinesisSplit(split_id="shardId-000000000000", position=at("9"), stop="12", rows=3)
    assert split.remaining().rows == 3
    assert split.read_up_to("10", 2) == KinesisSplit(
        split_id="shardId-000000000000", position=after("10"), stop="12", rows=1
    )
    assert KinesisSplit(split_id="shardId-000000000000").read_up_to("10", 2).remaining().rows is None
