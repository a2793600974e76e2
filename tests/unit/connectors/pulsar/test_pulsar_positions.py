"""Message ids as positions, and what ledgers say: what there is, how far a plan goes, whether anything was lost."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.pulsar.ledgers import Ledger, Ledgers, is_lost, remembered
from headgate.connectors.pulsar.planning import ends_now, planned, within_bytes
from headgate.connectors.pulsar.position import WHOLE_ENTRY, Position, after_message, before_message, is_beyond
from headgate.connectors.pulsar.split import (
    NOT_PARTITIONED,
    SPLIT_SERIALIZER,
    STATE_SERIALIZER,
    PulsarSplit,
    PulsarState,
)

NAME = "persistent://public/default/rides"
SPLIT = PulsarSplit(
    split_id=f"{NAME}-partition-11", topic=NAME, partition=11, position=Position(9, 3, 2), stop=Position(12, 7),
    backlog_bytes=4096,
)  # fmt: skip
STATE = PulsarState(
    initial_discovery_finished=True,
    unassigned=(PulsarSplit(split_id=f"{NAME}-fares", topic=f"{NAME}-fares", partition=NOT_PARTITIONED), SPLIT),
    assigned={NAME: ((1, 0), (2, None))},
    parallelism=3,
    owners={SPLIT.split_id: 2},
)
LEDGERS = Ledgers((Ledger(5, 10, 1000), Ledger(8, 0, 0), Ledger(9, 4, 800)))


def message_id(ledger: int, entry: int, index: int | None = None, size: int = 0) -> bytes:
    """Return a message id as Pulsar's client writes it: ids below 128 are one byte each."""
    batch = b"" if index is None else bytes([0x20, index, 0x30, size])
    return bytes([0x08, ledger, 0x10, entry, 0x18, 0]) + batch


@pytest.mark.parametrize(
    ("data", "after", "before"),
    [
        (message_id(9, 3), Position(9, 3), Position(9, 2)),
        (message_id(9, 0), Position(9, 0), Position(9, -1)),
        (message_id(9, 3, 0, 5), Position(9, 3, 0), Position(9, 2)),
        (message_id(9, 3, 2, 5), Position(9, 3, 2), Position(9, 3, 1)),
        (message_id(9, 3, 4, 5), Position(9, 3), Position(9, 3, 3)),
        (bytes([0x08, 0xAC, 0x02, 0x10, 0x01]), Position(300, 1), Position(300, 0)),
    ],
)
def test_positions_of_message_ids(data: bytes, after: Position, before: Position) -> None:
    assert (after_message(data), before_message(data)) == (after, before)


@pytest.mark.parametrize(
    ("data", "stop", "beyond"),
    [
        (message_id(9, 3, 2, 5), message_id(9, 3, 2, 5), False),
        (message_id(9, 3, 3, 5), message_id(9, 3, 2, 5), True),
        (message_id(9, 3, 2, 5), message_id(9, 3, 2), False),
        (message_id(9, 3, 3, 5), message_id(9, 3, 2), True),
        (message_id(9, 3, 4, 5), message_id(9, 3, 4), False),
        (message_id(9, 3, 4, 5), message_id(9, 3, 4, 5), False),
        (message_id(9, 3, 4, 5), message_id(9, 3), False),
        (message_id(9, 4, 0, 5), message_id(9, 3, 4), True),
        (message_id(9, 3), message_id(9, 3), False),
        (message_id(9, 3), message_id(9, 3, 0), False),
        (message_id(9, 4), message_id(9, 3), True),
    ],
)
def test_a_message_that_is_named_as_the_end_is_read_and_the_next_one_is_not(
    data: bytes, stop: bytes, beyond: bool
) -> None:
    """Whether or not the end's id has the size of its batch: 0 is how one without is written here."""
    assert is_beyond(data, after_message(stop)) is beyond


@pytest.mark.parametrize("data", [b"", b"\x08", b"\x08\x09", b"\xff\xff", b"nonsense"])
def test_what_is_no_message_id(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"MessageId\.serialize"):
        after_message(data)


def test_a_real_client_writes_what_is_parsed() -> None:
    pulsar = pytest.importorskip("pulsar")
    for index in (-1, 0, 7):
        data = pulsar._pulsar.MessageId(2, 70_000, 3, index).serialize()
        assert after_message(data) == Position(70_000, 3, WHOLE_ENTRY if index < 0 else index)


