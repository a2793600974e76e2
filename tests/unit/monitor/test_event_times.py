"""Per split: watermark, paused or not, idle or not, drift; per group: who is slowest, and how far somebody is ahead."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headgate.monitor.live_line import live_text
from headgate.monitor.progress import ProgressReporter, QueryIdentity
from headgate.protocol.messages import SplitEventTime, SubtaskProgress
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS

NOON = 1_763_726_400_000
Splits = dict[str, dict[str, SplitEventTime]]


def at(seconds: int | None, *, idle: bool = False, paused: bool = False) -> SplitEventTime:
    """Return a split whose watermark is so long after noon."""
    return SplitEventTime(watermark_ms=None if seconds is None else NOON + 1000 * seconds, idle=idle, paused=paused)


def progress_of(*subtasks: Splits, groups: dict[str, str]) -> dict[str, Any]:
    """Return the progress of a query with the sources a and b, whose subtasks report this of their splits."""
    identity = QueryIdentity(
        query_id="q", run_id="r", name="rides", sources={"a": "kafka", "b": "files"}, sinks={"s": "noop"},
        alignment_groups=groups,
    )  # fmt: skip
    reporter = ProgressReporter(identity, started_ms=0)
    for subtask, splits in enumerate(subtasks):
        counts = {uid: len(of) for uid, of in splits.items()}
        reporter.take(subtask, SubtaskProgress(stage=0, execution=1, splits=counts, event_times=splits), 500)
    progress = reporter.report(1000)[0]
    assert json.loads(json.dumps(progress, allow_nan=False)) == progress
    return progress


def test_the_drift_is_how_far_a_split_is_ahead_of_the_slowest_of_its_group() -> None:
    """Over subtasks and sources."""
    progress = progress_of(
        {"a": {"a-0": at(70, paused=True)}, "b": {"b-0": at(10)}},
        {"a": {"a-1": at(30)}},
        groups={"a": "rides", "b": "rides"},
    )
    assert progress["headgate"]["eventTimes"] == {
        "a": {
            "alignmentGroup": "rides", "driftMs": 60_000, "pausedSplits": 1, "idleSplits": 0,
            "splits": {
                "a-0": {"watermark": "2025-11-21T12:01:10.000Z", "idle": False, "paused": True, "driftMs": 60_000},
                "a-1": {"watermark": "2025-11-21T12:00:30.000Z", "idle": False, "paused": False, "driftMs": 20_000},
            },
        },
        "b": {
            "alignmentGroup": "rides", "driftMs": 0, "pausedSplits": 0, "idleSplits": 0,
            "splits": {
                "b-0": {"watermark": "2025-11-21T12:00:10.000Z", "idle": False, "paused": False, "driftMs": 0},
            },
        },
    }  # fmt: skip
    assert progress["headgate"]["alignmentGroups"] == {
        "rides": {
            "sources": ["a", "b"], "watermark": "2025-11-21T12:00:10.000Z", "slowest": {"source": "b", "split": "b-0"},
            "driftMs": 60_000, "pausedSplits": 1, "numSplits": 3,
        },
    }  # fmt: skip
    assert live_text(progress).endswith("drift of rides 60.0 s, 1 of 3 splits paused")


def test_groups_do_not_mix() -> None:
    progress = progress_of({"a": {"a-0": at(70)}, "b": {"b-0": at(10)}}, groups={"a": "one", "b": "two"})
    assert [each["driftMs"] for each in progress["headgate"]["eventTimes"].values()] == [0, 0]
    assert [each["slowest"]["split"] for each in progress["headgate"]["alignmentGroups"].values()] == ["a-0", "b-0"]


def test_without_a_group_there_is_no_drift() -> None:
    progress = progress_of({"a": {"a-0": at(70), "a-1": at(10)}}, groups={})
    reported = progress["headgate"]["eventTimes"]["a"]
    assert (reported["alignmentGroup"], reported["driftMs"]) == (None, None)
    assert [split["driftMs"] for split in reported["splits"].values()] == [None, None]
    assert [split["watermark"][11:19] for split in reported["splits"].values()] == ["12:01:10", "12:00:10"]
    assert progress["headgate"]["alignmentGroups"] == {}
    assert "drift" not in live_text(progress)


def test_an_idle_split_is_not_the_slowest() -> None:
    """It has no vote. One that lagged before shows by how much its rows will be late."""
    progress = progress_of({"a": {"a-0": at(70), "a-1": at(10, idle=True)}}, groups={"a": "rides"})
    assert progress["headgate"]["alignmentGroups"]["rides"]["slowest"] == {"source": "a", "split": "a-0"}
    reported = progress["headgate"]["eventTimes"]["a"]
    assert reported["idleSplits"] == 1
    assert {name: split["driftMs"] for name, split in reported["splits"].items()} == {"a-0": 0, "a-1": -60_000}


def test_while_a_split_has_no_watermark_it_is_the_slowest_and_no_drift_is_known() -> None:
    progress = progress_of({"a": {"a-0": at(70, paused=True), "a-1": at(None)}}, groups={"a": "rides"})
    group = progress["headgate"]["alignmentGroups"]["rides"]
    assert (group["slowest"], group["watermark"], group["driftMs"]) == ({"source": "a", "split": "a-1"}, None, None)
    assert progress["headgate"]["eventTimes"]["a"]["splits"]["a-0"]["driftMs"] is None
    assert live_text(progress).endswith("1 of 2 splits paused")


def test_a_split_that_is_held_before_its_first_row_is_not_the_slowest() -> None:
    """It is paused because that row is too far ahead; how far, nobody has seen."""
    progress = progress_of({"a": {"a-0": at(70), "a-1": at(None, paused=True)}}, groups={"a": "rides"})
    group = progress["headgate"]["alignmentGroups"]["rides"]
    assert (group["slowest"]["split"], group["driftMs"], group["pausedSplits"]) == ("a-0", 0, 1)
    assert progress["headgate"]["eventTimes"]["a"]["splits"]["a-1"]["driftMs"] is None


def test_nobody_has_a_vote() -> None:
    for splits in ({}, {"a": {"a-0": at(5, idle=True)}}):
        progress = progress_of(splits, groups={"a": "rides"})
        group = progress["headgate"]["alignmentGroups"]["rides"]
        assert (group["slowest"], group["driftMs"], group["numSplits"]) == (None, None, len(splits))


def test_sparks_event_time_spans_the_splits_watermarks() -> None:
    progress = progress_of({"a": {"a-0": at(0), "a-1": at(30), "a-2": at(None)}, "b": {"b-0": at(90)}}, groups={})
    assert {name: text[11:] for name, text in progress["eventTime"].items()} == {
        "min": "12:00:00.000Z", "max": "12:01:30.000Z", "avg": "12:00:40.000Z"
    }  # fmt: skip


def test_a_split_that_has_ended_is_no_event_time_to_look_at() -> None:
    ended = SplitEventTime(watermark_ms=MAX_WATERMARK_MS)
    progress = progress_of({"a": {"a-0": ended}}, groups={"a": "rides"})
    assert progress["eventTime"] == {}
    assert progress["headgate"]["eventTimes"]["a"]["splits"]["a-0"]["watermark"] == "9999-12-31T23:59:59.999Z"


split = st.builds(
    SplitEventTime,
    watermark_ms=st.none() | st.integers(MIN_WATERMARK_MS, MAX_WATERMARK_MS),
    idle=st.booleans(),
    paused=st.booleans(),
)
of_source = st.dictionaries(st.sampled_from(["x", "y", "z"]), split)


@given(st.fixed_dictionaries({"a": of_source, "b": of_source}), st.sampled_from([{}, {"a": "g"}, {"a": "g", "b": "g"}]))
def test_whatever_is_reported_can_be_shown(splits: Splits, groups: dict[str, str]) -> None:
    """No drift of a split that has a vote is below 0, and somebody's is 0 if any is known."""
    progress = progress_of(splits, groups=groups)
    live_text(progress)
    drifts = {
        group: [
            progress["headgate"]["eventTimes"][uid]["splits"][split_id]["driftMs"]
            for uid in aligned["sources"]
            for split_id, reported in splits[uid].items()
            if not reported.idle and not (reported.paused and reported.watermark_ms is None)
        ]
        for group, aligned in progress["headgate"]["alignmentGroups"].items()
    }
    for of in drifts.values():
        known = [each for each in of if each is not None]
        assert len(known) in (0, len(of))
        assert min(known, default=0) == 0
