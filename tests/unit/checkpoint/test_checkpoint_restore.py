"""What a query is restored with: the same program or another, at any parallelism."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.checkpoint.manifest import Manifest, SourceEntry, UncommittedEpoch
from headgate.checkpoint.restore import restore
from headgate.coordinator.job.job_plan import JobPlan, SourcePlan
from headgate.errors import OptionError, StoredStateError
from headgate.protocol.messages import CheckpointKind
from headgate.protocol.state import FinishedSplit, InlineState, OperatorState, ReaderState, SplitState, SubtaskState

STAGES = (("rides", "parse", "sink"),)


def plan(parallelism: int, stages: tuple[tuple[str, ...], ...] = STAGES, **fixed: Any) -> JobPlan:
    return JobPlan(
        sources={
            uid: SourcePlan(name="numbers", reassigns_on_recovery=False, fixed=fixed)
            for stage in stages for uid in stage if uid in ("rides", "taxis")
        },
        stages=stages, parallelism=parallelism, max_parallelism=128, query_id="q", run=4,
    )  # fmt: skip


def subtask(splits: list[str], finished: list[str], items: list[bytes], *, ended: bool = False) -> SubtaskState:
    return SubtaskState(
        readers={
            "rides": ReaderState(
                splits=tuple(SplitState(each, each.encode()) for each in splits),
                finished=tuple(FinishedSplit(each, number) for number, each in enumerate(finished, 4)),
            )
        },
        operators={"parse": OperatorState(items=tuple(map(InlineState, items)))},
        input_ended=ended,
    )


def manifest(*subtasks: SubtaskState, **more: Any) -> Manifest:
    fields: dict[str, Any] = {
        "checkpoint_id": 7, "epoch": 5, "kind": CheckpointKind.CHECKPOINT, "query_id": "q", "run": 3, "created_ms": 0,
        "parallelism": len(subtasks), "max_parallelism": 128, "stages": STAGES, "subtasks": (subtasks,),
        "sources": {"rides": SourceEntry(name="numbers", enumerator=InlineState(b"e"), fixed={})},
        "commits": {"sink": (b"c",)}, "uncommitted": (UncommittedEpoch(4, {"sink": (b"b",)}),),
    }  # fmt: skip
    return Manifest(**fields | more)


def splits(state: SubtaskState) -> list[str]:
    return [each.split_id for each in state.readers.get("rides", ReaderState()).splits]


def finished(restored: Manifest) -> list[str]:
    return sorted(
        each.split_id for state in restored.subtasks[0] for reader in state.readers.values() for each in reader.finished
    )


def items(restored: Manifest) -> Iterator[bytes]:
    for state in restored.subtasks[0]:
        for item in state.operators.get("parse", OperatorState()).items:
            assert isinstance(item, InlineState)
            yield item.data


TWO = manifest(subtask(["a", "d"], ["x"], [b"1", b"2"]), subtask(["b", "c", "e"], ["y", "z"], [b"3"]))


def test_at_the_same_parallelism_nothing_moves() -> None:
    assert restore(TWO, plan(2)) == TWO


def test_at_another_parallelism_splits_and_items_are_dealt_round_robin() -> None:
    restored = restore(TWO, plan(3))
    assert [splits(state) for state in restored.subtasks[0]] == [["a", "d"], ["b", "e"], ["c"]]
    assert sorted(items(restored)) == [b"1", b"2", b"3"]
    assert finished(restored) == finished(TWO) == ["x", "y", "z"]
    assert (restored.parallelism, restored.checkpoint_id, restored.epoch) == (3, 7, 5)
    assert restored.commits == TWO.commits and restored.uncommitted == TWO.uncommitted


@given(st.lists(st.lists(st.integers(0, 999), max_size=9), min_size=1, max_size=5), st.integers(1, 7))
def test_nothing_is_lost_or_doubled_whatever_the_parallelism(lists: list[list[int]], parallelism: int) -> None:
    ids: set[str] = set()
    states = []
    for each in lists:
        new = [f"{n:03}" for n in dict.fromkeys(each) if f"{n:03}" not in ids]
        ids |= set(new)
        states.append(subtask(new, [f"f{each}" for each in new], [each.encode() for each in new]))
    restored = restore(manifest(*states), plan(parallelism))
    dealt = [splits(state) for state in restored.subtasks[0]]
    assert len(dealt) == parallelism
    assert (
        sorted(each for one in dealt for each in one)
        == sorted(ids)
        == sorted(each.decode() for each in items(restored))
    )
    assert finished(restored) == sorted(f"f{each}" for each in ids)
    if parallelism != len(lists):
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
        for state in restored.subtasks[0]:
            reported = state.readers.get("rides", ReaderState()).finished
            assert [each.number for each in reported] == list(range(1, len(reported) + 1))


@pytest.mark.parametrize("parallelism", [1, 2])
def test_what_is_new_starts_afresh_and_has_not_ended(parallelism: int) -> None:
    ended = manifest(subtask([], [], [], ended=True), subtask([], [], [], ended=True))
    assert all(state.input_ended for state in restore(ended, plan(parallelism)).subtasks[0])
    wider = plan(parallelism, (("rides", "taxis", "cut", "parse", "sink"),))
    restored = restore(ended, wider)
    assert "taxis" not in restored.sources
    assert not any(state.input_ended or "taxis" in state.readers for state in restored.subtasks[0])


def test_one_of_two_has_ended() -> None:
    half = manifest(subtask([], [], [], ended=True), subtask(["b"], [], []))
    assert [state.input_ended for state in restore(half, plan(2)).subtasks[0]] == [True, False]
    assert [state.input_ended for state in restore(half, plan(1)).subtasks[0]] == [False]


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_what_the_writers_of_bad_records_owe_is_lost_by_no_stage(parallelism: int, stages: int) -> None:
    """Every stage has some, which may publish on the slots."""

    def owing(item: bytes) -> SubtaskState:
        return SubtaskState(operators={"bad-records": OperatorState(items=(InlineState(item),))})

    stored = manifest(
        parallelism=2,
        stages=(("rides", "parse", "bad-records"), ("sink", "bad-records")),
        subtasks=((owing(b"a"), owing(b"b")), (owing(b"c"), owing(b"d"))),
    )
    uids = [("rides", "parse"), ("count",), ("more",)][:stages]
    planned = tuple((*uid, *(("sink",) if n == stages - 1 else ()), "bad-records") for n, uid in enumerate(uids))
    restored = restore(stored, plan(parallelism, planned))
    found = [
        [item.data for subtask in stage for item in subtask.operators["bad-records"].items]  # type: ignore[union-attr]
        for stage in restored.subtasks
        if any("bad-records" in subtask.operators for subtask in stage)
    ]
    assert sorted(item for stage in found for item in stage) == [b"a", b"b", b"c", b"d"]
    if stages > 1:
        assert found == [[b"a", b"b"], [b"c", b"d"]]


def test_what_is_left_over_is_named_unless_it_may_be_dropped() -> None:
    other = plan(2, (("taxis", "other"),))
    with pytest.raises(StoredStateError, match="'parse', 'rides', 'sink'") as caught:
        restore(TWO, other)
    assert caught.value.left_over == ("parse", "rides", "sink")
    restored = restore(TWO, other, allow_non_restored_state=True)
    assert (restored.sources, restored.commits, restored.uncommitted) == ({}, {}, (UncommittedEpoch(4, {}),))
    assert restored.subtasks == ((SubtaskState(), SubtaskState()),)


def test_an_operator_without_state_may_go() -> None:
    empty = manifest(subtask(["a"], [], []), commits={}, uncommitted=())
    assert splits(restore(empty, plan(1, (("rides",),))).subtasks[0][0]) == ["a"]


def test_options_that_may_not_change_are_named_all_of_them() -> None:
    @dataclasses.dataclass
    class Start:
        at: int

    stored = {
        "rides": SourceEntry(name="numbers", enumerator=InlineState(b"e"), fixed={"topics": ["a"], "at": {"at": 1}})
    }
    before = manifest(subtask([], [], []), sources=stored)
    restore(before, plan(1, topics=("a",), at=Start(1)))
    with pytest.raises(OptionError, match=r"'at' of source 'rides' was \{'at': 1\}.*'topics'.*\['a'\].*None") as caught:
        restore(before, plan(1, at=Start(2)))
    assert caught.value.options == ("at", "topics")
    with pytest.raises(OptionError, match="'max-parallelism'"):
        restore(manifest(subtask([], [], []), max_parallelism=64), plan(1))


def test_a_uid_that_means_another_source_now_is_refused() -> None:
    stored = {"rides": SourceEntry(name="headgate.kafka", enumerator=InlineState(b"e"))}
    with pytest.raises(StoredStateError, match=r"source headgate\.kafka under the name 'rides'"):
        restore(manifest(subtask([], [], []), sources=stored), plan(1))
