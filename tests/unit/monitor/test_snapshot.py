"""The document that the dashboard, exporters and programs read: what is in it, and what is null."""

from __future__ import annotations

import json
from typing import Any

from headgate.connectors.kafka.split import SPLIT_SERIALIZER, KafkaSplit
from headgate.coordinator.job.job_status import JobStatus, SlotInfo, SourceInfo
from headgate.coordinator.job.scheduler import SubtaskStatus
from headgate.monitor.diagnosis import why
from headgate.monitor.progress import CheckpointStatistics, ProgressReporter, QueryIdentity
from headgate.monitor.recent_events import CheckpointEvent, RecentEvents, RestartEvent
from headgate.monitor.snapshot import (
    MOST_SPLITS,
    QueryShape,
    Snapshot,
    StageShape,
    document,
    known_time_ms,
    snapshot_of,
)
from headgate.protocol.messages import (
    HelperProgress,
    RestoreProgress,
    SplitEventTime,
    SubtaskId,
    SubtaskProgress,
    TimeSpent,
)
from headgate.source.metrics import Measurement
from headgate.task.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS

NOW_MS = 1_763_760_000_000
IDENTITY = QueryIdentity(
    query_id="8c57e1ec",
    run_id="ae505c5a",
    name="rides",
    sources={"kafka": "headgate.kafka[rides]"},
    sinks={"sink": "parquet"},
    alignment_groups={"kafka": "rides"},
    checkpoint_interval_ms=5000,
)
SHAPE = QueryShape(
    stages=(
        StageShape(stage=0, operators=("parse",), sources=("kafka",)),
        StageShape(stage=1, operators=("count",), inputs=(0,), sinks=("sink",)),
    ),
    max_parallelism=128,
    started_ms=NOW_MS - 60_000,
    spark_version="4.3.0",
    headgate_version="0.6.0",
)


def status(state: str = "running", parallelism: int = 2, **fields: Any) -> JobStatus:
    return JobStatus(
        state=state,
        slots=tuple(SlotInfo(slot, "registered", 3, 1, "host-a", 100 + slot, "0") for slot in range(parallelism)),
        subtasks=tuple(
            SubtaskStatus(SubtaskId(stage, slot), "running", 1) for stage in range(2) for slot in range(parallelism)
        ),
        checkpoint="idle",
        completed_checkpoint=None,
        epoch=0,
        pending_checkpoint=fields.pop("pending_checkpoint", None),
        sources={"kafka": SourceInfo("running", ())},
        **fields,
    )


class Query:
    """Its figures, events and last progresses."""

    def __init__(self) -> None:
        self.reporter = ProgressReporter(IDENTITY, SHAPE.started_ms)
        self.events = RecentEvents(SHAPE.started_ms)

    def take(self, stage: int, subtask: int, at_ms: int, execution: int = 1, **fields: Any) -> None:
        progress = SubtaskProgress(stage=stage, execution=execution, **fields)
        self.reporter.take(subtask, progress, NOW_MS + at_ms)

    def busy(self, stage: int, subtask: int, **percent: int) -> None:
        """Let operators be busy so many percent of a second."""
        self.take(stage, subtask, -1000, time=spent(0))
        time = spent(1000, idle_ms=1000 - 10 * sum(percent.values()))
        self.take(stage, subtask, 0, busy_ms={uid: 10 * share for uid, share in percent.items()}, time=time)

    def snapshot(self, of: JobStatus | None = None) -> Snapshot:
        return snapshot_of(IDENTITY, SHAPE, of or status(), self.reporter, self.events, NOW_MS)

    def why(self, of: JobStatus | None = None) -> list[str]:
        return [each.text for each in why(self.snapshot(of))]


def spent(elapsed_ms: int, back_pressured_ms: int = 0, idle_ms: int = 0, paused_ms: int = 0) -> TimeSpent:
    return TimeSpent(elapsed_ms=elapsed_ms, back_pressured_ms=back_pressured_ms, idle_ms=idle_ms, paused_ms=paused_ms)


def kafka_split(number: int) -> bytes:
    return SPLIT_SERIALIZER.serialize(
        KafkaSplit(split_id=f"rides-{number}", topic="rides", partition=number, position=10 * number)
    )


