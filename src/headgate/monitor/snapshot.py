"""Builds the one document of a query that the dashboard, exporters, the command line and the autoscaler all read.

Never: read a clock, or put a special number where a figure is absent: that is None, and null in JSON.

Names are in camel case in the document and end in their unit: ``Ms`` milliseconds (a time is since 1970-01-01 UTC),
``Bytes``, ``PerSecond``. A share is from 0 to 1. Rates and shares are of the last seconds (`figures.WINDOW_MS`), counts
since this process started the query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from headgate.coordinator.job.job_status import JobStatus, SlotInfo
from headgate.monitor.event_times import EventTimes
from headgate.monitor.figures import Figures, StageRecovery, StageRestore, SubtaskFigures
from headgate.monitor.progress import LAST_MS, ProgressReporter, QueryIdentity, position_of, timestamp
from headgate.monitor.recent_events import CheckpointEvent, RecentEvents, RestartEvent
from headgate.protocol.messages import SplitEventTime, SubtaskId
from headgate.source.metrics import NUM_BYTES_IN

MOST_SPLITS = 1000
"""How many splits of a source are listed: those that lag most first."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the parts of the document."""


class About(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """What a reason is about.

    Parameters
    ----------
    kind
        ``operator``, ``split``, ``sink``, ``checkpoint``, ``slot``, ``source``, ``recovery`` or ``none``.
    uid
        Of an operator, a source or a sink.
    stage, subtask, slot, source, split, group, checkpoint
        Which one, where that applies; left out elsewhere.
    """

    kind: str
    uid: str | None = None
    stage: int | None = None
    subtask: int | None = None
    slot: int | None = None
    source: str | None = None
    split: str | None = None
    group: str | None = None
    checkpoint: int | None = None


class Why(_Part, frozen=True, kw_only=True):
    """What limits the query: how bad that is (``info``, ``warning``, ``critical``), a sentence, what it is about."""

    severity: str
    text: str
    about: About


class StageShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage consists of.

    Parameters
    ----------
    stage
        Its number, in the order of the data.
    operators, sources, sinks
        Uids, in the order of the data.
    inputs
        The numbers of the stages that it gets rows from.
    """

    stage: int
    operators: tuple[str, ...] = ()
    inputs: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What to call it: its parts in the order of the data."""
        return " -> ".join((*self.sources, *self.operators, *self.sinks)) or f"stage {self.stage}"


class QueryShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a query consists of, as far as `QueryIdentity` does not say.

    Parameters
    ----------
    stages
        In the order of the data.
    max_parallelism
        The largest parallelism that its state allows.
    started_ms
        When this process started it, in milliseconds since 1970-01-01 UTC.
    spark_version, headgate_version
        What runs it.
    names
        By uid what to call operators that call functions; others are called by their uid.
    """

    stages: tuple[StageShape, ...]
    max_parallelism: int
    started_ms: int
    spark_version: str
    headgate_version: str
    names: Mapping[str, str] = {}


class StageView(_Part, frozen=True, kw_only=True):
    """A stage; ``busy`` and ``back_pressured`` of the subtask where they are highest, ``idle`` where it is lowest."""

    stage: int
    name: str
    operators: list[str]
    inputs: list[int]
    sources: list[str]
    sinks: list[str]
    rows_in_per_second: float | None
    rows_out_per_second: float | None
    busy: float | None
    back_pressured: float | None
    idle: float | None


class OperatorView(_Part, frozen=True, kw_only=True):
    """An operator, or a sink's writer, at the subtask where it is busiest."""

    uid: str
    name: str
    stage: int
    busy: float
    subtask: int


class SubtaskView(_Part, frozen=True, kw_only=True):
    """A subtask.

    Parameters
    ----------
    state, execution
        As in `headgate.coordinator.job.scheduler.SubtaskStatus`.
    busy, back_pressured, idle
        The shares of the time of its thread: it works; it waits for room in its outputs; it waits for rows.
    paused
        The part of the time that splits of its were paused, since others of their alignment group lag.
    rows_in, rows_out
        Read from sources and exchanges, and written to sinks and exchanges, since its deployment.
    queue_batches, queue_bytes
        What its readers have fetched and it has not read yet.
    buffer_pool_use
        The part of the room of its fullest exchange that is taken by what its consumers do not take.
    watermark_ms
        Its watermark; None: it has none, or its input has ended.
    operators
        By uid: the part of the time that each takes.
    """

    stage: int
    subtask: int
    slot: int
    state: str
    execution: int
    busy: float | None
    back_pressured: float | None
    idle: float | None
    paused: float | None
    rows_in: int | None
    rows_out: int | None
    rows_in_per_second: float | None
    rows_out_per_second: float | None
    queue_batches: int | None
    queue_bytes: int | None
    buffer_pool_use: float | None
    watermark_ms: int | None
    operators: dict[str, float]


class SplitView(_Part, frozen=True, kw_only=True):
    """A split that is being read.

    Parameters
    ----------
    position
        As JSON has it; None: only its connector can read it.
    lag
        How many rows are between it and the end of what there is (FLIP-33's pendingRecords); None: nobody knows.
    watermark_ms
        None: it has none yet, or its source has no event time.
    drift_ms
        How far it is ahead of the slowest split of its alignment group.
    idle, paused
        Whether it has no vote in the watermark; whether it waits for others of its group. None: no event time.
    """

    id: str
    subtask: int
    slot: int
    position: Any
    lag: int | None
    watermark_ms: int | None
    drift_ms: int | None
    idle: bool | None
    paused: bool | None


class MetricView(_Part, frozen=True, kw_only=True):
    """What a connector counts (``counter``) or measures (``gauge``): of all readers together, and its enumerator."""

    kind: str
    value: float


class SourceView(_Part, frozen=True, kw_only=True):
    """A source: what its readers read, and what its connector says of itself."""

    uid: str
    description: str
    state: str | None
    rows_read: int
    rows_per_second: float | None
    bytes_read: int | None
    bytes_per_second: float | None
    num_splits: int
    lag: dict[str, int]
    troubles: list[str]
    alignment_group: str | None
    drift_ms: int | None
    paused_splits: int
    idle_splits: int
    metrics: dict[str, MetricView]
    splits: list[SplitView]
    splits_left_out: int


class SlowestView(_Part, frozen=True, kw_only=True):
    """The split that an alignment group waits for."""

    source: str
    split: str


class GroupView(_Part, frozen=True, kw_only=True):
    """An alignment group: whom it waits for, and how far the fastest of its splits is ahead of that."""

    group: str
    sources: list[str]
    slowest: SlowestView | None
    watermark_ms: int | None
    drift_ms: int | None
    paused_splits: int
    num_splits: int


class SinkView(_Part, frozen=True, kw_only=True):
    """A sink.

    Parameters
    ----------
    unpublished_ms
        How long the oldest rows of a complete checkpoint have waited to be published; None: none wait.
    commits, last_commit_ms, commit_share
        Commits on the driver, which are those of all sinks together: how many, how long the last one took, and the part
        of the last minute that they took.
    """

    uid: str
    description: str
    rows_written: int
    rows_per_second: float | None
    unpublished_ms: int | None
    commits: int
    last_commit_ms: int | None
    commit_share: float | None


class PendingCheckpoint(_Part, frozen=True, kw_only=True):
    """The checkpoint under way."""

    id: int
    started_ms: int | None


class LastCheckpoint(_Part, frozen=True, kw_only=True):
    """The last completed checkpoint, and how long ago that was."""

    id: int
    duration_ms: int
    size_bytes: int
    completed_ms: int
    age_ms: int


class CheckpointsView(_Part, frozen=True, kw_only=True):
    """Checkpoints: how many, and the last ones, the newest last."""

    interval_ms: int
    pending: PendingCheckpoint | None
    completed: int
    failed: int
    last: LastCheckpoint | None
    recent: list[CheckpointEvent]


class RestartsView(_Part, frozen=True, kw_only=True):
    """Restarts: how many, rescales included, and the last ones, the newest last."""

    count: int
    recent: list[RestartEvent]


class Snapshot(_Part, frozen=True, kw_only=True):
    """How a query is. `document` makes JSON's values of it."""

    id: str
    run_id: str
    name: str | None
    state: str
    timestamp: str
    started_ms: int
    now_ms: int
    spark_version: str
    headgate_version: str
    parallelism: int
    max_parallelism: int
    why: list[Why] = []
    stages: list[StageView]
    operators: list[OperatorView]
    subtasks: list[SubtaskView]
    slots: list[SlotInfo]
    sources: list[SourceView]
    alignment_groups: list[GroupView]
    watermark_ms: int | None
    sinks: list[SinkView]
    checkpoints: CheckpointsView
    recovery: list[StageRecovery]
    restore: list[StageRestore]
    restarts: RestartsView
    skipped_records: int
    late_rows: int
    helper_jvm: dict[str, int] | None = None
    autoscaler: dict[str, Any] | None = None


def document(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as JSON has it."""
    made: dict[str, Any] = msgspec.to_builtins(snapshot)
    return made


def snapshot_of(
    identity: QueryIdentity,
    shape: QueryShape,
    status: JobStatus | None,
    reporter: ProgressReporter,
    events: RecentEvents,
    now_ms: int,
) -> Snapshot:
    """Return how a query is, without the reasons (`headgate.monitor.diagnosis`).

    Parameters
    ----------
    identity, shape
        Which query.
    status
        What its coordinator says; None: no run has begun.
    reporter
        The figures of its subtasks.
    events
        What happened to it lately.
    now_ms
        The time, in milliseconds since 1970-01-01 UTC.
    """
    figures = reporter.figures
    measured, times = figures.subtasks(), reporter.event_times()
    subtasks = list(_subtasks(status, measured))
    return Snapshot(
        id=identity.query_id,
        run_id=identity.run_id,
        name=identity.name,
        state="created" if status is None else status.state,
        timestamp=timestamp(now_ms),
        started_ms=shape.started_ms,
        now_ms=now_ms,
        spark_version=shape.spark_version,
        headgate_version=shape.headgate_version,
        parallelism=0 if status is None else len(status.slots),
        max_parallelism=shape.max_parallelism,
        stages=[_stage(each, subtasks) for each in shape.stages],
        operators=_operators(subtasks, shape.names),
        subtasks=subtasks,
        slots=[] if status is None else list(status.slots),
        sources=list(_sources(identity, status, reporter, measured, times)),
        alignment_groups=_groups(identity, figures, times),
        watermark_ms=known_time_ms(figures.watermark_ms()),
        sinks=list(_sinks(identity, reporter, measured, events, now_ms)),
        checkpoints=_checkpoints(identity, status, reporter, events, now_ms),
        recovery=figures.recovery(),
        restore=figures.restore(),
        restarts=RestartsView(count=events.restarts, recent=list(events.recent_restarts)),
        skipped_records=figures.skipped,
        late_rows=figures.late,
        helper_jvm=dict(figures.helper) or None,
    )


def known_time_ms(at_ms: int | None) -> int | None:
    """Return a watermark; None: there is none, or it stands for the end of all input or for nothing yet."""
    return None if at_ms is None or abs(at_ms) > LAST_MS else at_ms


def _subtasks(status: JobStatus | None, measured: Mapping[SubtaskId, SubtaskFigures]) -> Iterator[SubtaskView]:
    for each in () if status is None else status.subtasks:
        figures = measured.get(each.subtask)
        if figures is not None and figures.last.execution != each.execution:
            figures = None  # of a deployment that is over
        last = None if figures is None else figures.last
        busy = {} if figures is None or figures.busy is None else figures.busy
        time = None if figures is None else figures.time
        rows_in_per_second, rows_out_per_second = _rates(figures)
        yield SubtaskView(
            stage=each.subtask.stage,
            subtask=each.subtask.subtask,
            slot=each.subtask.subtask,  # whose number is the subtask's
            state=each.state,
            execution=each.execution,
            busy=None if time is None else _share(time.busy),
            back_pressured=None if time is None else _share(time.back_pressured),
            idle=None if time is None else _share(time.idle),
            paused=None if time is None else _share(time.paused),
            rows_in=None if last is None else sum(last.rows_in.values()) + last.rows_received,
            rows_out=None if last is None else sum(last.rows_out.values()) + last.rows_sent,
            rows_in_per_second=rows_in_per_second,
            rows_out_per_second=rows_out_per_second,
            queue_batches=None if last is None else last.queue_batches,
            queue_bytes=None if last is None else last.queue_bytes,
            buffer_pool_use=None if last is None else last.buffer_pool_use,
            watermark_ms=None if last is None else known_time_ms(last.watermark_ms),
            operators={uid: _share(share) for uid, share in busy.items()},
        )


def _stage(shape: StageShape, subtasks: list[SubtaskView]) -> StageView:
    own = [each for each in subtasks if each.stage == shape.stage]
    return StageView(
        stage=shape.stage,
        name=shape.name,
        operators=list(shape.operators),
        inputs=list(shape.inputs),
        sources=list(shape.sources),
        sinks=list(shape.sinks),
        rows_in_per_second=_sum([each.rows_in_per_second for each in own]),
        rows_out_per_second=_sum([each.rows_out_per_second for each in own]),
        busy=max((each.busy for each in own if each.busy is not None), default=None),
        back_pressured=max((each.back_pressured for each in own if each.back_pressured is not None), default=None),
        idle=min((each.idle for each in own if each.idle is not None), default=None),
    )


def _operators(subtasks: list[SubtaskView], names: Mapping[str, str]) -> list[OperatorView]:
    """Return each operator where it is busiest, the busiest first."""
    busiest: dict[tuple[int, str], OperatorView] = {}
    for each in subtasks:
        for uid, share in each.operators.items():
            known = busiest.get((each.stage, uid))
            if known is None or share > known.busy:
                busiest[each.stage, uid] = OperatorView(
                    uid=uid, name=names.get(uid, uid), stage=each.stage, busy=share, subtask=each.subtask
                )
    return sorted(busiest.values(), key=lambda each: (-each.busy, each.stage, each.uid))


def _sources(
    identity: QueryIdentity,
    status: JobStatus | None,
    reporter: ProgressReporter,
    measured: Mapping[SubtaskId, SubtaskFigures],
    times: EventTimes,
) -> Iterator[SourceView]:
    figures, troubles = reporter.figures, reporter.troubles()
    for uid, description in identity.sources.items():
        info = None if status is None else status.sources.get(uid)
        event_times = figures.event_times(uid)
        splits = _splits(uid, measured, times)
        count = max(figures.splits(uid), len(splits))
        shown = sorted(splits, key=_lag_order)[:MOST_SPLITS]
        positions, metrics = figures.positions(uid), figures.metrics(uid)
        yield SourceView(
            uid=uid,
            description=description,
            state=None if info is None else info.state,
            rows_read=figures.rows_in[uid],
            rows_per_second=_of_all(uid, (each.rows_in_per_second for each in measured.values())),
            bytes_read=round(metrics[NUM_BYTES_IN].value) if NUM_BYTES_IN in metrics else None,
            bytes_per_second=_of_all(uid, (each.bytes_in_per_second for each in measured.values())),
            num_splits=count,
            lag=dict(figures.lag.get(uid, {})),
            troubles=troubles.get(uid, []),
            alignment_group=identity.alignment_groups.get(uid),
            drift_ms=times.largest_drift_ms([uid]) if event_times else None,
            paused_splits=sum(at.paused for at in event_times.values()),
            idle_splits=sum(at.idle for at in event_times.values()),
            metrics={name: MetricView(kind=each.kind, value=each.value) for name, each in sorted(metrics.items())},
            splits=[
                msgspec.structs.replace(each, position=position_of(positions[each.id]))
                if each.id in positions
                else each
                for each in shown
            ],
            splits_left_out=count - len(shown),
        )


def _splits(uid: str, measured: Mapping[SubtaskId, SubtaskFigures], times: EventTimes) -> list[SplitView]:
    """Return the splits of a source that are reported, without their positions."""
    found: dict[str, SplitView] = {}
    for key, figures in measured.items():
        at: Mapping[str, SplitEventTime] = figures.last.event_times.get(uid, {})
        for split_id in dict.fromkeys([*figures.last.positions.get(uid, {}), *at]):
            lag = figures.last.pending_records.get(uid, {}).get(split_id)
            found[split_id] = _split(split_id, key.subtask, uid, at.get(split_id), times, lag)
    return list(found.values())


def _split(
    split_id: str, subtask: int, uid: str, at: SplitEventTime | None, times: EventTimes, lag: int | None
) -> SplitView:
    return SplitView(
        id=split_id,
        subtask=subtask,
        slot=subtask,
        position=None,
        lag=lag,
        watermark_ms=None if at is None else known_time_ms(at.watermark_ms),
        drift_ms=None if at is None else times.drift_ms(uid, at),
        idle=None if at is None else at.idle,
        paused=None if at is None else at.paused,
    )


def _lag_order(split: SplitView) -> tuple[int, bool, int, str]:
    """Order splits: those with the most rows to read first, then those that lag most in event time."""
    at_ms = split.watermark_ms
    return (-(split.lag or 0), bool(split.idle), -LAST_MS if at_ms is None else at_ms, split.id)


def _groups(identity: QueryIdentity, figures: Figures, times: EventTimes) -> list[GroupView]:
    made = []
    for group, slowest in times.slowest.items():
        sources = [uid for uid, of in identity.alignment_groups.items() if of == group]
        splits = [at for uid in sources for at in figures.event_times(uid).values()]
        made.append(
            GroupView(
                group=group,
                sources=sources,
                slowest=None if slowest is None else SlowestView(source=slowest.source, split=slowest.split),
                watermark_ms=None if slowest is None else known_time_ms(slowest.watermark_ms),
                drift_ms=times.largest_drift_ms(sources),
                paused_splits=sum(at.paused for at in splits),
                num_splits=len(splits),
            )
        )
    return made


def _sinks(
    identity: QueryIdentity,
    reporter: ProgressReporter,
    measured: Mapping[SubtaskId, SubtaskFigures],
    events: RecentEvents,
    now_ms: int,
) -> Iterator[SinkView]:
    waits, commit_share = reporter.unpublished_ms(now_ms), events.commit_share(now_ms)
    for uid, description in identity.sinks.items():
        yield SinkView(
            uid=uid,
            description=description,
            rows_written=reporter.figures.rows_out[uid],
            rows_per_second=_of_all(uid, (each.rows_out_per_second for each in measured.values())),
            unpublished_ms=waits.get(uid),
            commits=events.commits,
            last_commit_ms=events.last_commit_ms,
            commit_share=None if commit_share is None else _share(commit_share),
        )


def _checkpoints(
    identity: QueryIdentity, status: JobStatus | None, reporter: ProgressReporter, events: RecentEvents, now_ms: int
) -> CheckpointsView:
    last, pending = reporter.last_checkpoint, None if status is None else status.pending_checkpoint
    return CheckpointsView(
        interval_ms=identity.checkpoint_interval_ms,
        pending=None if status is None or pending is None else PendingCheckpoint(
            id=pending, started_ms=status.pending_since_ms
        ),
        completed=events.completed_checkpoints,
        failed=events.failed_checkpoints,
        last=None if last is None else LastCheckpoint(
            id=last.checkpoint_id,
            duration_ms=last.duration_ms,
            size_bytes=last.size_bytes,
            completed_ms=last.completed_ms,
            age_ms=max(0, now_ms - last.completed_ms),
        ),
        recent=list(events.checkpoints),
    )  # fmt: skip


def _of_all(uid: str, rates: Iterator[dict[str, float] | None]) -> float | None:
    """Return the sum of the rates of a source or sink over all subtasks; None: nobody knows one."""
    return _sum([of[uid] for of in rates if of is not None and uid in of])


def _rates(figures: SubtaskFigures | None) -> tuple[float | None, float | None]:
    """Return how many rows a subtask takes and gives by second: of sources, sinks and exchanges."""
    if figures is None or figures.rows_in_per_second is None or figures.rows_out_per_second is None:
        return None, None
    rows_in = _sum([*figures.rows_in_per_second.values(), figures.received_per_second])
    return rows_in, _sum([*figures.rows_out_per_second.values(), figures.sent_per_second])


def _sum(rates: list[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return round(sum(known), 1) if known else None


def _share(share: float) -> float:
    return round(share, 3)
