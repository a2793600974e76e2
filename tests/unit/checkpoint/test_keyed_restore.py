"""What a query with exchanges is restored with: keyed state by key group, channel state as it is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.checkpoint.channel_assignment import ExchangePlan
from headgate.checkpoint.manifest import Manifest, SourceEntry
from headgate.checkpoint.restore import restore
from headgate.coordinator.job.job_plan import JobPlan, SourcePlan
from headgate.errors import StoredStateError
from headgate.protocol.key_groups import key_group_range
from headgate.protocol.messages import CheckpointKind
from headgate.protocol.state import ChannelState, ChunkState, InlineState, KeyedState, SubtaskState

STAGES = (("rides", "parse"), ("window", "sink"))
MAX = 32


def exchange(kind: str) -> ExchangePlan:
    return ExchangePlan(kind=kind, producer_stage=0, consumer_stage=1)


def plan(parallelism: int, kind: str = "hash", **more: Any) -> JobPlan:
    fields: dict[str, Any] = {
        "sources": {"rides": SourcePlan(name="numbers", reassigns_on_recovery=False)},
        "stages": STAGES, "parallelism": parallelism, "max_parallelism": MAX, "query_id": "q", "run": 4,
        "exchanges": {"by-user": exchange(kind)},
    }  # fmt: skip
    return JobPlan(**fields | more)


def chunk(name: str, first: int, last: int) -> ChunkState:
    return ChunkState(chunk_id=name, handle=InlineState(name.encode()), first_key_group=first, last_key_group=last)


def chunks_of(subtask: int, parallelism: int) -> KeyedState:
    """Return two chunks: of all the subtask's key groups, and of its first one."""
    own = key_group_range(subtask, parallelism, MAX)
    return KeyedState(
        chunks=(chunk(f"{subtask}-all", own.first, own.last), chunk(f"{subtask}-first", own.first, own.first))
    )


CHANNEL = ChannelState(
    exchange="by-user", producer=0, consumer=1, output=True, handle=InlineState(b"x"), buffers=1, rows=2, size_bytes=3
)  # fmt: skip


def manifest(parallelism: int, *, ended: bool = False, **more: Any) -> Manifest:
    numbers = range(parallelism)
    fields: dict[str, Any] = {
        "checkpoint_id": 7, "epoch": 5, "kind": CheckpointKind.CHECKPOINT, "query_id": "q", "run": 3, "created_ms": 0,
        "parallelism": parallelism, "max_parallelism": MAX, "stages": STAGES,
        "sources": {"rides": SourceEntry(name="numbers", enumerator=InlineState(b"e"), fixed={})},
        "subtasks": (
            tuple(SubtaskState(input_ended=ended) for _ in numbers),
            tuple(SubtaskState(keyed={"window": chunks_of(n, parallelism)}, input_ended=ended) for n in numbers),
        ),
        "exchanges": {"by-user": exchange("hash")}, "channels": (CHANNEL,), "channels_parallelism": parallelism,
    }  # fmt: skip
    return Manifest(**fields | more)


def test_at_the_same_parallelism_keyed_state_stays_where_it_was() -> None:
    """Nothing is read, nothing moves."""
    assert restore(manifest(3), plan(3)) == manifest(3)


@given(st.integers(1, 12), st.integers(1, 12))
def test_every_subtask_gets_the_chunks_with_keys_of_its_own_in_their_order(before: int, now: int) -> None:
    """Also those that had no state before, and none that only others need."""
    restored = restore(manifest(before), plan(now))
    assert len(restored.subtasks[1]) == restored.parallelism == now
    every = [each for n in range(before) for each in chunks_of(n, before).chunks]
    for number, state in enumerate(restored.subtasks[1]):
        own = key_group_range(number, now, MAX)
        wanted = [
            each for each in every if any(each.first_key_group <= group <= each.last_key_group
                                          for group in range(own.first, own.last + 1))
        ]  # fmt: skip
        assert list(state.keyed["window"].chunks) == (
            wanted if before != now else list(chunks_of(number, before).chunks)
        )