def test_a_query_that_has_not_begun_has_null_for_what_nobody_knows() -> None:
    reporter, events = ProgressReporter(IDENTITY, SHAPE.started_ms), RecentEvents(SHAPE.started_ms)
    made = document(snapshot_of(IDENTITY, SHAPE, None, reporter, events, NOW_MS))
    assert (made["state"], made["slots"], made["subtasks"]) == ("created", [], [])
    assert made["watermarkMs"] is made["helperJvm"] is made["autoscaler"] is made["checkpoints"]["last"] is None
    [source], [sink] = made["sources"], made["sinks"]
    assert (source["rowsRead"], source["rowsPerSecond"], source["bytesRead"]) == (0, None, None)
    assert (sink["unpublishedMs"], sink["lastCommitMs"]) == (None, None)
    assert [(each["name"], each["busy"]) for each in made["stages"]] == [("kafka -> parse", None),
        ("count -> sink", None)]  # fmt: skip


def test_it_is_json_and_has_the_keys_that_others_read() -> None:
    query = Query()
    query.busy(0, 0, parse=50)
    made = document(query.snapshot())
    assert json.loads(json.dumps(made)) == made
    assert list(made) == [
        "id", "runId", "name", "state", "timestamp", "startedMs", "nowMs", "sparkVersion", "headgateVersion",
        "parallelism", "maxParallelism", "why", "stages", "operators", "subtasks", "slots", "sources",
        "alignmentGroups", "watermarkMs", "sinks", "checkpoints", "recovery", "restore", "restarts", "skippedRecords",
        "lateRows", "helperJvm", "autoscaler",
    ]  # fmt: skip
    assert (made["timestamp"], made["parallelism"]) == ("2025-11-21T21:20:00.000Z", 2)
    assert [(each["job"], each["attempt"]) for each in made["slots"]] == [(3, 1), (3, 1)]


def test_rates_and_shares_are_of_the_last_seconds() -> None:
    query = Query()
    for second in range(60):
        busy_ms = 0 if second < 50 else 900 * (second - 50)
        fields = {"rows_in": {"kafka": 100 * second}, "busy_ms": {"parse": busy_ms}}
        query.take(0, 0, 1000 * second, **fields, time=spent(1000 * second, idle_ms=1000 * second - busy_ms))
    made = query.snapshot()
    assert made.sources[0].rows_per_second == made.stages[0].rows_in_per_second == 100.0
    assert (made.stages[0].busy, made.operators[0].busy, made.operators[0].subtask) == (0.9, 0.9, 0)
    assert (made.sources[0].rows_read, made.subtasks[0].rows_in) == (5900, 5900)


def test_rows_of_exchanges_count_for_stages_queues_and_what_the_helper_was_asked() -> None:
    query = Query()
    helper = HelperProgress(requests=2, rows=100, busy_ms=30)
    for second in range(3):
        query.take(0, 0, 1000 * second, rows_in={"kafka": 10 * second}, rows_sent=7 * second, queue_batches=3,
            queue_bytes=400, buffer_pool_use=0.25, helper=helper)  # fmt: skip
        query.take(1, 0, 1000 * second, rows_out={"sink": second}, rows_received=7 * second)
    query.take(0, 0, 3000, execution=2, helper=HelperProgress(requests=1, rows=5, busy_ms=1))
    query.take(0, 1, 3000)
    made = query.snapshot()
    assert made.helper_jvm == {"requests": 3, "rows": 105, "busyMs": 31}
    assert (made.stages[1].rows_in_per_second, made.stages[1].rows_out_per_second) == (7.0, 1.0)
    [consumer] = [each for each in made.subtasks if (each.stage, each.subtask) == (1, 0)]
    assert (consumer.rows_in, consumer.rows_out, consumer.queue_batches, consumer.buffer_pool_use) == (
        14,
        2,
        None,
        None,
    )


def test_a_producers_subtask_has_its_rows_queue_and_room() -> None:
    query = Query()
    for second in range(2):
        query.take(0, 0, 1000 * second, rows_in={"kafka": 10 * second}, rows_sent=7 * second, queue_batches=3,
            queue_bytes=400, buffer_pool_use=0.25)  # fmt: skip
    made = query.snapshot()
    assert (made.stages[0].rows_in_per_second, made.stages[0].rows_out_per_second) == (10.0, 7.0)
    producer = made.subtasks[0]
    assert (producer.queue_batches, producer.queue_bytes, producer.buffer_pool_use) == (3, 400, 0.25)


