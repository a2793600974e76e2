"""Plans of micro-batches: shares of a limit, lost data, and the figures of `lastProgress`."""

from __future__ import annotations

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.kafka.ranges import Available, lag, plan_ranges, readable
from headgate.connectors.kafka.split import KafkaSplit
from headgate.enumerators.partition import TopicPartition
from headgate.errors import DataLossError
from headgate.source import PlannedRange

Plan = list[PlannedRange[KafkaSplit]]


def split(number: int, position: int, stop: int | None = None, topic_id: str | None = "first") -> KafkaSplit:
    return KafkaSplit(
        split_id=f"t-{number}", topic="t", partition=number, position=position, stop=stop, topic_id=topic_id
    )


def ends(*latest: int) -> dict[TopicPartition, int]:
    return {TopicPartition("t", number): offset for number, offset in enumerate(latest)}


def available(*latest: int, earliest: dict[int, int] | None = None, topic_id: str = "first") -> Available:
    first = {TopicPartition("t", number): offset for number, offset in (earliest or {}).items()}
    return Available(latest=ends(*latest), earliest=first, topic_ids={"t": topic_id})


def plan(splits: list[KafkaSplit], there: Available, max_rows: int | None = None, fail: bool = True) -> Plan:
    return plan_ranges(splits, there, max_rows, fail_on_data_loss=fail)


def sizes(planned: Plan) -> dict[str, int]:
    return {each.split.split_id: each.split.remaining().rows or 0 for each in planned}


def test_a_range_is_what_is_there_and_the_rest_begins_after_it() -> None:
    (planned,) = plan([split(0, 5), split(1, 7)], available(9, 7))
    assert planned.split == split(0, 5, 9)
    assert planned.rest == split(0, 9)


def test_a_stop_is_never_passed_and_ends_the_split() -> None:
    planned = plan([split(0, 5, 8), split(1, 5, 8), split(2, 8, 8)], available(20, 8, 20))
    assert [(each.split, each.rest) for each in planned] == [
        (split(0, 5, 8), None),
        (split(1, 5, 8), None),
        (split(2, 8, 8), None),
    ]
    (planned_part,) = plan([split(0, 5, 8)], available(20), max_rows=2)
    assert (planned_part.split, planned_part.rest) == (split(0, 5, 7), split(0, 7, 8))


def test_a_limit_is_shared_in_proportion_to_what_waits() -> None:
    splits = [split(0, 0), split(1, 0), split(2, 0), split(3, 0)]
    assert sizes(plan(splits, available(8000, 4000, 3, 0), max_rows=1200)) == {"t-0": 799, "t-1": 400, "t-2": 1}
    assert sizes(plan(splits, available(8000, 4000, 3, 0), max_rows=99_999)) == {"t-0": 8000, "t-1": 4000, "t-2": 3}


WAITING = st.lists(st.integers(0, 10_000), max_size=12)


@given(WAITING, st.integers(1, 20_000))
def test_a_limit_holds_and_everybody_with_something_gets_something(waiting: list[int], max_rows: int) -> None:
    planned = sizes(plan([split(number, 0) for number in range(len(waiting))], available(*waiting), max_rows))
    hungry = [number for number, rows in enumerate(waiting) if rows]
    assert all(rows <= waiting[int(split_id.removeprefix("t-"))] for split_id, rows in planned.items())
    assert len(planned) == min(len(hungry), max_rows)
    assert all(planned.values())
    assert sum(planned.values()) == min(max_rows, sum(waiting))


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=9), st.integers(1, 8))
def test_partitions_take_turns_where_there_are_more_of_them_than_rows(start: list[int], max_rows: int) -> None:
    """One partition with a single row is read, however much others have and go on getting."""
    max_rows = min(max_rows, len(start) - 1)
    splits = {f"t-{number}": split(number, position) for number, position in enumerate(start)}
    read: set[str] = set()
    for _ in range(-(-len(start) // max_rows)):
        latest = [each.position + 10**6 for each in splits.values()]
        for planned in plan(list(splits.values()), available(*latest), max_rows):
            assert planned.rest is not None
            splits[planned.rest.split_id] = planned.rest
            read.add(planned.rest.split_id)
    assert read == splits.keys()


# -- lost data ----------------------------------------------------------------------------------------------------

LOSSES = {
    "deleted": (split(0, 5), available(), "does not exist", "nothing", None),
    "recreated": (split(0, 5), available(9, earliest={0: 2}, topic_id="second"), "created again", "2 to 9", (2, 9)),
    "truncated": (split(0, 5), available(4), r"ends before it", r"\? to 4", (None, 4)),
    "truncated below the stop": (split(0, 5, 8), available(7, earliest={0: 0}), "ends before it", "0 to 7", (0, 7)),
    "expired": (split(0, 5), available(9, earliest={0: 6}), "deleted before they were read", "6 to 9", (6, 9)),
}


@pytest.mark.parametrize("case", LOSSES)
def test_lost_data_is_an_error_that_names_it(case: str) -> None:
    lost, there, what, found, facts = LOSSES[case]
    with pytest.raises(
        DataLossError, match=f"topic 't', partition 0, are gone: .*{what}.* Available: {found}"
    ) as raised:
        plan([lost], there)
    assert "failOnDataLoss" in str(raised.value)
    assert (raised.value.topic, raised.value.partition) == ("t", 0)
    assert raised.value.wanted == (5, lost.stop)
    assert raised.value.available == facts


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("deleted", (split(0, 5, 5), None)),
        ("recreated", (split(0, 2, 9, "second"), split(0, 9, None, "second"))),
        ("truncated", (split(0, 4, 4), split(0, 4))),
        ("truncated below the stop", (split(0, 5, 7), None)),
        ("expired", (split(0, 6, 9), split(0, 9))),
    ],
)
def test_with_leave_to_lose_data_the_read_goes_on(
    case: str, expected: tuple[KafkaSplit, KafkaSplit | None], caplog: pytest.LogCaptureFixture
) -> None:
    lost, there, what, _, _ = LOSSES[case]
    with caplog.at_level(logging.WARNING):
        (planned,) = plan([lost], there, fail=False)
    assert (planned.split, planned.rest) == expected
    assert what.replace("\\", "") in caplog.text
    if planned.rest is not None:
        assert plan([planned.rest], there, fail=False) == [], "the loss is met once"


