"""The driver's process in one run: the production `JobMaster`, and models of Spark, storage, commits and log threads.

Never: decide anything that the machine decides, or answer an action at once: answers come later, in the order in which
the thread that gives them works.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, assert_never

from headgate.checkpoint import checkpoint_events as cp
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.storage import CheckpointStorage
from headgate.coordinator.job import job_events as jm
from headgate.coordinator.job import scheduler_events as sch
from headgate.coordinator.job.job_master import JobMaster
from headgate.coordinator.job.job_plan import JobPlan
from headgate.coordinator.sources import source_events as src
from headgate.errors import StoredStateError
from headgate.protocol.messages import CheckpointKind, Envelope, ShutDownSlot
from headgate.simulation.announcements import Announcements
from headgate.simulation.clockwork import Process
from headgate.simulation.enumerator_process import EnumeratorProcess
from headgate.simulation.world import World

_TICK_MS = 1000
_MOST_WRITES = 3
"""How many writes of a log wait at most: one is under way, the others go before the log is read."""


class Worker:
    """A thread of the driver's that does one thing after the other, and takes its time."""

    def __init__(self, driver: DriverProcess, delays_ms: tuple[int, ...], *, is_storage: bool = False) -> None:
        self._driver = driver
        self._delays_ms = delays_ms
        self._is_storage = is_storage
        self._free_ms = 0

    def do(self, work: Callable[..., None], *arguments: Any) -> None:
        """Let work be done when all that was ordered before is."""
        clock = self._driver.cluster.clock
        cluster = self._driver.cluster
        self._free_ms = max(self._free_ms, clock.now_ms) + cluster.choose.choice(self._delays_ms)
        if self._is_storage and clock.now_ms < cluster.pending.slow_storage_until_ms:
            self._free_ms += 600
        clock.at(self._free_ms, self._driver, work, *arguments)