def test_figures_of_a_deployment_that_is_over_are_not_those_of_the_next() -> None:
    query = Query()
    query.busy(0, 1, parse=100)
    again = tuple(SubtaskStatus(SubtaskId(0, slot), "deploying", 2) for slot in range(2))
    made = query.snapshot(status(state="restarting")).subtasks
    assert [each.busy for each in made if each.stage == 0] == [None, 1.0]
    restarted = status(state="restarting")
    made = query.snapshot(JobStatus(**{**_fields(restarted), "subtasks": again})).subtasks
    assert [(each.execution, each.busy) for each in made] == [(2, None), (2, None)]


def _fields(of: JobStatus) -> dict[str, Any]:
    return {name: getattr(of, name) for name in of.__struct_fields__}


def test_splits_are_listed_with_their_slot_those_that_lag_most_first() -> None:
    query = Query()
    times = {
        "rides-0": SplitEventTime(watermark_ms=9000, paused=True),
        "rides-1": SplitEventTime(watermark_ms=2000),
        "rides-2": SplitEventTime(),
        "rides-3": SplitEventTime(watermark_ms=1000, idle=True),
    }
    positions = {f"rides-{number}": kafka_split(number) for number in range(4)}
    query.take(0, 1, 0, splits={"kafka": 4}, positions={"kafka": positions}, event_times={"kafka": times})
    [source] = document(query.snapshot())["sources"]
    assert [each["id"] for each in source["splits"]] == ["rides-2", "rides-1", "rides-0", "rides-3"]
    assert (source["splits"][1]["position"], source["splits"][1]["slot"], source["splits"][0]["watermarkMs"]) == (
        10, 1, None,
    )  # fmt: skip
    assert (source["numSplits"], source["pausedSplits"], source["idleSplits"]) == (4, 1, 1)


def test_what_the_connector_knows_of_itself_and_how_many_rows_its_splits_have_left() -> None:
    query = Query()
    positions = {f"rides-{number}": kafka_split(number) for number in range(3)}
    for second in range(3):
        metrics = {
            "numBytesIn": Measurement(kind="counter", value=500 * second),
            "currentFetchEventTimeLag": Measurement(kind="gauge", value=12.5, aggregate="max"),
        }
        query.take(
            0, 1, 1000 * second, splits={"kafka": 3}, positions={"kafka": positions}, metrics={"kafka": metrics},
            pending_records={"kafka": {"rides-1": 7, "rides-2": 70}},
        )  # fmt: skip
    query.take(0, 1, 2500)
    [source] = document(query.snapshot())["sources"]
    assert [(each["id"], each["lag"]) for each in source["splits"]] == [
        ("rides-2", 70), ("rides-1", 7), ("rides-0", None),
    ]  # fmt: skip
    assert source["metrics"] == {
        "currentFetchEventTimeLag": {"kind": "gauge", "value": 12.5}, "numBytesIn": {"kind": "counter", "value": 1000},
    }  # fmt: skip
    assert (source["bytesRead"], source["bytesPerSecond"]) == (1000, 500.0)


def test_of_many_splits_some_are_left_out() -> None:
    query = Query()
    times = {f"s{number:05d}": SplitEventTime(watermark_ms=number) for number in range(MOST_SPLITS + 7)}
    query.take(0, 0, 0, splits={"kafka": len(times)}, event_times={"kafka": times})
    [source] = query.snapshot().sources
    assert (len(source.splits), source.splits_left_out, source.splits[0].id) == (MOST_SPLITS, 7, "s00000")


def test_markers_of_watermarks_are_no_times() -> None:
    assert known_time_ms(MAX_WATERMARK_MS) is known_time_ms(MIN_WATERMARK_MS) is known_time_ms(None) is None
    assert known_time_ms(-1) == -1


