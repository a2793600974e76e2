"""Decides when checkpoints begin, complete, fail and are deleted, and when what they hold is committed.

Never: start one before every subtask is running, two at a time, or write a manifest before everything in it is safe.

`Stale` is news of a checkpoint that is not under way (any longer), or of a part of it that is there already.

- A checkpoint that is given up while its manifest is being written may exist all the same. It is a consistent one, so
  that it may be restored; nobody is notified that it completed, and it is deleted when a newer one is complete.
- A source that cannot take part yet (its enumerator is being restored) puts a checkpoint off, as often as it refuses:
  who asked for it need not ask again, and nothing has failed before the time of one checkpoint is over.
- While a subtask has recovered rows to process (`SubtaskRecovered` is yet to come), a time-out gives its checkpoint up,
  but counts for none that failed: what it would bring about, a restart, begins the same recovery from the beginning,
  for ever if that takes longer than a checkpoint may. Recovery goes on meanwhile, with or without checkpoints; once it
  is over, time-outs count.
- A savepoint is a checkpoint that is also written to the user's folder, first: restarting from either commits the same.
  Of one that is given up nothing stays in that folder: who asked for it is answered when that is so, and may try again.
- From time to time it is looked whether all files are there that a complete checkpoint names: most of them older ones
  wrote, and a folder may have been cleared. Of what is gone slots still have the state: they write it again with the
  next checkpoint, which is due at once, and whose barrier says what is gone.
- Commits run beside checkpoints, one at a time in the order of the epochs. An epoch that is not known to be committed
  is in the manifests that follow as it was ordered, so that a restore orders exactly the same again.

Follows FLIP-27, "Where to run the enumerator"; Flink's CheckpointCoordinator.
"""

from __future__ import annotations

import msgspec

from headgate.checkpoint import checkpoint_events as cp
from headgate.checkpoint.commits import CommitQueue
from headgate.checkpoint.manifest import Committables, Manifest, QueryPlan, SourceEntry, UncommittedEpoch
from headgate.machine import IGNORED, SAME, Machine, Maybe, Row
from headgate.protocol.messages import CheckpointKind, ErrorReport, SubtaskId
from headgate.protocol.state import InlineState, SubtaskState

_PUT_OFF_MS = 200
"""How long a checkpoint waits that a source refused."""


_OfCheckpoint = (
    cp.SourceStateReady
    | cp.SourceRefused
    | cp.SubtaskAcknowledged
    | cp.SubtaskDeclined
    | cp.ManifestWritten
    | cp.ManifestWriteFailed
)


_FAILED = (cp.NotifyAborted, Maybe(cp.AnswerRequest), Maybe(cp.LookForFiles))
"""What follows when one failed, and the next is awaited."""
_GIVEN_UP = (Maybe(cp.AnswerRequest), Maybe(cp.DeleteSavepoint))
"""What follows when a checkpoint is given up of which something may be written."""


class Stale(msgspec.Struct, frozen=True):
    """Stands in the table for news of a checkpoint that is not under way, or of a part of it that is there already."""


class CheckpointOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user chose.

    Parameters
    ----------
    interval_ms
        From the beginning of one checkpoint to that of the next, in milliseconds; None: only those asked for.
    timeout_ms
        A checkpoint that takes longer is given up, in milliseconds.
    num_retained
        How many completed checkpoints are kept, at least one.
    tolerable_failed
        How many may fail in a row. Savepoints, what a failover aborts and time-outs during recovery do not count.
    first_after_restore_ms
        The longest time from RUNNING, or from a failure, to the next checkpoint, in milliseconds.
    look_interval_ms
        The shortest time between two looks whether files of checkpoints are there, in milliseconds.
    """

    interval_ms: int | None
    timeout_ms: int = 600_000
    num_retained: int = 1
    tolerable_failed: int = 0
    first_after_restore_ms: int = 500
    look_interval_ms: int = 60_000


class StoredCheckpoints(msgspec.Struct, frozen=True):
    """What lies at the checkpoint location when a run begins.

    Parameters
    ----------
    complete
        The checkpoints that have a manifest, in ascending order.
    incomplete
        Those that have none.
    """

    complete: tuple[int, ...] = ()
    incomplete: tuple[int, ...] = ()


class _Pending(msgspec.Struct):
    """The checkpoint under way. ``last``: the query ends with it. ``requests``: who hears of it.

    ``late_ms``: when it is given up, which does not change while it is put off. ``due_ms``: when one would have begun
    that nobody asked for, and whose place it takes.
    """

    checkpoint_id: int
    kind: CheckpointKind
    location: str
    last: bool
    requests: tuple[cp.CheckpointRequested, ...]
    began_ms: int
    late_ms: int
    due_ms: int | None
    sources: dict[str, cp.SourceStateReady] = {}
    subtasks: dict[SubtaskId, SubtaskState] = {}
    manifest: Manifest | None = None
    to_write: tuple[str, ...] = ()
    gone: frozenset[str] = frozenset()


class CheckpointCoordinator(Machine):
    """The machine of a query's checkpoints.

    Parameters
    ----------
    options
        The user's.
    plan
        The query: its sources, stages, parallelism, run.
    restored
        The checkpoint that the query is restored from, as `headgate.checkpoint.restore` made it fit the plan; None: a
        fresh start.
    stored
        What lies at the checkpoint location; None: nothing.
    clock_offset_ms
        What is added to the machine's time to have milliseconds since 1970-01-01 UTC.
    """

    # fmt: off
    TRANSITIONS = (
        Row("stopped",                  cp.CheckpointingStarted, SAME, [Maybe(cp.Commit)], "it may not be"),
        Row("stopped",                  cp.SubtasksRunning,      "idle", [], "first: soon"),
        Row("stopped",                  cp.SubtasksRunning,      "recommitting", [Maybe(cp.Commit)], "older is first",
            when="restored"),
        Row("ending",                   cp.SubtasksRunning,      SAME, [Maybe(cp.Commit)], "it had failed",
            by="_on_subtasks_running_again"),
        Row("suspended",                cp.SubtasksRunning,      SAME, [], "all is done",
            by="_on_subtasks_running_again"),
        Row("stopped, ending, suspended", cp.SubtasksNotRunning, SAME, IGNORED, "nothing pends"),
        Row("recommitting, idle",       cp.SubtasksNotRunning,   "stopped"),
        Row("snapshotting, pending",    cp.SubtasksNotRunning,   "stopped",
            [cp.NotifyAborted, Maybe(cp.AnswerRequest)], "incomplete"),
        Row("completing",               cp.SubtasksNotRunning,   "stopped",
            [cp.NotifyAborted, *_GIVEN_UP], "its manifest may exist all the same"),
        Row("stopped, recommitting, idle", cp.CheckpointRequested, SAME, [], "due at once"),
        Row("snapshotting, pending, completing", cp.CheckpointRequested, SAME, [], "it waits"),
        Row("ending, suspended",        cp.CheckpointRequested,  SAME, [cp.AnswerRequest], "it is over",
            by="_on_checkpoint_requested_too_late"),
        Row("stopped, recommitting, idle", cp.RequestWithdrawn, SAME, [Maybe(cp.AnswerRequest)], "if it waits"),
        Row("snapshotting, pending, completing", cp.RequestWithdrawn, SAME, [Maybe(cp.AnswerRequest)],
            "if it waits; a checkpoint goes on without"),
        Row("snapshotting, pending",    cp.RequestWithdrawn,     "idle", [cp.NotifyAborted, cp.AnswerRequest],
            "a savepoint or the last one", when="its own"),
        Row("completing",               cp.RequestWithdrawn,     "idle", [cp.NotifyAborted, *_GIVEN_UP],
            "its manifest may exist all the same", when="its own"),
        Row("ending, suspended",        cp.RequestWithdrawn,     SAME, IGNORED, "it was answered"),
        Row("stopped, recommitting, idle", cp.InputAllEnded, SAME, [], "due at once"),
        Row("snapshotting, pending, completing", cp.InputAllEnded, SAME, [], "it waits"),
        Row("ending, suspended",        cp.InputAllEnded,        SAME, IGNORED, "after a drain"),
        Row("idle",                     cp.CheckpointTimePassed, "snapshotting", [cp.SnapshotSources], when="due",
            by="_on_time_in_idle"),
        Row("stopped, recommitting, ending, suspended", cp.CheckpointTimePassed, SAME, IGNORED),
        Row("idle",                     cp.CheckpointTimePassed, SAME, by="_on_time_in_idle"),
        Row("snapshotting, pending, completing", cp.CheckpointTimePassed, SAME, by="_on_time_in_pending"),
        Row("snapshotting, pending",    cp.CheckpointTimePassed, "idle", _FAILED, "timeout", when="late",
            by="_on_time_in_pending"),
        Row("completing",               cp.CheckpointTimePassed, "idle", [*_FAILED, Maybe(cp.DeleteSavepoint)],
            "its manifest may exist all the same", when="late", by="_on_time_in_pending"),
        Row("snapshotting, pending, completing", cp.CheckpointTimePassed, "stopped",
            [cp.NotifyAborted, Maybe(cp.AnswerRequest), cp.CheckpointFailureLimitReached], "one too many", when="late",
            by="_on_time_in_pending"),
        Row("snapshotting",             cp.SourceStateReady,     SAME, [], "some missing"),
        Row("snapshotting",             cp.SourceStateReady,     "pending", [cp.SendBarriers], when="all"),
        Row("snapshotting",             cp.SourceRefused,        "idle", [cp.NotifyAborted], "put off: soon"),
        Row("snapshotting",             cp.SourceRefused,        "idle", _FAILED, "for too long", when="late"),
        Row("snapshotting",             cp.SourceRefused,        "stopped",
            [cp.NotifyAborted, Maybe(cp.AnswerRequest), cp.CheckpointFailureLimitReached], "one too many", when="late"),
        Row("pending",                  cp.SubtaskAcknowledged,  SAME, [], "some missing"),
        Row("pending",                  cp.SubtaskAcknowledged,  "completing", [cp.WriteManifest], "last of all",
            when="all"),
        Row("pending",                  cp.SubtaskDeclined,      "idle", _FAILED),
        Row("pending",                  cp.SubtaskDeclined,      "stopped",
            [cp.NotifyAborted, Maybe(cp.AnswerRequest), cp.CheckpointFailureLimitReached], "one too many"),
        Row("completing",               cp.ManifestWritten,      SAME, [cp.WriteManifest], "then our own",
            when="savepoint"),
        Row("completing",               cp.ManifestWritten,      "idle",
            [cp.NotifyCompleted, Maybe(cp.Commit), Maybe(cp.AnswerRequest), Maybe(cp.DeleteCheckpoint),
            Maybe(cp.LookForFiles)], "it is complete"),
        Row("completing",               cp.ManifestWritten,      "ending",
            [cp.NotifyCompleted, Maybe(cp.Commit), Maybe(cp.AnswerRequest), Maybe(cp.DeleteCheckpoint)],
            "nothing more begins", when="last"),
        Row("completing",               cp.ManifestWriteFailed,  "idle", [*_FAILED, Maybe(cp.DeleteSavepoint)],
            "its manifest may exist all the same"),
        Row("completing",               cp.ManifestWriteFailed,  "stopped",
            [cp.NotifyAborted, Maybe(cp.AnswerRequest), cp.CheckpointFailureLimitReached], "one too many"),
        Row("stopped, recommitting, idle, snapshotting, pending, completing", cp.FilesLooked, SAME,
            [Maybe(cp.ReportLostFiles)], "if some are gone, or are no longer"),
        Row("ending, suspended",        cp.FilesLooked,          SAME, IGNORED, "who starts from it finds out"),
        Row("stopped, idle, snapshotting, pending, completing", cp.Committed, SAME, [Maybe(cp.Commit)],
            "the next epoch"),
        Row("recommitting, ending",     cp.Committed,            SAME, [cp.Commit], "the next epoch"),
        Row("recommitting",             cp.Committed,            "idle", when="all"),
        Row("ending",                   cp.Committed,            "suspended", [cp.QuerySuspended], when="final"),
        Row("stopped, ending",          cp.CommitFailed,         SAME, [cp.CheckpointFailureLimitReached],
            "again when all run"),
        Row("recommitting, idle",       cp.CommitFailed,         "stopped", [cp.CheckpointFailureLimitReached]),
        Row("snapshotting, pending",    cp.CommitFailed,         "stopped",
            [cp.NotifyAborted, Maybe(cp.AnswerRequest), cp.CheckpointFailureLimitReached]),
        Row("completing",               cp.CommitFailed,         "stopped",
            [cp.NotifyAborted, *_GIVEN_UP, cp.CheckpointFailureLimitReached]),
        Row("stopped, recommitting, idle, snapshotting, pending, completing, ending, suspended", cp.SubtaskRecovered,
            SAME),
        Row("stopped, recommitting, idle, snapshotting, pending, completing, ending, suspended", Stale, SAME, IGNORED),
    )
    # fmt: on

    def __init__(
        self,
        options: CheckpointOptions,
        plan: QueryPlan,
        restored: Manifest | None,
        stored: StoredCheckpoints | None = None,
        clock_offset_ms: int = 0,
    ) -> None:
        super().__init__()
        assert plan.sources and options.num_retained >= 1
        stored = stored or StoredCheckpoints()
        self._options = options
        self._plan = plan
        self._clock_offset_ms = clock_offset_ms
        self.state = "stopped"
        self.latest = restored
        """The last completed checkpoint: what subtasks and sources are restored from."""
        restored_id = 0 if restored is None else restored.checkpoint_id
        self._last_id = max(restored_id, *stored.complete, *stored.incomplete, 0)
        self._retained = [each for each in stored.complete if restored is None or each <= restored_id]
        # Deleted with the next completion: failed ones, and those made after an older one that was restored.
        self._abandoned = [*stored.incomplete, *(each for each in stored.complete if each not in self._retained)]
        self._executions: dict[SubtaskId, int] = {}
        self._recovering: set[SubtaskId] = set()
        self._pending: _Pending | None = None
        self._requests: list[cp.CheckpointRequested] = []
        self._input_ended = False
        self._due_ms: int | None = None  # when one begins that nobody asks for
        self._asked_ms = 0  # when one begins that somebody asks for
        self._late_ms: int | None = None  # when what was put off is given up
        self._put_off: tuple[cp.CheckpointRequested, ...] = ()  # who asked for that
        self._look_ms: int | None = None  # not before; None: nothing was completed yet
        self._gone: frozenset[str] = frozenset()  # files of the last complete checkpoint, when it was looked
        self._unwritten = self._gone  # of them those that no complete checkpoint has written again since
        self._tried = self._gone  # what was to be written again since it was looked
        self._failed_in_row = 0  # since the last completion
        self._failed_since_start = 0  # of them those since the last failover: they count against the limit
        restored_epochs = () if restored is None else (
            *restored.uncommitted, UncommittedEpoch(restored.epoch, restored.commits),
        )  # fmt: skip
        self._commits = CommitQueue(restored_epochs)

    def refused(self, event: cp.Event) -> str | None:
        """Return why an event cannot have happened."""
        if isinstance(event, _OfCheckpoint) and event.checkpoint_id > self._last_id:
            return "there was no such checkpoint"
        if isinstance(event, cp.SourceStateReady | cp.SourceRefused) and event.source not in self._plan.sources:
            return "there is no such source"
        if isinstance(event, cp.Committed | cp.CommitFailed) and event.epoch != self._commits.under_way:
            return "no such commit is under way"
        return None

    def brief(self, event: cp.Event, kind: type) -> str:
        """Return an event without the state in it, which may be large."""
        return _brief(event)

    def __str__(self) -> str:
        return f"The checkpoint coordinator (checkpoint under way: {self.pending_id}; last: {self._last_id})"

    def next_time_ms(self) -> int | None:
        """Return when `CheckpointTimePassed` is wanted, in milliseconds; it may be past. None: not before an event."""
        if self._pending is not None:
            return self._pending.late_ms
        return self._begins_ms() if self.state == "idle" else None

    @property
    def pending_id(self) -> int | None:
        """The checkpoint under way."""
        return None if self._pending is None else self._pending.checkpoint_id

    @property
    def pending_since_ms(self) -> int | None:
        """When the checkpoint under way was ordered, in milliseconds since 1970-01-01 UTC."""
        return None if self._pending is None else self._pending.began_ms + self._clock_offset_ms

    @property
    def epoch(self) -> int:
        """How many checkpoints have completed at the location."""
        return 0 if self.latest is None else self.latest.epoch

    @property
    def is_past_the_last(self) -> bool:
        """Whether the last checkpoint is complete: what is read from now on is in none."""
        return self.state in ("ending", "suspended")

    def check(self) -> None:
        """Assert what always holds."""
        assert self._late_ms is None or self.state == "idle"
        assert (self._pending is not None) == (self.state in ("snapshotting", "pending", "completing"))
        assert self._recovering <= self._executions.keys()
        assert bool(self._executions) == (self.state not in ("stopped", "ending", "suspended"))
        self._commits.check(self.epoch)
        assert self.latest is None or self.latest.checkpoint_id <= self._last_id
        assert not set(self._retained) & set(self._abandoned)
        if self._pending is not None:
            assert self._pending.checkpoint_id == self._last_id
            assert self.latest is None or self._pending.checkpoint_id > self.latest.checkpoint_id
            assert (self.state == "snapshotting") == (self._pending.sources.keys() != self._plan.sources.keys())
            assert (self.state == "completing") == (self._pending.subtasks.keys() == self._executions.keys())
        if self.state in ("idle", "snapshotting", "pending", "completing"):
            assert not self._commits.comes_first
        if self.state in ("ending", "suspended"):
            assert bool(self._commits.epochs) == (self.state == "ending")

    def kind_of(self, event: cp.Event) -> type:
        """Return the type under which the table has the event."""
        pending = self._pending
        if not isinstance(event, _OfCheckpoint):
            return type(event)
        if pending is None or pending.checkpoint_id != event.checkpoint_id:
            return Stale
        match event:
            case cp.SourceStateReady() | cp.SourceRefused():  # a part that is there is safe
                stale = event.source in pending.sources
            case cp.SubtaskAcknowledged() | cp.SubtaskDeclined():
                stale = event.subtask in pending.subtasks or self._executions.get(event.subtask) != event.execution
            case _:
                stale = False
        return Stale if stale else type(event)

    # What concerns all subtasks.

    def _on_checkpointing_started(self, event: cp.CheckpointingStarted, now_ms: int) -> list[cp.Action]:
        return self._commit_next()

    def _on_subtasks_running(self, event: cp.SubtasksRunning, now_ms: int) -> list[cp.Action]:
        self._executions, self._recovering = dict(event.executions), set(event.recovering)
        if event.restored or self._due_ms is None:
            self._due_ms = self._soon(now_ms)
        if not self._commits.comes_first:
            self.state = "idle"
            return []
        self.state = "recommitting"
        return self._commit_next()

    def _on_subtask_recovered(self, event: cp.SubtaskRecovered, now_ms: int) -> list[cp.Action]:
        if self._executions.get(event.subtask) == event.execution:
            self._recovering.discard(event.subtask)
        return []

    def _on_subtasks_running_again(self, event: cp.SubtasksRunning, now_ms: int) -> list[cp.Action]:
        return self._commit_next()

    def _on_subtasks_not_running(self, event: cp.SubtasksNotRunning, now_ms: int) -> list[cp.Action]:
        actions = self._abort(event.reason)
        self._stop()
        return actions

    def _on_checkpoint_requested(self, event: cp.CheckpointRequested, now_ms: int) -> list[cp.Action]:
        if not self._requests:  # else it waits with what was put off
            self._asked_ms = now_ms
        self._requests.append(event)
        return []

    def _on_checkpoint_requested_too_late(self, event: cp.CheckpointRequested, now_ms: int) -> list[cp.Action]:
        return [cp.AnswerRequest(event.request_id, None, _OVER)]

    def _on_request_withdrawn(self, event: cp.RequestWithdrawn, now_ms: int) -> list[cp.Action]:
        pending, answer = self._pending, cp.AnswerRequest(event.request_id, None, _WITHDRAWN)
        if pending is not None and any(each.request_id == event.request_id for each in pending.requests):
            if pending.kind is not CheckpointKind.CHECKPOINT:
                actions = self._abort(_WITHDRAWN)
                self.state = "idle"
                self._let_be_due(pending)
                return actions
            pending.requests = tuple(each for each in pending.requests if each.request_id != event.request_id)
            return [answer]
        before = len(self._requests)
        self._requests = [each for each in self._requests if each.request_id != event.request_id]
        if len(self._requests) == before:
            return []  # it was answered
        if self._put_off and not any(each in self._requests for each in self._put_off):
            self._late_ms = None
        return [answer]

    def _on_input_all_ended(self, event: cp.InputAllEnded, now_ms: int) -> list[cp.Action]:
        self._input_ended = True
        self._due_ms = now_ms
        return []

    # The way of a checkpoint.

    def _on_time_in_idle(self, event: cp.CheckpointTimePassed, now_ms: int) -> list[cp.Action]:
        begins_ms = self._begins_ms()
        if begins_ms is None or now_ms < begins_ms:
            return []
        first = self._requests[0] if self._requests else cp.CheckpointRequested(0, CheckpointKind.CHECKPOINT)
        # Whoever asks for no more than a checkpoint is content with the one that others asked for.
        served = [
            each for each in self._requests
            if each is first or (each.kind is CheckpointKind.CHECKPOINT and first.kind is CheckpointKind.CHECKPOINT)
        ]  # fmt: skip
        last = first.kind in (CheckpointKind.SUSPEND, CheckpointKind.DRAIN) or (self._input_ended and not served)
        self._requests = [each for each in self._requests if each not in served]
        self._last_id += 1
        late_ms, self._late_ms = self._late_ms or now_ms + self._options.timeout_ms, None
        self._pending = _Pending(
            self._last_id, first.kind, first.location, last, tuple(served), now_ms, late_ms, self._due_ms
        )  # fmt: skip
        self.state = "snapshotting"
        wait_ms = 0 if self._input_ended else self._options.interval_ms
        self._due_ms = None if wait_ms is None else now_ms + wait_ms
        return [cp.SnapshotSources(self._last_id)]

    def _on_time_in_pending(self, event: cp.CheckpointTimePassed, now_ms: int) -> list[cp.Action]:
        pending = self._under_way()
        if now_ms < pending.late_ms:
            return []
        missing = [f"source {uid!r}" for uid in self._plan.sources if uid not in pending.sources]
        if not missing:
            subtasks = sorted(self._executions.keys() - pending.subtasks.keys())
            missing = [f"subtask {each.subtask} of stage {each.stage}" for each in subtasks] or ["its manifest"]
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if missing[5:] else "")
        reason = f"it took longer than {self._options.timeout_ms} ms; still missing: {shown}"
        if self._recovering:
            reason += f" ({len(self._recovering)} subtasks still process what they recovered: this does not count)"
        return self._fail(reason, now_ms, counts=not self._recovering)

    def _on_source_state_ready(self, event: cp.SourceStateReady, now_ms: int) -> list[cp.Action]:
        pending = self._under_way()
        pending.sources[event.source] = event
        if pending.sources.keys() != self._plan.sources.keys():
            return []
        self.state = "pending"
        pending.gone = self._unwritten
        completed = 0 if self.latest is None else self.latest.checkpoint_id
        return [cp.SendBarriers(pending.checkpoint_id, completed, pending.kind, pending.location, pending.gone)]

    def _on_source_refused(self, event: cp.SourceRefused, now_ms: int) -> list[cp.Action]:
        pending = self._under_way()
        reason = f"source {event.source!r} could not take part: {event.reason}"
        if now_ms >= pending.late_ms:
            return self._fail(reason, now_ms)
        self._pending, self.state = None, "idle"
        self._requests = [*pending.requests, *self._requests]
        self._put_off, self._late_ms = pending.requests, pending.late_ms
        self._asked_ms = now_ms + _PUT_OFF_MS
        self._let_be_due(pending, self._asked_ms)
        return [cp.NotifyAborted(pending.checkpoint_id, reason, put_off=True, began_ms=pending.began_ms)]

    def _on_subtask_acknowledged(self, event: cp.SubtaskAcknowledged, now_ms: int) -> list[cp.Action]:
        pending = self._under_way()
        pending.subtasks[event.subtask] = event.state
        if pending.subtasks.keys() != self._executions.keys():
            return []
        self.state = "completing"
        pending.manifest = self._manifest(pending, now_ms)
        pending.to_write = (pending.location, "") if pending.location else ("",)
        return [cp.WriteManifest(pending.checkpoint_id, pending.manifest, pending.to_write[0])]

    def _on_subtask_declined(self, event: cp.SubtaskDeclined, now_ms: int) -> list[cp.Action]:
        where = f"subtask {event.subtask.subtask} of stage {event.subtask.stage}"
        return self._fail(f"{where} declined: {event.reason}", now_ms)

    def _on_manifest_write_failed(self, event: cp.ManifestWriteFailed, now_ms: int) -> list[cp.Action]:
        return self._fail(f"its manifest could not be written: {event.reason}", now_ms, event.error)

    def _on_manifest_written(self, event: cp.ManifestWritten, now_ms: int) -> list[cp.Action]:
        pending = self._under_way()
        assert pending.manifest is not None
        pending.to_write = pending.to_write[1:]
        if pending.to_write:
            return [cp.WriteManifest(pending.checkpoint_id, pending.manifest, pending.to_write[0])]
        return self._complete(pending, pending.manifest, event.size_bytes, now_ms)

    def _manifest(self, pending: _Pending, now_ms: int) -> Manifest:
        """Make the manifest of a checkpoint whose parts are all there."""
        stages = range(len(self._plan.stages))
        new = _committables(pending.subtasks)
        return Manifest(
            checkpoint_id=pending.checkpoint_id,
            epoch=self.epoch + 1,
            kind=pending.kind,
            query_id=self._plan.query_id,
            run=self._plan.run,
            created_ms=now_ms + self._clock_offset_ms,
            parallelism=self._plan.parallelism,
            max_parallelism=self._plan.max_parallelism,
            sources={
                uid: SourceEntry(
                    name=source.name,
                    enumerator=InlineState(pending.sources[uid].state),
                    fixed=dict(source.fixed),
                    unassigned=pending.sources[uid].unassigned,
                )
                for uid, source in self._plan.sources.items()
            },
            stages=self._plan.stages,
            subtasks=tuple(
                tuple(
                    _for_manifest(state)
                    for subtask, state in sorted(pending.subtasks.items())
                    if subtask.stage == stage
                )
                for stage in stages
            ),
            commits=self._commits.for_manifest(new),
            uncommitted=self._commits.epochs,
            exchanges=dict(self._plan.exchanges),
            signatures=dict(self._plan.signatures),
            state_schemas=dict(self._plan.state_schemas),
            channels=tuple(channel for _, state in sorted(pending.subtasks.items()) for channel in state.channels),
            channels_parallelism=self._plan.parallelism,
        )

    def _complete(self, pending: _Pending, manifest: Manifest, size_bytes: int, now_ms: int) -> list[cp.Action]:
        """Take the checkpoint for the one to restore from, and let it be published."""
        known: dict[int, dict[str, int]] = {}
        for uid, ready in pending.sources.items():
            for subtask, number in ready.finished_known.items():
                known.setdefault(subtask, {})[uid] = number
        duration_ms = now_ms - pending.began_ms
        actions: list[cp.Action] = [
            cp.NotifyCompleted(pending.checkpoint_id, known, manifest.epoch, duration_ms, size_bytes),
            *(cp.AnswerRequest(each.request_id, pending.checkpoint_id) for each in pending.requests),
        ]
        self.latest, self._pending = manifest, None
        self._unwritten, self._tried = self._unwritten - pending.gone, self._tried | pending.gone
        self._failed_in_row = self._failed_since_start = 0
        self._commits.add(manifest.epoch, _committables(pending.subtasks))
        self.state = "idle"
        if pending.last:
            actions += [cp.AnswerRequest(each.request_id, None, _OVER) for each in self._requests]
            self._requests = []
            self._stop()
            self.state = "ending"
        self._retained.append(pending.checkpoint_id)
        superfluous = len(self._retained) - self._options.num_retained
        doomed = [*self._abandoned, *self._retained[: max(0, superfluous)]]
        self._retained, self._abandoned = self._retained[max(0, superfluous) :], []
        actions += [*self._commit_next(), *(cp.DeleteCheckpoint(each) for each in doomed)]
        return actions if pending.last else [*actions, *self._look(manifest, now_ms)]

    def _look(self, manifest: Manifest, now_ms: int) -> list[cp.Action]:
        """Order a look at the files of a complete checkpoint, if it is time, or some were written again for it."""
        is_time = self._look_ms is not None and now_ms >= self._look_ms
        if self._look_ms is None or is_time or self._gone:
            self._look_ms = now_ms + self._options.look_interval_ms
        return [cp.LookForFiles(manifest)] if is_time or self._gone else []

    def _on_files_looked(self, event: cp.FilesLooked, now_ms: int) -> list[cp.Action]:
        gone, before = frozenset(event.missing), self._gone
        self._gone = self._unwritten = gone
        new, back = tuple(sorted(gone - before)), tuple(sorted(before - gone))
        if gone - self._tried:  # also what was there again meanwhile, and is gone once more
            self._due_ms = now_ms
        self._tried = frozenset()
        return [cp.ReportLostFiles(event.checkpoint_id, new, back)] if new or back else []

    def _under_way(self) -> _Pending:
        assert self._pending is not None
        return self._pending

    def _fail(
        self, reason: str, now_ms: int, error: ErrorReport | None = None, *, counts: bool = True
    ) -> list[cp.Action]:
        """Give up the checkpoint under way; fail over if it was one too many, unless files of the last one are gone."""
        pending = self._under_way()
        checkpoint_id = pending.checkpoint_id
        actions = self._abort(reason)
        counts = counts and not pending.location
        self._failed_in_row += counts
        self._failed_since_start += counts
        if self._gone and self.latest is not None:  # nothing is whole that a failover could go back to
            self._tried |= self._gone
            actions.append(cp.LookForFiles(self.latest))
        elif self._failed_since_start > self._options.tolerable_failed:
            self._failed_since_start = 0
            self._stop()
            limit = f"checkpoint {checkpoint_id} failed, number {self._failed_in_row} in a row: {reason}"
            return [*actions, cp.CheckpointFailureLimitReached(limit, error)]
        self.state = "idle"
        self._due_ms = self._soon(now_ms)
        return actions

    def _abort(self, reason: str) -> list[cp.Action]:
        """Forget the checkpoint under way; what is stored of it is deleted some day."""
        pending, self._pending = self._pending, None
        if pending is None:
            return []
        self._abandoned.append(pending.checkpoint_id)
        answers = tuple(cp.AnswerRequest(each.request_id, None, reason) for each in pending.requests)
        aborted = cp.NotifyAborted(pending.checkpoint_id, reason, began_ms=pending.began_ms)
        if pending.location and pending.manifest is not None:
            return [aborted, cp.DeleteSavepoint(pending.manifest, pending.location, answers)]
        return [aborted, *answers]

    def _stop(self) -> None:
        """Begin nothing before all subtasks are running (again)."""
        self.state, self._executions, self._recovering = "stopped", {}, set()
        self._input_ended, self._late_ms = False, None

    def _begins_ms(self) -> int | None:
        """Return when the next checkpoint begins, if all is idle then; None: when something happens."""
        return self._asked_ms if self._requests else self._due_ms

    def _let_be_due(self, pending: _Pending, earliest_ms: int = 0) -> None:
        """Let what is due, without that checkpoint, begin at this time at the earliest."""
        due_ms = [each for each in (pending.due_ms, self._due_ms) if each is not None]
        self._due_ms = max(min(due_ms), earliest_ms) if due_ms else None

    def _soon(self, now_ms: int) -> int | None:
        """Return when the first checkpoint after a start or a failure is due that nobody asks for."""
        interval_ms, soon_ms = self._options.interval_ms, self._options.first_after_restore_ms
        if interval_ms is None:
            return now_ms + soon_ms if self._input_ended else None
        return now_ms + min(interval_ms, soon_ms)

    # Commits, beside checkpoints.

    def _on_committed(self, event: cp.Committed, now_ms: int) -> list[cp.Action]:
        final = self.state == "ending" and len(self._commits.epochs) == 1
        if final and any(event.left.values()):
            raise self.invalid(event, "a final commit leaves nothing to be published later")
        self._commits.committed(event.left)
        if final:
            assert self.latest is not None
            self.state = "suspended"
            return [cp.QuerySuspended(self.latest.checkpoint_id)]
        if self.state == "recommitting" and not self._commits.comes_first:
            self.state = "idle"
        return self._commit_next()

    def _on_commit_failed(self, event: cp.CommitFailed, now_ms: int) -> list[cp.Action]:
        self._commits.failed()
        reason = f"epoch {event.epoch} could not be committed: {event.reason}"
        actions = self._abort(reason)
        if self.state != "ending":
            self._stop()
        return [*actions, cp.CheckpointFailureLimitReached(reason, event.error)]

    def _commit_next(self) -> list[cp.Action]:
        """Order the oldest commit, unless one is under way."""
        ordered = self._commits.order_next()
        if ordered is None:
            return []
        final = self.state == "ending" and len(self._commits.epochs) == 1
        return [cp.Commit(ordered.epoch, ordered.committables, final)]


_OVER = "the query has taken its last checkpoint"
_WITHDRAWN = "nobody waits for it any longer"


def _committables(subtasks: dict[SubtaskId, SubtaskState]) -> Committables:
    """Return what subtasks prepared to be committed, by sink, in the order of the subtasks."""
    found: dict[str, list[bytes]] = {}
    for _, state in sorted(subtasks.items()):
        for uid, operator in state.operators.items():
            if operator.committables:
                found.setdefault(uid, []).extend(operator.committables)
    return {uid: tuple(committables) for uid, committables in found.items()}


def _for_manifest(state: SubtaskState) -> SubtaskState:
    """Return a subtask's state without what is in the manifest's ``commits`` and ``channels``."""
    if not state.channels and not any(operator.committables for operator in state.operators.values()):
        return state
    operators = {uid: msgspec.structs.replace(each, committables=()) for uid, each in state.operators.items()}
    return msgspec.structs.replace(state, operators=operators, channels=())


def _brief(event: cp.Event) -> str:
    """Return what an event is about, without the state in it, which may be large."""
    shown = [
        f"{name}={getattr(event, name)!r}"
        for name in event.__struct_fields__
        if name not in ("state", "finished_known", "left", "executions")
    ]
    return f"{type(event).__name__}({', '.join(shown)})"
