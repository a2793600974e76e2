"""Where channel state goes: each buffer to the same subtask, wherever output is recovered, and in which order."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from headgate.checkpoint import channel_assignment
from headgate.checkpoint.channel_assignment import ExchangePlan, assign_channels, relocated_exchanges
from headgate.errors import InternalError
from headgate.protocol.key_groups import KeyGroupRange, key_group_range, subtask_of
from headgate.protocol.messages import SubtaskId
from headgate.protocol.state import ChannelState, InlineState, RecoveredChannel

MAX = 16
EXCHANGES = {
    "by-key": ExchangePlan(kind="hash", producer_stage=0, consumer_stage=1),
    "spread": ExchangePlan(kind="rebalance", producer_stage=1, consumer_stage=2),
    "three": ExchangePlan(kind="rebalance", producer_stage=2, consumer_stage=3, targets=3),
    "all": ExchangePlan(kind="broadcast", producer_stage=3, consumer_stage=4),
    "own": ExchangePlan(kind="custom", producer_stage=4, consumer_stage=5),
}
PAIRS = list(itertools.product(range(1, 9), range(1, 9)))
Landing = tuple[str, int, int, ChannelState, bool]
"""An exchange, the consumer and the producer of the channel that a buffer is put into, which, and if it is filtered."""


def state(exchange: str, producer: int, consumer: int, *, output: bool) -> ChannelState:
    handle = InlineState(f"{exchange} {producer} {consumer} {output}".encode())
    return ChannelState(
        exchange=exchange, producer=producer, consumer=consumer, output=output, handle=handle,
        buffers=1, rows=1, size_bytes=8,
    )  # fmt: skip


def everything(parallelism: int) -> list[ChannelState]:
    """Return channel state on both sides of every channel."""
    numbers = range(parallelism)
    return [
        state(uid, producer, consumer, output=output)
        for output, uid, producer, consumer in itertools.product((True, False), EXCHANGES, numbers, numbers)
    ]


def assign(
    before: int,
    now: int,
    *,
    on_downstream: bool = True,
    stored: Sequence[ChannelState] | None = None,
    exchanges: Mapping[str, ExchangePlan] = EXCHANGES,
    max_parallelism: int = MAX,
    moving: frozenset[str] = frozenset(),
) -> dict[SubtaskId, tuple[RecoveredChannel, ...]]:
    channels = everything(before) if stored is None else stored
    return assign_channels(
        channels, exchanges, old_parallelism=before, parallelism=now, max_parallelism=max_parallelism,
        on_downstream=on_downstream,
        relocated=relocated_exchanges(channels, old_parallelism=before, parallelism=now, moving=moving),
    )  # fmt: skip


def landings(assigned: dict[SubtaskId, tuple[RecoveredChannel, ...]]) -> list[Landing]:
    """Return where every buffer ends up: those with a consumer at once, those of producers when they were sent."""
    found: list[Landing] = []
    for subtask, recovered in assigned.items():
        for each in recovered:
            exchange = EXCHANGES[each.state.exchange]
            if subtask.stage == exchange.consumer_stage:
                consumer, producer = subtask.subtask, each.channel
            else:
                assert subtask.stage == exchange.producer_stage and each.state.output
                consumer, producer = each.channel, subtask.subtask
            found.append((each.state.exchange, consumer, producer, each.state, each.filtered))
    return found


@pytest.mark.parametrize(("before", "now"), PAIRS)
def test_a_buffer_lands_in_the_same_subtask_with_the_switch_on_and_off(before: int, now: int) -> None:
    """The switch decides who recovers output, not who gets it; with it on producers take on nothing."""
    on, off = assign(before, now, on_downstream=True), assign(before, now, on_downstream=False)
    in_place = before == now
    assert Counter(place(each, in_place) for each in landings(on)) == Counter(
        place(each, in_place) for each in landings(off)
    )
    for subtask, recovered in on.items():
        assert all(EXCHANGES[each.state.exchange].consumer_stage == subtask.stage for each in recovered)
    for _, consumer, producer, each, filtered in landings(on):
        assert 0 <= consumer < now
        assert producer == (each.producer if before == now else 0)
        assert filtered == (before != now and EXCHANGES[each.exchange].kind in ("hash", "custom"))


def place(landing: Landing, in_place: bool) -> str:
    uid, consumer, producer, each, filtered = landing
    return str((uid, consumer, producer if in_place else None, each, filtered))


@pytest.mark.parametrize("on_downstream", [True, False])
@pytest.mark.parametrize(("before", "now"), PAIRS)
def test_every_kind_goes_to_whom_it_must(before: int, now: int, on_downstream: bool) -> None:
    """By key to all who have its keys, rebalanced once, broadcast one copy each, by a function to all."""
    found = landings(assign(before, now, on_downstream=on_downstream))
    owners: dict[str, list[int]] = {}
    for _, consumer, _, each, _ in found:
        assert isinstance(each.handle, InlineState)
        owners.setdefault(each.handle.data.decode(), []).append(consumer)
    for each in everything(before):
        got = owners.get(each.handle.data.decode(), [])  # type: ignore[union-attr]
        old = key_group_range(each.consumer, before, MAX)
        if before == now:
            assert got == [each.consumer]
        elif each.exchange == "by-key":
            assert got == sorted({subtask_of(group, now, MAX) for group in range(old.first, old.last + 1)})
        elif each.exchange == "spread":
            assert got == [each.consumer % now]
        elif each.exchange == "three":
            assert got == [each.consumer % min(3, now)]
        elif each.exchange == "own":
            assert got == list(range(now))
    for consumer in range(now):  # one copy of the stream, that of one old consumer
        copies = {each.consumer for uid, to, _, each, _ in found if (uid, to) == ("all", consumer)}
        assert copies == {consumer % before}


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_of_an_old_pair_input_comes_before_output(parallelism: int) -> None:
    """Whatever the order in which subtasks acknowledged."""
    for recovered in assign(parallelism, parallelism, on_downstream=True).values():
        pairs = [(each.state.exchange, each.state.producer, each.state.consumer) for each in recovered]
        assert pairs == sorted(pairs)
        for first, second in itertools.pairwise(recovered):
            if first.state.producer == second.state.producer and first.state.consumer == second.state.consumer:
                assert first.state.exchange != second.state.exchange or (first.state.output, second.state.output) == (
                    False, True,
                )  # fmt: skip


@pytest.mark.parametrize(("before", "now"), [(2, 5), (5, 2), (8, 3), (1, 8)])
def test_after_a_rescale_all_input_comes_before_all_output_in_one_channel(before: int, now: int) -> None:
    """A row of the output may be of the same key as one of the input, wherever that landed the time before."""
    for recovered in assign(before, now, on_downstream=True).values():
        assert [each.state.output for each in recovered] == sorted(each.state.output for each in recovered)
        assert {each.channel for each in recovered} == {0}
        for old in range(before):
            producers = [each.state.producer for each in recovered if each.state.consumer == old]
            half = len(producers) // 2
            assert producers[:half] == sorted(producers[:half]) == producers[half:]


def test_what_was_relocated_stays_so_until_it_is_processed() -> None:
    """Also at the same parallelism: what follows upon it comes through other channels. Other exchanges keep theirs."""
    stored = [
        state("by-key", 1, 1, output=True),
        msgspec.structs.replace(state("by-key", 0, 1, output=False), relocated=True),
        state("spread", 1, 1, output=False),
    ]
    assert relocated_exchanges(stored, old_parallelism=2, parallelism=2) == {"by-key"}
    assert relocated_exchanges(stored, old_parallelism=2, parallelism=3) == {"by-key", "spread"}
    assigned = assign(2, 2, stored=stored)
    by_key, spread = assigned[SubtaskId(1, 1)], assigned[SubtaskId(2, 1)]
    assert [(each.state, each.channel, each.filtered) for each in by_key] == [
        (stored[1], 0, False),
        (stored[0], 0, False),
    ]
    assert [each.channel for each in spread] == [1]


def test_what_may_come_from_another_producer_after_any_restart_is_relocated_at_the_same_parallelism() -> None:
    """Else new rows of a split, which another reader has now, would pass those in flight."""
    stored = [state("by-key", 1, 1, output=False), state("spread", 1, 1, output=False)]
    moving = frozenset({"by-key"})
    assert relocated_exchanges(stored, old_parallelism=2, parallelism=2, moving=moving) == moving
    assigned = assign(2, 2, stored=stored, moving=moving)
    assert [(each.channel, each.filtered) for each in assigned[SubtaskId(1, 1)]] == [(0, False)]
    assert [each.channel for each in assigned[SubtaskId(2, 1)]] == [1]


@pytest.mark.parametrize("now", [999, 1_000, 2_000])
def test_key_groups_are_looked_up_once_per_subtask_and_not_per_channel(
    now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand subtasks may have a million channels."""
    asked: list[int] = []

    def counting(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
        asked.append(subtask)
        return key_group_range(subtask, parallelism, max_parallelism)

    monkeypatch.setattr(channel_assignment, "key_group_range", counting)
    old = 1_000
    states = [state("by-key", i, j, output=False) for j in range(old) for i in range(0, old, 200)]
    assigned = assign(old, now, stored=states, max_parallelism=4_000)
    assert len(asked) <= 2 * old
    assert len(assigned) == now
    if now == 999:  # of each old range one part, or two, and the same object for both
        taken = [each for recovered in assigned.values() for each in recovered]
        assert len({id(each) for each in taken}) == len(states) < len(taken) <= 2 * len(states)


def test_who_has_no_state_gets_none_and_new_subtasks_get_theirs() -> None:
    """Subtasks beyond the old parallelism take on keys; those that nothing concerns are left out (FLINK-38483)."""
    only = [state("by-key", 0, 1, output=False)]
    assigned = assign(2, 4, stored=only)
    assert sorted(assigned) == [SubtaskId(1, 2), SubtaskId(1, 3)]
    assert assign(0, 4, stored=[]) == {}


def test_an_exchange_whose_barriers_never_pass_rows_has_no_channel_state() -> None:
    """A forward exchange that has is a bug, not something to be dropped."""
    forward = {"f": ExchangePlan(kind="forward", producer_stage=0, consumer_stage=1)}
    with pytest.raises(InternalError, match="'forward'"):
        assign(1, 2, stored=[state("f", 0, 0, output=True)], exchanges=forward)