def test_channel_state_keeps_the_numbers_of_its_checkpoint() -> None:
    """It is dealt out when subtasks are deployed."""
    restored = restore(manifest(3), plan(2))
    assert (restored.channels, restored.channels_parallelism, restored.parallelism) == ((CHANNEL,), 3, 2)
    again = restore(restored, plan(4))
    assert (again.channels, again.channels_parallelism, again.parallelism) == ((CHANNEL,), 3, 4)


def test_rows_on_their_way_through_an_exchange_that_is_another_now_are_an_error() -> None:
    """Without such rows, as in a savepoint, it may be another."""
    with pytest.raises(StoredStateError, match="'by-user' of the kind 'hash', which is now of the kind 'broadcast'"):
        restore(manifest(2), plan(2, "broadcast"))
    restored = restore(manifest(2, channels=()), plan(2, "broadcast"))
    assert restored.exchanges == {"by-user": exchange("broadcast")}


@pytest.mark.parametrize(
    ("uid", "message"),
    [
        ("by-user", r"the exchange 'by-user', sum\(n\) by user string; now .* by city string. .* a savepoint"),
        ("window", r"'window', which was sum\(n\) by user string; now .* by city string. .* 'allowNonRestoredState'"),
    ],
)
def test_state_of_other_keys_windows_or_aggregates_is_an_error(uid: str, message: str) -> None:
    """What it was and what it is are in the message; without such state, or a word of it, nothing is refused."""
    was, now = {uid: "sum(n) by user string"}, {uid: "sum(n) by city string"}
    with pytest.raises(StoredStateError, match=message):
        restore(manifest(2, signatures=was), plan(2, signatures=now))
    assert restore(manifest(2, signatures=was), plan(2, signatures=was)).signatures == was
    assert restore(manifest(2), plan(2, signatures=now)).signatures == now
    nothing = tuple((SubtaskState(), SubtaskState()) for _ in STAGES)
    restore(manifest(2, signatures=was, subtasks=nothing, channels=()), plan(2, signatures=now))


def test_keyed_and_channel_state_of_names_that_are_gone_is_left_over() -> None:
    """It is dropped only if that is allowed."""
    other = plan(2, stages=(("rides", "parse"), ("other", "sink")), exchanges={"by-hour": exchange("hash")})
    with pytest.raises(StoredStateError) as caught:
        restore(manifest(2), other)
    assert caught.value.left_over == ("by-user", "window")
    restored = restore(manifest(2), other, allow_non_restored_state=True)
    assert restored.channels == () and restored.subtasks[1] == (SubtaskState(), SubtaskState())


def test_chunks_of_another_query_get_names_that_this_one_never_gives() -> None:
    """Its savepoint: both count their runs from 1, and so do the names that they give."""
    for parallelism in (2, 3):
        restored = restore(manifest(2, query_id="other", channels=()), plan(parallelism))
        names = [each.chunk_id for state in restored.subtasks[1] for each in state.keyed["window"].chunks]
        assert all(name.startswith("other.") for name in names)


def test_who_consumes_from_a_source_that_is_new_has_not_ended() -> None:
    """Whoever sends to it has not, either."""
    assert all(each.input_ended for stage in restore(manifest(2, ended=True), plan(3)).subtasks for each in stage)
    wider = plan(
        2, stages=(("rides", "taxis", "parse"), ("window", "sink")),
        sources={uid: SourcePlan(name="numbers", reassigns_on_recovery=False) for uid in ("rides", "taxis")},
    )  # fmt: skip
    assert not any(each.input_ended for stage in restore(manifest(2, ended=True), wider).subtasks for each in stage)
    half = manifest(2, ended=True)
    readers = (SubtaskState(input_ended=True), SubtaskState())
    half = msgspec.structs.replace(half, subtasks=(readers, half.subtasks[1]), channels=())
    assert [each.input_ended for each in restore(half, plan(2)).subtasks[1]] == [False, False]
    assert [each.input_ended for each in restore(half, plan(2, "forward")).subtasks[1]] == [True, False]