class DriverProcess(Process):
    """One run of the query.

    Parameters
    ----------
    cluster
        Where it lives.
    plan, restored
        What the machine is made of.
    storage
        The checkpoint location.
    """

    def __init__(self, cluster: World, plan: JobPlan, restored: Manifest | None, storage: CheckpointStorage) -> None:
        super().__init__(f"driver of run {plan.run}")
        self.cluster = cluster
        self.plan = plan
        self.master = JobMaster(
            plan,
            cluster.scenario.job_options(plan.run),
            restored,
            random.Random(f"{cluster.scenario.seed} {plan.run}"),
            stored=storage.stored(),
        )
        aligned = {uid: source.alignment for uid, source in plan.sources.items() if source.alignment is not None}
        self._announcements = Announcements(aligned, plan.parallelism) if aligned else None
        self.crash_in: int | None = None
        """After how many more actions the process dies; None: it does not."""
        self.fail_append: set[str] = set()
        self.lose_log: set[str] = set()
        self.manifest_fault: str = ""
        self.commit_fault: str = ""
        self._checkpoints = storage
        self._storage = Worker(self, (2, 10, 80), is_storage=True)
        self._commits = Worker(self, (2, 20, 120))
        self._logs = {uid: Worker(self, (1, 3, 30)) for uid in plan.sources}
        self.writes: Counter[str] = Counter()
        """By source: how many writes of its log are under way."""
        self.enumerators: dict[str, EnumeratorProcess] = {}
        self._wake_ms: int | None = None
        self.over = self.failed = self.stopped = False
        self.is_suspended = False
        """Whether its slots end after a checkpoint after which the query is started again."""
        self._has_last_checkpoint = False
        self.suspension: int | None = None
        """The request of a checkpoint after which the query is to be started again."""

    def forget_faults(self) -> None:
        """Let nothing go wrong that has not yet."""
        self.crash_in = None
        self.fail_append.clear()
        self.lose_log.clear()
        self.manifest_fault = self.commit_fault = ""
        for enumerator in self.enumerators.values():
            enumerator.crash_next = False

    def start(self) -> None:
        """Begin."""
        self.cluster.clock.after(_TICK_MS, self, self._tick)
        self.notify(sch.QueryStarted())

    def notify(self, event: jm.Event) -> None:
        """Give the machine an event and do what it orders."""
        cluster = self.cluster
        cluster.note(self, event)
        if self._announcements is not None:
            self._announcements.on_event(event)
        actions = self.master.handle(event, cluster.clock.now_ms)
        cluster.check(self.master)
        for action in actions:
            if self.crash_in is not None:
                self.crash_in -= 1
                if self.crash_in < 0:
                    cluster.crash_driver(cluster.next_parallelism)
                    return
            cluster.note_action(self, action)
            if self._announcements is not None:
                self._announcements.on_action(action)
            self._carry_out(action)
        if self._announcements is not None:
            self._announcements.check()
        self._arm()

    def receive(self, connection: int, envelope: Envelope) -> None:
        """Take an envelope of a slot."""
        self.notify(jm.SlotMessageReceived(connection, envelope))

    def lose(self, connection: int) -> None:
        """Notice that a connection broke."""
        self.notify(jm.ConnectionClosed(connection))

    def _carry_out(self, action: jm.Action) -> None:
        cluster = self.cluster
        match action:
            case jm.Transmit(connection=connection, envelope=envelope):
                if isinstance(envelope.message, ShutDownSlot):
                    self.is_suspended = self._has_last_checkpoint
                cluster.send_to_slot(connection, envelope)
            case jm.CloseConnection(connection=connection):
                cluster.close_connection(connection)
            case jm.ForSource(source=uid, action=for_source):
                self._carry_out_for_source(uid, for_source)
            case jm.ShowProgress(subtask=subtask, progress=progress):
                cluster.progress_shown(subtask, progress)
            case jm.ShareMinimum(watermark_ms=watermark_ms):
                cluster.application.share(watermark_ms)
            case jm.ShowCheckpoint() | jm.Log():
                pass
            case sch.SubmitJob(submission=submission):
                cluster.submit_job(self, submission)
            case sch.CancelJob(submission=submission):
                cluster.cancel_job(self, submission)
            case sch.FailQuery(error=error):
                cluster.query_failed(self, error)
            case sch.QueryOver():
                self.over = True
                cluster.query_over(self)
            case cp.WriteManifest():
                self._storage.do(self._write, action)
            case cp.DeleteCheckpoint(checkpoint_id=checkpoint_id):
                self._storage.do(self._delete, checkpoint_id)
            case cp.LookForFiles(manifest=manifest):
                self._storage.do(self._look_for_files, manifest)
            case cp.DeleteSavepoint():
                self._storage.do(self._delete_savepoint, action)
            case cp.Commit():
                self._commits.do(self._commit, action)
            case cp.AnswerRequest(request_id=request_id, checkpoint_id=checkpoint_id):
                if checkpoint_id is None:
                    cluster.request_refused(self, request_id)
            case jm.ShowSource():
                pass  # no call takes long here
            case jm.ShowRestart() | jm.ShowFailedCheckpoint():
                pass
            case _:
                assert_never(action)

    def _carry_out_for_source(self, uid: str, action: Any) -> None:
        cluster = self.cluster
        match action:
            case src.StartEnumerator():
                self._stop_enumerator(uid)
                self.enumerators[uid] = EnumeratorProcess(
                    cluster,
                    self,
                    lambda event: self.notify(jm.FromSource(uid, event)),
                    uid,
                    action,
                    self.plan.parallelism,
                )
            case src.CallEnumerator(call=call):
                self.enumerators[uid].call(call)
            case src.StopEnumerator():
                self._stop_enumerator(uid)
            case src.AppendLog():
                self.writes[uid] += 1
                assert self.writes[uid] <= _MOST_WRITES, f"{self.writes[uid]} writes of the log of {uid} wait in turn"
                self._logs[uid].do(self._append, uid, action)
            case src.DropLog(before_segment=segment):
                self._logs[uid].do(self._drop, uid, segment)
            case src.LoadLog():
                self._logs[uid].do(self._load, uid, action)
            case _:
                raise AssertionError(f"no such action of a source: {action!r}")

    def _stop_enumerator(self, uid: str) -> None:
        if uid in self.enumerators:
            self.enumerators.pop(uid).alive = False

    def _log_of(self, uid: str) -> dict[int, list[tuple[int, Any]]]:
        return self.cluster.storage.logs.setdefault((self.plan.run, uid), {})

    def _append(self, uid: str, action: src.AppendLog) -> None:
        self.writes[uid] -= 1
        if uid in self.fail_append:
            self.fail_append.discard(uid)
            self.notify(jm.FromSource(uid, src.LogAppendFailed(action.number, "a fault")))
            return
        first = action.number - len(action.records) + 1
        self._log_of(uid).setdefault(action.segment, []).extend(enumerate(action.records, first))
        self.notify(jm.FromSource(uid, src.LogAppended(action.number)))

    def _drop(self, uid: str, before_segment: int | None) -> None:
        log = self._log_of(uid)
        for segment in [each for each in log if before_segment is None or each < before_segment]:
            del log[segment]

    def _load(self, uid: str, action: src.LoadLog) -> None:
        records = [
            record
            for segment, held in sorted(self._log_of(uid).items())
            if segment >= action.from_segment
            for record in held
        ]
        usable = bool(records) and records[-1][0] >= action.through and uid not in self.lose_log
        self.lose_log.discard(uid)
        loaded = tuple(record for _, record in records) if usable else None
        self.notify(jm.FromSource(uid, src.LogLoaded(loaded, "" if usable else "lost", action.incarnation)))

    def _write(self, action: cp.WriteManifest) -> None:
        fault, self.manifest_fault = self.manifest_fault, ""
        size_bytes = 0
        try:
            if fault != "lost":
                if not action.location:  # a savepoint is a folder elsewhere
                    size_bytes = self._checkpoints.write_manifest(action.manifest)
                self.cluster.storage.write(action.manifest, action.location)
                self.cluster.manifest_written(action.manifest)
        except StoredStateError as error:
            fault = str(error)
        if fault:
            self.notify(cp.ManifestWriteFailed(action.checkpoint_id, fault))
        else:
            self._has_last_checkpoint = action.manifest.kind is CheckpointKind.SUSPEND
            self.notify(cp.ManifestWritten(action.checkpoint_id, size_bytes))

    def _delete(self, checkpoint_id: int) -> None:
        self.cluster.storage.manifests.pop(checkpoint_id, None)
        self._checkpoints.delete(checkpoint_id)

    def _look_for_files(self, manifest: Manifest) -> None:
        missing = self._checkpoints.missing(manifest)
        self.notify(cp.FilesLooked(manifest.checkpoint_id, missing))
        self.cluster.storage.files.notice_gone(missing, self.master._checkpoints._last_id)

    def _delete_savepoint(self, action: cp.DeleteSavepoint) -> None:
        self.cluster.storage.delete_savepoint(action.location)
        for each in action.answers:
            self.cluster.request_refused(self, each.request_id)

    def _commit(self, action: cp.Commit) -> None:
        fault, self.commit_fault = self.commit_fault, ""
        try:
            left = self.cluster.commit(action, fault)
        except OSError:
            self.notify(cp.CommitFailed(action.epoch, "a fault"))
        else:
            self.notify(cp.Committed(action.epoch, left))

    def _arm(self) -> None:
        clock = self.cluster.clock
        due_ms = self.master.next_time_ms()
        if due_ms is not None and (self._wake_ms is None or due_ms < self._wake_ms):
            self._wake_ms = due_ms
            clock.at(max(due_ms, clock.now_ms), self, self._wake, due_ms)

    def _tick(self) -> None:
        """Look at the clock now and then, due or not, as the real driver does."""
        self.notify(jm.TimePassed())
        self.cluster.clock.after(_TICK_MS, self, self._tick)

    def _wake(self, due_ms: int) -> None:
        if self._wake_ms == due_ms:
            self._wake_ms = None
            self.notify(jm.TimePassed())
