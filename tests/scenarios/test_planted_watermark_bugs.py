"""Bugs with watermarks and alignment, planted into a simulated cluster one at a time: some seed finds each.

Those of public tickets are here under their numbers, and a few of our own. A bug is a
subclass or a changed method, in this file only. Where a machine's own `check` would see a bug first it is off, so that
what the bug does to the cluster must show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headgate.coordinator.alignment import alignment_group as group_alignment
from headgate.coordinator.alignment.alignment_group import AlignmentGroup
from headgate.coordinator.job.job_master import JobMaster
from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.enumerator_runner import EnumeratorRunner
from headgate.protocol import messages as msg
from headgate.simulation.planted import Bugs
from headgate.simulation.scenario import Scenario
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from headgate.task import split_alignment as al
from headgate.task import subtask as st
from headgate.task import watermarks as wm
from headgate.task.reader_output import StreamingOutput
from headgate.task.split_alignment import SplitAlignment
from headgate.task.subtask import SubtaskMachine
from headgate.task.watermarks import SplitWatermarks
from tests.scenarios.planted import first_found

NO_END = "no end after|is paused in vain"
IDLE_TOO_SOON = "is idle after"
TOO_HIGH = "the watermark is"
TOO_FAR = "is read at"
NOT_NOTIFIED = "was not notified"


def aligned(each: Scenario) -> bool:
    return each.alignment_group is not None


def plant(monkeypatch: pytest.MonkeyPatch, machine: type[Any], event: type[Any], handler: Callable[..., Any]) -> None:
    """Let a machine handle an event otherwise, in whatever state it takes it."""
    planted = {pair: handler for pair in machine._DISPATCH if pair[1] is event}
    monkeypatch.setattr(machine, "_DISPATCH", machine._DISPATCH | planted)


def test_flink_32414_a_vote_of_a_reader_without_splits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = SplitAlignment.handle

    def with_initial_watermark(machine: Any, event: al.Event, now_ms: int) -> list[al.Action]:
        return [
            al.ReportWatermark(MIN_WATERMARK_MS, "")
            if isinstance(action, al.ReportWatermark) and action.watermark_ms is None and machine.state != "ended"
            else action
            for action in handle(machine, event, now_ms)
        ]

    monkeypatch.setattr(SplitAlignment, "handle", with_initial_watermark)
    first_found(NO_END, 1, of=aligned)


def test_flink_32496_an_idle_split_at_the_maximum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = SplitAlignment.handle

    def at_the_maximum(machine: Any, event: al.Event, now_ms: int) -> list[al.Action]:
        if isinstance(event, al.SplitMoved) and event.idle:
            event = al.SplitMoved(event.split_id, MAX_WATERMARK_MS, False)
        return handle(machine, event, now_ms)

    monkeypatch.setattr(SplitAlignment, "handle", at_the_maximum)
    first_found(NO_END, 1172, of=aligned)


def test_flink_32496_an_idle_split_whose_watermark_is_the_final_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    vote = wm.SplitVote._vote

    def at_the_maximum(split: Any) -> wm.SplitVoteChanged:
        if split.state in ("idle", "own idle"):
            split.state, split.watermark_ms = split.state.replace("idle", "active"), MAX_WATERMARK_MS
        return vote(split)

    monkeypatch.setattr(wm.SplitVote, "_vote", at_the_maximum)
    first_found(TOO_HIGH, 3, of=aligned)


def test_flink_31632_an_overflow_when_everything_is_idle_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrapped(milliseconds: int) -> int:
        return (milliseconds - MIN_WATERMARK_MS) % 2**64 + MIN_WATERMARK_MS

    monkeypatch.setattr(al, "saturated_ms", wrapped)
    monkeypatch.setattr(group_alignment, "saturated_ms", wrapped)
    first_found(NO_END, 2929, of=aligned)


class AnnouncesUntilAllIsAssigned(JobMaster):
    """FLINK-37670: a reader that was notified that no split follows gets no announcements any longer."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._ended: set[tuple[str, int]] = set()
        super().__init__(*arguments, **options)

    def _send(self, slot: int, message: msg.ToSlot) -> None:
        if isinstance(message, msg.NoMoreSplits):
            self._ended.add((message.source, slot))
        if isinstance(message, msg.Deploy):
            self._ended -= {key for key in self._ended if key[1] == slot}
        if not isinstance(message, msg.AlignmentAnnounced) or (message.source, slot) not in self._ended:
            super()._send(slot, message)


class ReportsUntilAllIsAssigned(SubtaskMachine):
    """FLINK-37670: a reader that was notified that no split follows does not report any longer."""

    def handle(self, event: st.Event, now_ms: int) -> list[st.Action]:
        if isinstance(event, st.WatermarkFound) and event.source in getattr(self, "ended", set()):
            return []
        actions = super().handle(event, now_ms)
        for action in actions:
            if isinstance(action, st.NotifyNoMoreSplits):
                self.ended = {*getattr(self, "ended", set()), action.source}
            if isinstance(action, st.OpenOperators):
                self.ended = set()
        return actions


@pytest.mark.parametrize(
    ("bugs", "seed"),
    [({JobMaster: AnnouncesUntilAllIsAssigned}, 26), ({SubtaskMachine: ReportsUntilAllIsAssigned}, 68)],
    ids=["job", "subtask"],
)
def test_flink_37670_an_alignment_that_ends_with_the_assignments_is_found(bugs: Bugs, seed: int) -> None:
    first_found(f"{NO_END}|{NOT_NOTIFIED}", seed, bugs, of=aligned)