@pytest.mark.parametrize("position", [3, 12])
def test_a_range_up_to_a_stop_ends_where_its_topic_is_another_one(position: int) -> None:
    """What follows an AvailableNow target meets the new topic in a later run."""
    there = available(9, earliest={0: 0}, topic_id="second")
    (planned,) = plan([split(0, position, 20)], there, fail=False)
    assert (planned.split, planned.rest) == (split(0, position, position), None)


def test_a_topic_made_again_and_still_empty_is_recorded_at_once() -> None:
    there = available(0, earliest={0: 0}, topic_id="second")
    (planned,) = plan([split(0, 5)], there, fail=False)
    assert (planned.split, planned.rest) == (split(0, 0, 0, "second"), split(0, 0, None, "second"))


def test_after_an_open_transaction_nothing_is_lost_and_nothing_is_read() -> None:
    """With ``read_committed`` the latest offset is where the first open transaction begins."""
    at = TopicPartition("rides", 0)
    waits = KafkaSplit(split_id="rides-0", topic="rides", partition=0, position=8)
    available = Available(latest={at: 5}, earliest={at: 0}, ends={at: 9})
    assert plan_ranges([waits], available, None, fail_on_data_loss=True) == []
    with pytest.raises(DataLossError, match=r"0 to 7"):
        plan_ranges([waits], Available(latest={at: 5}, earliest={at: 0}, ends={at: 7}), None, fail_on_data_loss=True)


def test_what_is_read_to_its_stop_has_lost_nothing() -> None:
    (planned,) = plan([split(0, 5, 5)], available())
    assert (planned.split, planned.rest) == (split(0, 5, 5), None)


def test_unknown_topic_ids_say_nothing() -> None:
    there = msgspec.structs.replace(available(9), topic_ids={"t": None})
    assert sizes(plan([split(0, 5), split(0, 5, topic_id=None)][:1], there)) == {"t-0": 4}
    assert sizes(plan([split(0, 5, topic_id=None)], available(9, topic_id="second"))) == {"t-0": 4}


def test_lag() -> None:
    assert lag([split(0, 5), split(1, 7), split(2, 0), split(9, 1)], ends(9, 7, 100)) == {
        "minOffsetsBehindLatest": 0,
        "maxOffsetsBehindLatest": 100,
        "avgOffsetsBehindLatest": 34,
        "rowsBehind": 104,
    }
    assert lag([], ends(9)) == {}


# -- event time ------------------------------------------------------------------------------------------------------


def aligned(splits: list[KafkaSplit], before: dict[int, int], max_rows: int | None = None, fail: bool = True) -> Plan:
    ends_at = {TopicPartition("t", number): offset for number, offset in before.items()}
    there = available(100, 100, 100, earliest={0: 10})
    return plan_ranges(splits, there, max_rows, fail_on_data_loss=fail, before=ends_at)


def test_no_range_reaches_the_offset_that_is_too_late() -> None:
    splits = [split(0, 20), split(1, 20), split(2, 20)]
    assert sizes(aligned(splits, {0: 50, 1: 500})) == {"t-0": 30, "t-1": 80, "t-2": 80}
    assert sizes(aligned(splits, {0: 20, 1: 0})) == {"t-2": 80}
    assert aligned(splits, dict.fromkeys(range(3), 0)) == []


def test_a_limit_is_shared_among_those_that_may_be_read() -> None:
    splits = [split(0, 20), split(1, 20), split(2, 20)]
    assert sizes(aligned(splits, {0: 30, 1: 0}, max_rows=45)) == {"t-0": 6, "t-2": 39}


def test_a_split_held_before_its_stop_is_not_finished_and_one_that_reaches_it_is() -> None:
    assert aligned([split(0, 20, 30)], {0: 20}) == []
    (planned,) = aligned([split(0, 20, 30)], {0: 25})
    assert (planned.split, planned.rest) == (split(0, 20, 25), split(0, 25, 30))
    (planned,) = aligned([split(0, 20, 30)], {0: 60})
    assert (planned.split, planned.rest) == (split(0, 20, 30), None)


def test_alignment_changes_nothing_about_lost_data() -> None:
    with pytest.raises(DataLossError):
        aligned([split(0, 5)], {0: 0})
    (planned,) = aligned([split(0, 5)], {0: 0}, fail=False)
    assert (planned.split, planned.rest) == (split(0, 10, 10), split(0, 10)), "it moves on, and reads nothing yet"
    (planned,) = aligned([split(0, 5)], {0: 15}, fail=False)
    assert (planned.split, planned.rest) == (split(0, 10, 15), split(0, 15))


def test_what_can_be_read_now_begins_after_what_was_lost() -> None:
    there = available(100, 100, earliest={0: 10})
    splits = [split(0, 5), split(0, 5, 8), split(1, 100), split(1, 99), split(1, 7, 7), split(2, 0)]
    assert readable(splits, there) == [split(0, 10), split(1, 99)]
