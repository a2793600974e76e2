"""Carries out what the `JobMaster` orders in one run of a query: Spark's job, streams, enumerators, storage, commits.

Never: decide. One thread gives events to the machine; everything that may block runs on a thread of its own kind and
comes back as an event.

    thread                       what it does
    ---------------------------  ----------------------------------------------------
    headgate-query-NAME          the machine, and nothing that blocks
    headgate-enumerator-UID      one source's enumerator
    headgate-log-UID             its write-ahead log
    headgate-storage-NAME        manifests, retention
    headgate-commits-NAME        the sinks' committers
    headgate-job-NAME            waits for Spark's job, or the slots' threads

Follows FLIP-27, "Where to run the enumerator" (option 3).
"""

from __future__ import annotations

import contextlib
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from headgate.checkpoint import checkpoint_events as cp
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.ownership import Ownership
from headgate.checkpoint.storage import CheckpointStorage
from headgate.coordinator.job import job_events as jm
from headgate.coordinator.job import scheduler_events as sch
from headgate.coordinator.job.job_master import JobMaster
from headgate.coordinator.job.job_plan import JobOptions, JobPlan
from headgate.coordinator.slots.slots import job_and_attempt
from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.write_ahead_log import WriteAheadLog
from headgate.driver.alignment_hub import Membership
from headgate.driver.enumerator_thread import EnumeratorThread
from headgate.driver.slot_threads import SlotThreads
from headgate.errors import HeadgateError, InternalError, OptionError, SinkError, StoredStateError
from headgate.event_log import describe, log_event, set_thread_context
from headgate.graph.stage_graph import QueryDefinition
from headgate.protocol import messages as msg
from headgate.protocol.error_reports import error_of, report_of
from headgate.protocol.messages import CheckpointKind, Envelope
from headgate.runtime.clocks import monotonic_ms
from headgate.runtime.slot import ADDRESS_FILE, SlotSettings
from headgate.serial_executor import SerialExecutor
from headgate.sink import SinkCommitter
from headgate.spark.continuous.job import SlotJob, cores_of, other_jobs, running_tasks
from headgate.spark.continuous.thread_slots import submit_threads
from headgate.transport.address_file import CoordinatorAddress, write_address
from headgate.transport.control_server import ControlServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_MAX_WAIT_S = 1.0
_LOOK_MS = 1000
_COMMIT_ENDS_S = 60.0
"""How long the end of a run waits for a commit under way."""
_SAVEPOINT_GOES_S = 60.0
"""The same for a savepoint that failed."""
_SLOTS_COME_MS = 9_000
"""From then on it is looked, while there are not all slots, whether other work has the cores."""


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is fixed before a run begins.

    Parameters
    ----------
    slot
        The settings of slots; the address and the submission are filled in by the driver.
    host, port
        Where the endpoint is.
    options
        The machine's.
    description
        Of the slots' job, in Spark's UI.
    """

    slot: SlotSettings
    host: str
    port: int
    options: JobOptions
    description: str


class QueryDriver:
    """One run of a query, from `start` until ``on_end`` is called.

    Parameters
    ----------
    spark, definition
        What to run, and where.
    plan, restored, settings
        What the machine is made of.
    storage, ownership
        The checkpoint location, which this run owns.
    memberships
        The query's, by alignment group: they outlast the run.
    on_end
        Called once, on the driver's thread, with the error that ended the run, or None.
    on_progress
        Called with every subtask's figures, every completed checkpoint, and what keeps a source from its work.
    """

    def __init__(
        self,
        spark: SparkSession,
        definition: QueryDefinition,
        plan: JobPlan,
        restored: Manifest | None,
        settings: RunSettings,
        storage: CheckpointStorage,
        ownership: Ownership,
        memberships: Mapping[str, Membership],
        on_end: Callable[[HeadgateError | None], None],
        on_progress: Callable[[Any], None],
    ) -> None:
        self._spark = spark
        self._definition = definition
        self._plan = plan
        self._settings = settings
        self._storage = storage
        self._ownership = ownership
        self._memberships = memberships
        self._on_end = on_end
        self._on_progress = on_progress
        self._name = definition.name or plan.query_id[:8]
        self._master = JobMaster(
            plan,
            settings.options,
            restored,
            random.Random(),
            stored=storage.stored(),
            clock_offset_ms=time.time_ns() // 1_000_000 - monotonic_ms(),
        )
        self._inbox: queue.SimpleQueue[jm.Event | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._requests: dict[int, Future[int]] = {}
        self._next_request = 1
        self._closed = False
        # On the driver's thread only:
        self._enumerators: dict[str, EnumeratorThread] = {}
        self._jobs: dict[int, SlotJob | SlotThreads] = {}
        self._error: HeadgateError | None = None
        self._over = False
        self._stopping = False
        self._committers = _committers(definition, settings.slot.checkpoint_location, ownership)
        self._server = self._open_server(settings.port)
        # From here on nothing raises: threads run.
        self._storage_worker = SerialExecutor(f"headgate-storage-{self._name}")
        self._commit_worker = SerialExecutor(f"headgate-commits-{self._name}")
        self._logs = {
            uid: WriteAheadLog(storage.store.file_system, storage.store.path(f"log/{uid}")) for uid in plan.sources
        }
        self._log_workers = {uid: SerialExecutor(f"headgate-log-{uid}") for uid in plan.sources}
        self._started_ms = monotonic_ms()
        self._slots_came = False
        self._looked_ms = self._started_ms
        self._thread = threading.Thread(target=self._run, name=f"headgate-query-{self._name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()
        self._inbox.put(sch.QueryStarted())

    def request_checkpoint(self, kind: CheckpointKind, location: str = "") -> Future[int]:
        """Ask for a checkpoint now; the future has its number, or a `HeadgateError` why there is none. Any thread."""
        answer: Future[int] = Future()
        with self._lock:
            if self._closed:
                answer.set_exception(HeadgateError("The query has ended."))
                return answer
            number, self._next_request = self._next_request, self._next_request + 1
            self._requests[number] = answer
        self._inbox.put(cp.CheckpointRequested(number, kind, location))
        return answer

    def withdraw(self, answer: Future[int]) -> None:
        """Ask no longer for a checkpoint; unless it is complete, its future has an error soon. Any thread."""
        with self._lock:
            number = next((number for number, each in self._requests.items() if each is answer), None)
        if number is not None:
            self._inbox.put(cp.RequestWithdrawn(number))

    def stop(self) -> None:
        """End without a checkpoint. Any thread; does not wait."""
        self._stopping = True
        self._inbox.put(jm.StopRequested())

    def join(self, timeout_s: float | None) -> bool:
        """Wait for the end; return whether it came. Any thread."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_over(self) -> bool:
        """Whether the run has ended. Any thread."""
        with self._lock:
            return self._closed

    @property
    def status(self) -> Any:
        """What the machine says of itself. Any thread: it may be a moment old."""
        return self._master.status()

    @property
    def goes_on(self) -> bool:
        """Whether the run goes on: it is not ending, and has not taken its last checkpoint. Any thread."""
        status = self._master.status()
        is_last = status.checkpoint in ("ending", "suspended")
        return not (self.is_over or is_last or status.state in ("ending", "ended", "failing", "failed"))

    @property
    def committers(self) -> dict[str, SinkCommitter]:
        """The sinks' committers, by the sink's uid."""
        return self._committers

    # From here on: on the driver's thread, unless noted otherwise.

    def _run(self) -> None:
        set_thread_context(query=self._name)
        try:
            self._listen_to_groups()
            while not self._over:
                self._handle(self._next_event())
        except Exception as error:
            _log.exception("query %s: the driver failed", self._name)
            self._error = InternalError(f"The driver of the query {self._name!r} failed: {error}")
            self._error.__cause__ = error
            for job in self._jobs.values():
                with contextlib.suppress(Exception):  # Spark may be gone
                    job.cancel()
        finally:
            self._close()
            self._log("info", "The run is over." if self._error is None else f"The run failed: {describe(self._error)}")
            self._on_end(self._error)

    def _listen_to_groups(self) -> None:
        """Hear of the other queries of the application that share alignment groups with this one."""
        for group, membership in self._memberships.items():
            membership.listen(
                lambda watermark_ms, group=group: self._inbox.put(jm.OthersMoved(group, watermark_ms))  # type: ignore[misc]
            )

    def _next_event(self) -> jm.Event:
        due_ms = self._master.next_time_ms()
        wait_s = _MAX_WAIT_S if due_ms is None else min(_MAX_WAIT_S, (due_ms - monotonic_ms()) / 1000)
        if wait_s <= 0:  # what is due is not put off by what came, however much that is
            return jm.TimePassed()
        try:
            return self._inbox.get(timeout=wait_s) or jm.TimePassed()
        except queue.Empty:
            return jm.TimePassed()

    def _handle(self, event: jm.Event) -> None:
        self._watch_the_end(event)
        self._watch_the_start()
        if isinstance(event, cp.Committed):
            self._on_progress(event)
        self._look_at_enumerators()
        for action in self._master.handle(event, monotonic_ms()):
            self._carry_out(action)

    def _look_at_enumerators(self) -> None:
        """Let the machine know which calls of enumerators take long, every second; for its next turns."""
        if monotonic_ms() - self._looked_ms < _LOOK_MS:
            return
        self._looked_ms = monotonic_ms()
        for uid, enumerator in self._enumerators.items():
            if (busy := enumerator.busy()) is not None:
                self._put_source_event(uid, busy)
            if (measured := enumerator.measured()) is not None:
                self._on_progress(measured)

    def _watch_the_end(self, event: jm.Event) -> None:
        """Note when a slot that had rows to publish did not live to do so."""
        lost = isinstance(event, sch.JobEnded) and event.error is not None
        came = isinstance(event, jm.SlotMessageReceived) and isinstance(event.envelope.message, msg.RegisterSlot)
        if not (lost or came) or self._stopping or not self._definition.sink.publishes_on_slots:
            return
        status = self._master.status()
        if isinstance(event, jm.SlotMessageReceived):  # one that is not newer only connects again
            known = status.slots[event.envelope.slot]
            came = known.attempt is not None and job_and_attempt(event.envelope.attempt) > (known.job, known.attempt)
        if (lost or came) and self._error is None and status.state == "ending":
            self._error = SinkError(
                f"A slot of the query {self._name!r} died after the last checkpoint, before the sink had published all "
                "of its rows. Start the query again from its checkpoint location: it publishes the rest.",
                sink=self._definition.sink_format,
            )

    def _watch_the_start(self) -> None:
        """End the run when slots do not come because other work has the cores."""
        if self._slots_came or monotonic_ms() - self._started_ms < _SLOTS_COME_MS:
            return
        status = self._master.status()
        come = sum(slot.pid != 0 for slot in status.slots)
        if status.state != "starting" or come == self._plan.parallelism:
            self._slots_came = status.state != "created"
            return
        cores, others = cores_of(self._spark), other_jobs(self._spark)
        if not others or cores is None or running_tasks(self._spark) < cores:
            return
        running = sum(job.running_slots for job in self._jobs.values())
        if running < self._plan.parallelism:  # else they have cores, and are slow to come
            self._error = OptionError(
                f"Only {running} of the {self._plan.parallelism} slots of the query {self._name!r} got a core within "
                f"{_SLOTS_COME_MS // 1000} seconds: Spark has {cores} cores, and {others} other jobs run on them. Ask "
                "for a smaller parallelism, or start the query when they have ended.",
                option="parallelism", value=self._plan.parallelism, cores=cores,
            )  # fmt: skip
            self.stop()

    def _carry_out(self, action: jm.Action) -> None:
        match action:
            case jm.Transmit(connection=connection, envelope=envelope):
                self._server.send(connection, envelope)
            case jm.CloseConnection(connection=connection):
                self._server.close_connection(connection)
            case jm.ForSource(source=uid, action=for_source):
                self._carry_out_for_source(uid, for_source)
            case jm.ShareMinimum(group=group, watermark_ms=watermark_ms):
                self._memberships[group].share(watermark_ms)
            case jm.ShowProgress() | jm.ShowSource():
                self._on_progress(action)
            case jm.ShowCheckpoint():
                self._log("info", f"Checkpoint {action.checkpoint_id} is complete, after {action.duration_ms} ms.")
                self._on_progress(action)
            case jm.ShowRestart() | jm.ShowFailedCheckpoint():
                self._on_progress(action)
            case jm.Log(level=level, text=text, slot=slot, stage=stage, subtask=subtask):
                where = {"slot": slot, "stage": stage, "subtask": subtask}
                self._log(level, text, **{name: number for name, number in where.items() if number is not None})
            case sch.SubmitJob(submission=submission, avoid=avoid):
                self._submit(submission, avoid)
            case sch.CancelJob(submission=submission):
                if submission in self._jobs:
                    self._jobs[submission].cancel()
            case sch.FailQuery(error=error, given_up=given_up):
                self._error = error_of(error, given_up)
            case sch.QueryOver():
                self._over = True
            case cp.LookForFiles(manifest=manifest):
                self._storage_worker.do(lambda: self._look_for_files(manifest))
            case cp.WriteManifest() | cp.DeleteCheckpoint():
                self._storage_worker.do(lambda: self._store(action))
            case cp.DeleteSavepoint():
                self._storage_worker.do(lambda: self._delete_savepoint(action))
            case cp.Commit():
                self._on_progress(action)
                self._commit_worker.do(lambda: self._commit(action))
            case cp.AnswerRequest(request_id=request_id, checkpoint_id=checkpoint_id, reason=reason):
                self._answer(request_id, checkpoint_id, reason)
            case _:
                assert_never(action)

    def _carry_out_for_source(self, uid: str, action: Any) -> None:
        match action:
            case src.StartEnumerator():
                self._stop_enumerator(uid)
                source = self._definition.sources[uid]
                self._enumerators[uid] = EnumeratorThread(
                    source.source,
                    uid,
                    incarnation=action.incarnation,
                    boundedness=source.boundedness,
                    schema=source.schema,
                    parallelism=self._plan.parallelism,
                    state=action.state,
                    checkpoint_id=action.checkpoint_id,
                    holders=action.holders,
                    assigned=action.assigned,
                    returned=action.returned,
                    on_event=self._put_source_event,
                )
            case src.CallEnumerator(call=call):
                self._enumerators[uid].call(call)
            case src.StopEnumerator():
                self._stop_enumerator(uid)
            case src.AppendLog() | src.DropLog() | src.LoadLog():
                self._log_workers[uid].do(lambda: self._use_log(uid, action))
            case _:
                raise InternalError(f"no such action of a source: {action!r}")

    def _stop_enumerator(self, uid: str) -> None:
        if (thread := self._enumerators.pop(uid, None)) is not None:
            thread.close()

    def _put_source_event(self, uid: str, event: src.Event) -> None:
        """Queue something of a source's; any thread."""
        self._inbox.put(jm.FromSource(uid, event))

    def _use_log(self, uid: str, action: src.AppendLog | src.DropLog | src.LoadLog) -> None:
        """On the log's thread."""
        outcome = self._logs[uid].carry_out(action)
        if outcome is not None:
            self._put_source_event(uid, outcome)

    def _submit(self, submission: int, avoid: tuple[int, ...]) -> None:
        before = self._jobs.get(submission - 1)
        settings = msgspec.structs.replace(self._settings.slot, submission=submission, address=self._server.address)
        submit = submit_threads if self._definition.options["slots"] == "threads" else SlotJob
        self._jobs[submission] = submit(
            self._spark,
            self._name,
            settings,
            self._definition,
            self._plan.parallelism,
            avoid=() if before is None else before.hosts_of(avoid),
            on_ended=lambda error: self._inbox.put(sch.JobEnded(submission, error)),
            description=self._settings.description,
        )

    def _store(self, action: cp.WriteManifest | cp.DeleteCheckpoint) -> None:
        """On the storage thread."""
        if isinstance(action, cp.DeleteCheckpoint):
            self._storage.delete(action.checkpoint_id)
            return
        try:
            self._ownership.check()
            size = self._storage.write_manifest(action.manifest, location=action.location)
        except Exception as error:
            self._end_if_taken_over(error)
            self._inbox.put(
                cp.ManifestWriteFailed(action.checkpoint_id, f"{type(error).__name__}: {error}", report_of(error))
            )
        else:
            self._inbox.put(cp.ManifestWritten(action.checkpoint_id, size))

    def _look_for_files(self, manifest: Manifest) -> None:
        """On the storage thread. A look that fails has found nothing out: no answer, until it is looked again."""
        try:
            missing = self._storage.missing(manifest)
            self._ownership.keep()  # though all of the location was deleted, it stays this query's
            self._storage.query_id(manifest.query_id)
        except Exception as error:
            which = f"the files of checkpoint {manifest.checkpoint_id}"
            self._log("warning", f"It could not be looked whether {which} are there: {describe(error)}")
        else:
            self._inbox.put(cp.FilesLooked(manifest.checkpoint_id, missing))

    def _delete_savepoint(self, action: cp.DeleteSavepoint) -> None:
        """On the storage thread."""
        left = ""
        try:
            self._storage.delete_savepoint(action.manifest, action.location)
        except Exception as error:
            left = f"; what was written of the savepoint may still be in {action.location}: {describe(error)}"
        for each in action.answers:
            self._answer(each.request_id, None, each.reason + left)

    def _commit(self, action: cp.Commit) -> None:
        """On the commits' thread."""
        left: dict[str, tuple[bytes, ...]] = {}
        try:
            self._ownership.check()
            for uid, committer in self._committers.items():
                committables = action.committables.get(uid, ())
                left[uid] = tuple(committer.commit(committables, epoch=action.epoch, final=action.final))
        except Exception as error:
            self._log("warning", f"Committing epoch {action.epoch} failed: {describe(error)}")
            self._end_if_taken_over(error)
            self._inbox.put(cp.CommitFailed(action.epoch, f"{type(error).__name__}: {error}", report_of(error)))
        else:
            self._inbox.put(cp.Committed(action.epoch, left))

    def _end_if_taken_over(self, error: Exception) -> None:
        """End the run if a newer one owns its location: it must not write there any longer. Any thread."""
        if isinstance(error, StoredStateError) and "newer_run" in error.facts:
            self._error = error
            self.stop()

    def _log(self, level: str, text: str, **where: Any) -> None:
        """Log an event in the life of the query. Any thread."""
        log_event(_log, getattr(logging, level.upper()), self._name, text, **where)

    def _answer(self, request_id: int, checkpoint_id: int | None, reason: str) -> None:
        """Any thread."""
        with self._lock:
            answer = self._requests.pop(request_id, None)
        if answer is None:
            return  # it was answered when the run was over
        if checkpoint_id is None:
            answer.set_exception(HeadgateError(f"The checkpoint did not complete: {reason}", reason=reason))
        else:
            answer.set_result(checkpoint_id)

    def _open_server(self, port: int) -> ControlServer:
        server = ControlServer(
            self._settings.slot.secret,
            self._settings.host,
            port,
            self._settings.slot.tls,
            on_opened=lambda connection, peer: _log.debug("stream %d from %s", connection, peer),
            on_message=self._on_message,
            on_closed=lambda connection: self._inbox.put(jm.ConnectionClosed(connection)),
        )
        store = self._storage.store
        address = CoordinatorAddress(run=self._plan.run, address=server.address)
        write_address(store.file_system, store.path(ADDRESS_FILE), address)
        return server

    def _on_message(self, connection: int, envelope: Envelope) -> None:
        """On a stream's thread."""
        self._inbox.put(jm.SlotMessageReceived(connection, envelope))

    def _close(self) -> None:
        for membership in self._memberships.values() if self._error is not None else ():
            membership.share(None)  # first: others wait for this query
        self._server.close()
        for uid in list(self._enumerators):
            self._stop_enumerator(uid)
        for job in self._jobs.values():
            job.join(5.0)
        # Whoever starts the query again finds nobody who still publishes: what is under way ends before this run does.
        if not self._commit_worker.abandon(_COMMIT_ENDS_S):
            self._log("error", "The sink has not finished committing; the commit is abandoned.")
        # Who still waits does so for what was written of a savepoint to be deleted.
        self._storage_worker.close(_SAVEPOINT_GOES_S if self._requests else 1.0)
        for worker in self._log_workers.values():
            worker.close(1.0)
        for committer in self._committers.values():
            try:
                committer.close()
            except Exception as error:
                self._log("warning", f"Closing a committer failed: {describe(error)}")
        with self._lock:
            self._closed = True
            waiting, self._requests = list(self._requests.values()), {}
        for answer in waiting:
            answer.set_exception(HeadgateError("The query ended before the checkpoint was complete."))


def _committers(definition: QueryDefinition, location: str, ownership: Ownership) -> dict[str, SinkCommitter]:
    wanted = (definition.sink, definition.bad_records_sink, definition.late_rows_sink)
    sinks = [sink for sink in wanted if sink is not None]
    made = {sink.uid: sink.create_committer(location) for sink in sinks}
    committers = {uid: committer for uid, committer in made.items() if committer is not None}
    for committer in committers.values():
        committer.check_owner = ownership.check
    return committers
