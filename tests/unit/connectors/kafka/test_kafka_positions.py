"""Where reading starts and ends: Spark's options, what the brokers say, and the offsets that follow."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.kafka.options import OPTION_SPECS
from headgate.connectors.kafka.positions import (
    Earliest,
    EndingPositions,
    Latest,
    Offset,
    Position,
    StartingPositions,
    Timestamp,
    check_ranges,
)
from headgate.enumerators.partition import TopicPartition
from headgate.errors import DataLossError, OptionError
from headgate.source import Boundedness
from headgate.source.options import Options

BATCH, STREAM = Boundedness.BOUNDED, Boundedness.CONTINUOUS_UNBOUNDED
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def options(raw: Mapping[str, str]) -> Options:
    return Options.parse("headgate.kafka", OPTION_SPECS, {"subscribe": "a"} | dict(raw))


def starts(boundedness: Boundedness = STREAM, **raw: str) -> StartingPositions:
    return StartingPositions.of(options(raw), boundedness)


def ends(**raw: str) -> EndingPositions:
    return EndingPositions.of(options(raw), BATCH)


def test_defaults() -> None:
    assert starts(STREAM).wanted([A0]) == {A0: Latest()}
    assert starts(BATCH).wanted([A0]) == {A0: Earliest()}
    assert ends().wanted([A0, A1]) == {A0: Latest(), A1: Latest()}


def test_one_time_goes_before_times_and_times_before_offsets() -> None:
    raw = {"startingOffsets": '{"a": {"0": 7}}'}
    assert starts(**raw).wanted([A0]) == {A0: Offset(7)}
    raw |= {"startingOffsetsByTimestamp": '{"a": {"0": 8}}'}
    assert starts(**raw).wanted([A0]) == {A0: Timestamp(8)}
    raw |= {"startingTimestamp": "9"}
    assert starts(**raw).wanted([A0, A1]) == {A0: Timestamp(9), A1: Timestamp(9)}
    raw = {"endingOffsets": '{"a": {"0": 7}}', "endingTimestamp": "9"}
    assert ends(**raw).wanted([A0]) == {A0: Timestamp(9)}


def test_special_numbers() -> None:
    made = starts(startingOffsets='{"a": {"0": -2, "1": -1}}')
    assert made.wanted([A0, A1]) == {A0: Earliest(), A1: Latest()}


@pytest.mark.parametrize("name", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_exactly_the_partitions_that_are_read_must_be_named(name: str) -> None:
    made = starts(**{name: '{"a": {"0": 3}, "b": {"5": 3}}'})
    with pytest.raises(OptionError, match=r"does not name a-1 and it names b-5") as raised:
        made.wanted([A0, A1])
    assert (raised.value.option, raised.value.missing, raised.value.extra) == (name, [A1], [TopicPartition("b", 5)])


def test_long_lists_are_cut() -> None:
    with pytest.raises(OptionError, match="and 91 more"):
        starts(startingOffsets='{"a": {"0": 3}}').wanted([TopicPartition("b", i) for i in range(101)])


@pytest.mark.parametrize(
    ("boundedness", "raw", "option"),
    [
        (BATCH, {"startingOffsets": "latest"}, "startingOffsets"),
        (BATCH, {"startingOffsets": '{"a": {"0": -1}}'}, "startingOffsets"),
        (BATCH, {"endingOffsets": "earliest"}, "endingOffsets"),
        (BATCH, {"endingOffsets": '{"a": {"0": -2}}'}, "endingOffsets"),
        (STREAM, {"endingOffsets": "latest"}, "endingOffsets"),
        (STREAM, {"endingTimestamp": "5"}, "endingTimestamp"),
        (STREAM, {"endingOffsetsByTimestamp": '{"a": {"0": 5}}'}, "endingOffsetsByTimestamp"),
        (
            BATCH,
            {"startingOffsets": '{"a": {"0": 5}}', "endingOffsets": '{"a": {"1": 5}}'},
            "endingOffsets",
        ),
        (
            BATCH,
            {"startingOffsets": '{"a": {"0": 5}}', "endingOffsets": '{"a": {"0": 4}}'},
            "endingOffsets",
        ),
        (
            BATCH,
            {"startingOffsetsByTimestamp": '{"a": {"0": 5}}', "endingOffsetsByTimestamp": '{"a": {"0": 4}}'},
            "endingOffsetsByTimestamp",
        ),
    ],
)
def test_what_spark_refuses(boundedness: Boundedness, raw: dict[str, str], option: str) -> None:
    with pytest.raises(OptionError) as raised:
        StartingPositions.of(options(raw), boundedness)
        EndingPositions.of(options(raw), boundedness)
    assert raised.value.option == option


def chosen(
    positions: StartingPositions | EndingPositions, position: Position, *, first: int = 10, last: int = 20,
    end: int = 22, at_time: int | None = None,
) -> int | None:  # fmt: skip
    """Return what is chosen where there are records from ``first`` to ``last``, and uncommitted ones to ``end``."""
    return positions.choose(
        {A0: position}, earliest={A0: first}, latest={A0: last}, ends={A0: end}, at_times={A0: at_time}
    ).get(A0)


def test_starts() -> None:
    made = starts()
    assert chosen(made, Earliest()) == 10
    assert chosen(made, Latest()) == 20
    assert chosen(made, Timestamp(5), at_time=13) == 13
    assert [chosen(made, Offset(each)) for each in (10, 15, 20, 21, 22)] == [10, 15, 20, 21, 22]


@pytest.mark.parametrize("offset", [9, 23])
def test_a_start_that_is_not_there(offset: int) -> None:
    with pytest.raises(DataLossError, match=rf"offset {offset} of a-0, but there are 10 to 22") as raised:
        chosen(starts(), Offset(offset))
    assert (raised.value.wanted, raised.value.available, raised.value.split) == (offset, (10, 22), "a-0")
    assert chosen(starts(failOnDataLoss="false"), Offset(offset)) == (10 if offset == 9 else 22)


def test_no_record_is_that_late() -> None:
    with pytest.raises(OptionError, match="no record that late"):
        chosen(starts(startingTimestamp="5"), Timestamp(5))
    assert chosen(starts(startingOffsetsByTimestampStrategy="latest"), Timestamp(5)) == 20
    assert chosen(ends(), Timestamp(5)) == 20


def test_ends() -> None:
    made = ends()
    assert chosen(made, Latest()) == 20
    assert chosen(made, Timestamp(5), at_time=13) == 13
    assert [chosen(made, Offset(each)) for each in (3, 15, 22)] == [3, 15, 22]
    with pytest.raises(DataLossError, match="offset 23 of a-0"):
        chosen(made, Offset(23))
    assert chosen(ends(failOnDataLoss="false"), Offset(23)) == 22


def test_a_partition_that_vanished_is_left_out() -> None:
    for made in (starts(), ends()):
        for position in (Latest(), Offset(3), Timestamp(3)):
            assert made.choose({A0: position}, earliest={}, latest={}, ends={}, at_times={}) == {}


def test_ranges_that_end_before_they_start() -> None:
    check_ranges({A0: 3, A1: 5}, {A0: 3}, source="headgate.kafka")
    with pytest.raises(OptionError, match="a-0 would start at offset 3 and end at 2"):
        check_ranges({A0: 3}, {A0: 2}, source="headgate.kafka")


NUMBERS = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b.c", "ü"]), st.integers(0, 30)), st.integers(-2, 2**62),
    min_size=1,
)  # fmt: skip


@given(NUMBERS)
def test_offsets_by_partition_survive_json_and_pickle(offsets: dict[TopicPartition, int]) -> None:
    by_topic: dict[str, dict[str, int]] = {}
    for each, offset in offsets.items():
        by_topic.setdefault(each.topic, {})[str(each.partition)] = offset
    made = starts(startingOffsets=json.dumps(by_topic))
    special = {-2: Earliest(), -1: Latest()}
    assert made.wanted(offsets) == {each: special.get(offset, Offset(offset)) for each, offset in offsets.items()}
    assert pickle.loads(pickle.dumps(made)) == made and hash(made) == hash(pickle.loads(pickle.dumps(made)))


@given(
    first=st.integers(0, 100), kept=st.integers(0, 100), uncommitted=st.integers(0, 10), wanted=st.integers(0, 300),
    at_time=st.integers(0, 100) | st.none(),
)  # fmt: skip
def test_a_start_is_always_in_what_there_is(
    first: int, kept: int, uncommitted: int, wanted: int, at_time: int | None
) -> None:
    made = starts(failOnDataLoss="false", startingOffsetsByTimestampStrategy="latest")
    last, end = first + kept, first + kept + uncommitted
    known = None if at_time is None else min(first + at_time, last)
    for position in (Earliest(), Latest(), Offset(wanted), Timestamp(5)):
        offset = chosen(made, position, first=first, last=last, end=end, at_time=known)
        assert offset is not None and first <= offset <= end