def test_positions_are_in_the_order_of_messages() -> None:
    places = [Position(5, -1), Position(5, 0, 0), Position(5, 0, 3), Position(5, 0), Position(5, 1), Position(9, -1)]
    assert sorted(places) == places
    assert [str(each) for each in places[:4]] == ["5:-1", "5:0:0", "5:0:3", "5:0"]


def test_what_there_is() -> None:
    assert (LEDGERS.beginning, LEDGERS.end) == (Position(5, -1), Position(9, 3))
    assert (Ledgers(()).beginning, Ledgers(()).end) == (None, None)
    assert LEDGERS.entries_after(None) == 14
    assert LEDGERS.entries_after(Position(5, 3, 1)) == 11, "an entry that is read in part is still to be read"
    assert LEDGERS.entries_after(Position(5, 3)) == 10
    assert LEDGERS.bytes_after(Position(5, 4)) == 500 + 800
    assert not LEDGERS.has_entries_after(Position(9, 3))


@pytest.mark.parametrize(
    ("end", "last"),
    [
        (Position(9, 3), Position(9, 3)),
        (Position(9, 2, 1), Position(9, 2, 1)),
        (Position(9, 40), Position(9, 3)),
        (Position(9, -1), Position(5, 9)),
        (Position(8, -1), Position(5, 9)),
        (Position(5, -1), None),
        (Position(3, 7), None),
    ],
)
def test_the_last_entry_up_to_an_end(end: Position, last: Position | None) -> None:
    assert LEDGERS.last_entry(end) == last


@pytest.mark.parametrize(
    ("after", "most", "reached"),
    [
        (None, 1, Position(5, 0)),
        (None, 350, Position(5, 2)),
        (None, 1000, Position(5, 9)),
        (None, 1200, Position(9, 0)),
        (Position(5, 8, 0), 1, Position(5, 8)),
        (Position(5, 8), 1, Position(5, 9)),
        (Position(5, 8), 99, Position(5, 9)),
        (Position(5, 9), 10_000, Position(9, 3)),
        (Position(9, 3), 10_000, None),
    ],
)
def test_how_far_bytes_reach(after: Position | None, most: int, reached: Position | None) -> None:
    assert LEDGERS.advance(after, most) == reached


NOW = Ledgers((Ledger(8, 2, 20), Ledger(9, 4, 40)))
KNOWN = Ledgers((Ledger(5, 10, 1000), *NOW.ledgers))


@pytest.mark.parametrize(
    ("last", "following", "known", "now", "lost"),
    [
        pytest.param(Position(5, 3), Position(5, 4), LEDGERS, Ledgers(()), False, id="the same ledger"),
        pytest.param(Position(5, 3), Position(9, 0), LEDGERS, LEDGERS, False, id="its ledger is still there"),
        pytest.param(Position(5, 9), Position(8, 0), LEDGERS, NOW, False, id="read to its end, then its successor"),
        pytest.param(Position(5, 9), None, LEDGERS, NOW, False, id="the successor is there"),
        pytest.param(Position(5, 8), Position(8, 0), LEDGERS, NOW, True, id="an entry of it was not read"),
        pytest.param(Position(5, 9, 0), Position(8, 0), LEDGERS, NOW, True, id="a message of it was not read"),
        pytest.param(Position(5, 9), Position(9, 0), KNOWN, NOW, True, id="a ledger between was left out"),
        pytest.param(Position(5, 9), Position(9, 0), LEDGERS, NOW, False, id="one between had no entries"),
        pytest.param(Position(6, -1), None, LEDGERS, LEDGERS, False, id="an older one is there"),
        pytest.param(Position(9, 3), Position(12, 0), LEDGERS, Ledgers((Ledger(12, 1, 1),)), True, id="it was open"),
        pytest.param(Position(7, 3), Position(8, 0), LEDGERS, NOW, True, id="it is not known"),
        pytest.param(Position(5, 9), None, LEDGERS, Ledgers(()), True, id="nothing is there"),
    ],
)
def test_whether_messages_were_lost(
    last: Position, following: Position | None, known: Ledgers, now: Ledgers, lost: bool
) -> None:
    assert is_lost(last, following, known, now) is lost


IDLE = Ledgers((Ledger(5, 10, 1000), Ledger(8, 0, 0)))