def test_flink_40093_a_paused_split_that_becomes_idle_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, wm.SplitVote, wm.SplitPaused, lambda machine, event, now_ms: [])
    first_found(IDLE_TOO_SOON, 1, of=aligned)


def test_flink_40093_an_idle_split_that_is_never_resumed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pause = SplitAlignment._pause

    def without_idle_ones(machine: Any, ahead: set[str]) -> list[al.Action]:
        idle = {each for each in machine._paused if each in machine._splits and machine._splits[each].idle}
        return pause(machine, ahead | idle)

    monkeypatch.setattr(SplitAlignment, "_pause", without_idle_ones)
    first_found(NO_END, 65, of=aligned)


def test_flink_35886_back_pressure_that_counts_as_idleness_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, SplitWatermarks, wm.Blocked, lambda machine, event, now_ms: [])
    first_found(IDLE_TOO_SOON, 1, of=aligned)


def announce_when(monkeypatch: pytest.MonkeyPatch, allows: Callable[[Any, Any, int], bool]) -> None:
    """Let a group announce to readers that join, and to others as the given rule says."""

    def announce(machine: Any, joined: Any, now_ms: int) -> list[group_alignment.Action]:
        if machine._minimum_ms != machine._announced_ms and now_ms >= machine._quiet_until_ms:
            machine._announced_ms = machine._minimum_ms
            keys = [key for key in machine._readers if key == joined or allows(machine, key, now_ms)]
            return machine._announce_to(keys)  # type: ignore[no-any-return]
        return machine._announce_to([] if joined is None else [joined])  # type: ignore[no-any-return]

    monkeypatch.setattr(AlignmentGroup, "_announce", announce)
    monkeypatch.setattr(AlignmentGroup, "check", lambda machine: None)


def test_flink_37399_periodic_announcements_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def once_in_a_while(machine: Any, key: Any, now_ms: int) -> bool:
        machine._quiet_until_ms = now_ms + 200
        return True

    announce_when(monkeypatch, once_in_a_while)
    first_found(NOT_NOTIFIED, 26, of=aligned)


def test_flink_39167_a_source_that_ends_at_once_without_a_final_watermark_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end_input = StreamingOutput.end_input

    def after_rows_only(output: Any) -> None:
        if output._outputs or output._machine._emitted_ms is not None:
            end_input(output)

    monkeypatch.setattr(StreamingOutput, "end_input", after_rows_only)
    first_found("emitted no final watermark", 54, of=aligned)


def test_spark_one_maximum_of_all_splits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_the_highest(machine: Any) -> list[wm.Action]:
        machine.state = "active"
        known = [each.watermark_ms for each in machine._splits.values() if each.watermark_ms is not None]
        if known and (machine._emitted_ms is None or max(known) > machine._emitted_ms):
            machine._emitted_ms = max(known)
            return [wm.EmitWatermark(machine._emitted_ms)]
        return []

    monkeypatch.setattr(SplitWatermarks, "_combine", with_the_highest)
    first_found(TOO_HIGH, 1, of=aligned)


# Our own.


class RaisesTheBoundBeforeItAssigns(EnumeratorRunner):
    """What is unassigned is broadcast before the assignment by which it is less."""

    def reported(self, outputs: Any) -> list[src.Event]:
        events = super().reported(outputs)
        return sorted(events, key=lambda each: not isinstance(each, src.UnassignedChanged))


def test_a_bound_that_overtakes_the_assignment_is_found() -> None:
    first_found("are late|came after", 26, {EnumeratorRunner: RaisesTheBoundBeforeItAssigns}, of=aligned)


def test_a_remainder_that_has_no_vote_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_the_watermark(split: Any) -> int:
        return MIN_WATERMARK_MS if split.watermark_ms is None else int(split.watermark_ms)

    monkeypatch.setattr(al, "_vote_of", by_the_watermark)
    first_found(NO_END, 1, of=aligned)


def test_a_failed_reader_whose_vote_is_dropped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = AlignmentGroup.handle

    def without_the_lost(machine: Any, event: Any, now_ms: int) -> list[group_alignment.Action]:
        if isinstance(event, group_alignment.ReaderLost) and (event.source, event.subtask) in machine._readers:
            machine._readers[event.source, event.subtask].watermark_ms = None
        return handle(machine, event, now_ms)

    monkeypatch.setattr(AlignmentGroup, "handle", without_the_lost)
    first_found(f"{TOO_FAR}|{NOT_NOTIFIED}", 4, of=aligned)


def test_a_split_that_is_not_resumed_when_its_neighbour_finishes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    finished = SplitAlignment._on_split_finished

    def without_a_word(machine: Any, event: Any, now_ms: int) -> list[al.Action]:
        return [each for each in finished(machine, event, now_ms) if isinstance(each, al.ReportWatermark)]

    plant(monkeypatch, SplitAlignment, al.SplitFinished, without_a_word)
    plant(monkeypatch, SplitAlignment, al.OneSplitLeft, without_a_word)
    first_found(NO_END, 65, of=aligned)


def test_an_announcement_only_to_whoever_reports_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = AlignmentGroup.handle
    reporting: list[Any] = [None]

    def noting(machine: Any, event: Any, now_ms: int) -> list[group_alignment.Action]:
        reporting[0] = (event.source, event.subtask) if isinstance(event, group_alignment.ReaderReported) else None
        return handle(machine, event, now_ms)

    monkeypatch.setattr(AlignmentGroup, "handle", noting)
    announce_when(monkeypatch, lambda machine, key, now_ms: bool(key == reporting[0]))
    first_found(NOT_NOTIFIED, 26, of=aligned)