def test_checkpoints_restarts_and_the_one_under_way() -> None:
    query = Query()
    query.reporter.checkpoint_completed(
        CheckpointStatistics(checkpoint_id=4, duration_ms=20, size_bytes=900, completed_ms=NOW_MS - 500)
    )
    query.events.checkpoint(
        CheckpointEvent(id=4, status="completed", duration_ms=20, size_bytes=900, completed_ms=NOW_MS - 500)
    )
    query.events.restart(RestartEvent(at_ms=NOW_MS - 9, kind="subtask", cause="ValueError: 7.", stage=0, subtask=1))
    made = document(query.snapshot(status(pending_checkpoint=5, pending_since_ms=NOW_MS - 100)))
    assert made["checkpoints"]["pending"] == {"id": 5, "startedMs": NOW_MS - 100}
    assert (made["checkpoints"]["last"]["ageMs"], made["checkpoints"]["completed"]) == (500, 1)
    assert made["checkpoints"]["recent"][0]["status"] == "completed"
    assert (made["restarts"]["count"], made["restarts"]["recent"][0]["cause"]) == (1, "ValueError: 7.")


# What limits the query.


def test_nothing_limits_a_query_that_waits_for_data() -> None:
    query = Query()
    query.busy(0, 0, parse=3)
    assert query.why() == ["The query waits for data: nothing limits it."]


def test_a_busy_operator_is_named_with_its_slot_and_what_waits_for_it() -> None:
    query = Query()
    query.busy(0, 0, parse=97)
    query.busy(0, 1, parse=90)
    positions = {f"rides-{number}": kafka_split(number) for number in range(12)}
    query.take(0, 0, 1, splits={"kafka": 12}, positions={"kafka": positions}, busy_ms={"parse": 970}, time=spent(1000))
    assert query.why() == ["slot 0 is busy 97 % in `parse`; 12 splits wait for it"]


def test_one_busy_subtask_among_idle_ones_has_more_keys_than_the_others() -> None:
    query = Query()
    query.busy(1, 0, count=12)
    query.busy(1, 1, count=99)
    [only] = query.why()
    assert only == "slot 1 is busy 99 % in `count`, the other subtasks 12 %: its keys have more rows than others"


def test_the_split_that_holds_its_group_back_is_named() -> None:
    query = Query()
    ahead = {f"rides-{number}": SplitEventTime(watermark_ms=7_200_000, paused=True) for number in range(7)}
    slow = {"rides-7": SplitEventTime(watermark_ms=0)}
    query.take(0, 0, 0, splits={"kafka": 8}, event_times={"kafka": {**ahead, **slow}})
    assert query.why() == ["split rides-7 lags by 2 h and holds 7 others back"]
    about = why(query.snapshot())[0].about
    assert (about.kind, about.source, about.split, about.group) == ("split", "kafka", "rides-7", "rides")


def test_a_group_that_waits_for_another_query_blames_none_of_its_own_splits() -> None:
    query = Query()
    paused = {f"rides-{number}": SplitEventTime(watermark_ms=number, paused=True) for number in range(3)}
    query.take(0, 0, 0, splits={"kafka": 3}, event_times={"kafka": paused})
    assert query.why() == ["all splits of the alignment group rides wait for another query of the group"]


def test_what_subtasks_did_before_a_restart_limits_nothing() -> None:
    query = Query()
    query.busy(0, 0, parse=99)
    paused = SplitEventTime(watermark_ms=7_200_000, paused=True)
    query.take(0, 1, 0, event_times={"kafka": {"rides-0": paused, "rides-1": SplitEventTime(watermark_ms=0)}})
    [only] = query.why(status(state="restarting"))
    assert only == "The query restarts and waits for its subtasks to open."


def test_a_sink_whose_commits_take_most_of_the_time() -> None:
    query = Query()
    for second in range(-60, 0, 5):
        query.events.commit_ordered(NOW_MS + 1000 * second)
        query.events.committed(NOW_MS + 1000 * second + 4000)
    assert query.why() == ["the sink's commit takes 4 s of each 5 s"]


def test_rows_that_nobody_can_see_come_before_what_is_only_slow() -> None:
    query = Query()
    query.busy(0, 0, parse=99)
    query.take(1, 0, 0, unpublished_ms={"sink": 40_000})
    first, second = query.why()
    assert first.startswith("the sink 'sink' has published nothing for 40 s")
    assert second.startswith("slot 0 is busy 99 %")