@pytest.mark.parametrize(
    ("position", "known", "now", "expected"),
    [
        pytest.param(Position(5, 9), IDLE, Ledgers(IDLE.ledgers[1:]), IDLE, id="only an empty one is left"),
        pytest.param(Position(8, -1), KNOWN, NOW, NOW, id="before the position: of no use"),
        pytest.param(Position(5, 9), IDLE, Ledgers((Ledger(9, 1, 1),)), Ledgers((Ledger(9, 1, 1),)), id="a gap"),
        pytest.param(None, IDLE, Ledgers(IDLE.ledgers[1:]), Ledgers(IDLE.ledgers[1:]), id="nothing was read"),
        pytest.param(Position(5, 9), Ledgers(()), NOW, NOW, id="nothing was known"),
        pytest.param(Position(5, 9), IDLE, Ledgers(()), Ledgers(()), id="nothing is there"),
    ],
)
def test_what_is_known_later_of_ledgers_that_are_gone(
    position: Position | None, known: Ledgers, now: Ledgers, expected: Ledgers
) -> None:
    assert remembered(known, now, position) == expected


def test_an_idle_partition_whose_ledgers_go_has_lost_nothing() -> None:
    last, known = Position(5, 9), IDLE
    for now in (Ledgers(IDLE.ledgers[1:]), Ledgers(IDLE.ledgers[1:]), Ledgers((Ledger(8, 2, 20),))):
        assert not is_lost(last, None, known, now)
        known = remembered(known, now, last)
    assert not is_lost(last, Position(8, 0), known, Ledgers((Ledger(8, 2, 20),)))


def split(position: Position | None = None, stop: Position | None = None, number: int = 0) -> PulsarSplit:
    name = f"{NAME}-partition-{number}"
    return PulsarSplit(split_id=name, topic=NAME, partition=number, position=position, stop=stop)


def test_a_plan_ends_at_the_last_entry() -> None:
    splits = [split(), split(Position(9, 3), number=1), split(Position(5, 2), Position(5, 7), number=2)]
    ends = ends_now(splits, {each.split_id: LEDGERS for each in splits})
    assert ends == {splits[0].split_id: Position(9, 3), splits[2].split_id: Position(5, 7)}
    ranges = planned(splits, ends, {each.split_id: LEDGERS for each in splits})
    assert [each.split.stop for each in ranges] == [Position(9, 3), Position(5, 7)]
    assert ranges[0].rest == split(Position(9, 3))
    assert ranges[1].rest is None, "it has a stop of its own, which is reached"


def test_what_is_read_to_its_stop_already_is_planned_to_be_finished() -> None:
    done = split(Position(5, 7), Position(5, 7))
    assert [(each.split, each.rest) for each in planned([done], {}, {})] == [(done, None)]


def test_positions_before_entries_by_their_numbers() -> None:
    expected = [
        Position(5, -1),
        *(Position(5, each) for each in range(9)),
        *(Position(9, each) for each in range(-1, 4)),
    ]
    assert [LEDGERS.before_entry(number) for number in range(15)] == expected
    for number, position in enumerate(expected):
        assert LEDGERS.entries_after(position) == 14 - number
    with pytest.raises(ValueError, match="no entries"):
        Ledgers((Ledger(5, 0, 0),)).before_entry(0)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 500)), min_size=1, max_size=4),
    st.integers(1, 20_000),
    st.integers(1, 4),
)
def test_bytes_are_a_limit_over_all_partitions(sizes: list[tuple[int, int]], most: int, count: int) -> None:
    ledgers = Ledgers(tuple(Ledger(n, entries, entries * size) for n, (entries, size) in enumerate(sizes)))
    splits = [split(number=number) for number in range(count)]
    by_id = {each.split_id: ledgers for each in splits}
    ends = ends_now(splits, by_id)
    nearer = within_bytes(splits, ends, by_id, most)
    assert bool(nearer) == bool(ends), "something gets on"
    assert all(end <= ends[name] for name, end in nearer.items())
    taken = sum(ledgers.bytes_between(None, end) for end in nearer.values())
    assert taken <= most or len(nearer) == 1
    if most >= count * ledgers.bytes_after(None):
        assert nearer == ends


def test_splits_and_states_are_written_as_ever(repository: Path) -> None:
    for serializer, value, name in ((SPLIT_SERIALIZER, SPLIT, "split"), (STATE_SERIALIZER, STATE, "state")):
        golden = (repository / f"tests/golden/pulsar-{name}-v1.json").read_bytes().strip()
        assert serializer.deserialize(golden) == value  # type: ignore[attr-defined]
        assert serializer.serialize(value) == golden  # type: ignore[attr-defined]


def test_a_split_says_how_much_is_left() -> None:
    assert SPLIT.remaining().bytes == 4096
    assert msgspec.structs.replace(SPLIT, backlog_bytes=None).remaining().bytes is None