def test_back_pressure_is_followed_down_to_the_stage_that_causes_it() -> None:
    query = Query()
    query.busy(1, 1, count=60, parse=39)
    for at_ms, time in ((-1000, spent(0)), (0, spent(1000, back_pressured_ms=950, idle_ms=20))):
        query.take(0, 0, at_ms, time=time)
    made = query.snapshot()
    assert [(each.busy, each.back_pressured, each.idle) for each in made.stages] == [
        (0.03, 0.95, 0.02), (0.99, 0.0, 0.01),
    ]  # fmt: skip
    reason = why(made)[-1]
    assert reason.text == (
        "stage 0 waits 95 % of the time for stage 1, where slot 1 is busy 99 %, most of it in `count`"
    )
    assert (reason.about.uid, reason.about.stage, reason.about.slot) == ("count", 1, 1)


def test_a_sink_without_room_is_what_all_stages_wait_for() -> None:
    query = Query()
    for stage in (0, 1):
        query.take(stage, 0, -1000, time=spent(0))
        query.take(stage, 0, 0, time=spent(1000, back_pressured_ms=900))
    assert query.why() == ["stage 0 and stage 1 wait 90 % of the time for the sink sink"]


def test_shares_of_a_subtask_are_of_its_own_clock_and_add_up_to_one_when_a_message_is_late() -> None:
    query = Query()
    query.take(0, 0, -2000)  # its operators were not open yet
    query.take(0, 0, -1000, time=spent(5000, 100, 100, 0))
    query.take(0, 0, 0, time=spent(9000, 1100, 2100, 3000))
    subtask = query.snapshot().subtasks[0]
    assert (subtask.busy, subtask.back_pressured, subtask.idle, subtask.paused) == (0.25, 0.25, 0.5, 0.75)


def test_a_query_that_restarts_over_and_over_says_why_first() -> None:
    query = Query()
    query.busy(0, 0, parse=99)
    for at_ms in (-30_000, -20_000, -10_000):
        query.events.restart(
            RestartEvent(at_ms=NOW_MS + at_ms, kind="subtask", cause="ValueError: 7.", stage=0, subtask=1, slot=1)
        )
    first = query.why()[0]
    assert first == "3 restarts in the last 30 s; the last one in subtask 1 of stage 0: ValueError: 7."
    restarting = query.why(status(state="restarting"))[0]
    assert restarting == "The query restarts and waits for its subtasks to open. The cause: ValueError: 7."


def test_slots_that_do_not_come_are_named() -> None:
    absent = SlotInfo(1, "expected", None, None, "", 0, "")
    waiting = status(state="starting")
    made = JobStatus(**{**_fields(waiting), "slots": (waiting.slots[0], absent)})
    assert Query().why(made)[0] == "The query starts and waits for slots that have not come: 1."


def test_keyed_state_that_is_taken_on() -> None:
    query = Query()
    restore = RestoreProgress(bytes_to_read=1000, bytes_left=250, duration_ms=10, is_over=False)
    query.take(1, 0, 0, restore=restore)
    assert query.why() == ["stage 1 takes on its keyed state: 25 % of 1,000 bytes are left in 1 subtask"]


def test_checkpoints_that_fail_are_late_or_slow() -> None:
    query = Query()
    late = status(pending_checkpoint=5, pending_since_ms=NOW_MS - 30_000)
    assert query.why(late) == ["checkpoint 5 has been under way for 30 s"]
    query.reporter.checkpoint_completed(
        CheckpointStatistics(checkpoint_id=4, duration_ms=12_000, size_bytes=900, completed_ms=NOW_MS - 1000)
    )
    assert query.why() == ["a checkpoint takes 12 s, and one is due each 5 s"]
    query.events.checkpoint(
        CheckpointEvent(
            id=5, status="failed", duration_ms=700, size_bytes=None, completed_ms=NOW_MS, reason="The disk is full."
        )
    )
    assert query.why()[0] == "checkpoint 5 failed: The disk is full.; the last complete one is 1 s old"


def test_what_a_source_waits_for() -> None:
    query = Query()
    query.reporter.take_troubles("kafka", ["Its discovery fails: no broker answers."])
    assert query.why() == ["the source kafka: Its discovery fails: no broker answers."]


def test_a_query_that_is_over_says_only_that() -> None:
    query = Query()
    query.busy(0, 0, parse=99)
    assert query.why(status(state="ended")) == ["The query has ended."]
