"""A running continuous query, as its user sees it: Spark's ``StreamingQuery``, with savepoints and rescaling.

Never: decide, or touch the machine: it starts runs (`QueryDriver`), waits for them, and keeps what outlives one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
import tempfile
import threading
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from headgate.checkpoint.coordinator import CheckpointOptions
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.ownership import Ownership
from headgate.checkpoint.restore import restore
from headgate.checkpoint.savepoint_folder import check_savepoint_folder
from headgate.checkpoint.storage import CheckpointStorage
from headgate.coordinator.job.job_plan import JobOptions, JobPlan
from headgate.coordinator.job.restart_strategy import ExponentialDelay, RestartOptions
from headgate.coordinator.job.scheduler import SchedulerOptions
from headgate.driver.alignment_hub import HUB, Membership
from headgate.driver.job_plans import job_plan
from headgate.errors import HeadgateError, OptionError
from headgate.event_log import OPTION, configure, log_event
from headgate.graph.query_options import autoscaler_options, restart_options
from headgate.graph.stage_graph import QueryDefinition
from headgate.monitor.endpoint import of_process
from headgate.monitor.endpoint.of_process import Endpoint
from headgate.protocol.messages import CheckpointKind
from headgate.runtime.slot import SlotSettings
from headgate.spark.continuous import exporters, live_queries
from headgate.spark.continuous.autoscaler import QueryAutoscaler, splits_bound
from headgate.spark.continuous.driver import QueryDriver, RunSettings
from headgate.spark.continuous.job import check_session, is_local, is_one_machine, job_description, most_slots
from headgate.spark.continuous.progress import QueryProgress
from headgate.transport.options import transport_options
from headgate.versions import Versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

_log = logging.getLogger(__name__)

_REGISTRATION_TIMEOUT_MS = 120_000
"""How long slots may take to come where there are cores enough: Spark may be busy with other work."""
_GIVES_UP_S = 60.0
"""How long the driver may take to give up a checkpoint: what is written of a savepoint is deleted."""


def start_query(spark: SparkSession, definition: QueryDefinition) -> ContinuousQuery:
    """Start a query and return it; it runs until it ends, fails or is stopped.

    Raises
    ------
    OptionError
        The session cannot run it, or another live query of this process has its checkpoint location.
    StoredStateError
        The checkpoint it would resume from cannot be used.
    """
    check_session(spark, definition, definition.parallelism)
    if definition.options[OPTION]:
        configure(structured=True)
    query = ContinuousQuery(spark, definition)
    query._begin()
    return query


class ContinuousQuery:
    """A continuous query; `ContinuousStreamWriter.start` makes it. All methods may be called by any thread."""

    def __init__(self, spark: SparkSession, definition: QueryDefinition) -> None:
        self._spark = spark
        self._definition = definition
        self._temporary = None
        if definition.checkpoint_location is None:
            if not is_one_machine(spark):
                raise OptionError(
                    "On a cluster a continuous query needs the option 'checkpointLocation': a folder that the driver "
                    "and all executors can reach.",
                    option="checkpointLocation", value=None,
                )  # fmt: skip
            self._temporary = tempfile.TemporaryDirectory(prefix="headgate-", ignore_cleanup_errors=True)
        self._location = definition.checkpoint_location or (self._temporary.name if self._temporary else "")
        self._storage = CheckpointStorage(self._location)
        self._id = ""
        self._run_id = str(uuid.uuid4())
        self._progress: QueryProgress | None = None
        self._exports = False  # whether exporters know of it
        self._endpoint: Endpoint | None = None  # where it is served, from its first run on
        self._autoscaler: QueryAutoscaler | None = None
        self._memberships: dict[str, Membership] = {}  # by alignment group, from its first run on
        self._changing = threading.Lock()  # held by stop and rescale
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._state_changed = threading.Condition(self._lock)
        self._driver: QueryDriver | None = None
        self._ended = False
        self._rescaling = False
        self._run_over = False
        self._run_error: HeadgateError | None = None
        self._late_error: HeadgateError | None = None
        self._stop_wanted = False
        self._error: HeadgateError | None = None

    @property
    def id(self) -> str:
        """Names the query across restarts from its checkpoints."""
        return self._id

    @property
    def runId(self) -> str:
        """Names this start of it."""
        return self._run_id

    @property
    def name(self) -> str | None:
        """The name given by ``queryName``; None: none was given."""
        return self._definition.name

    @property
    def _shown_name(self) -> str:
        """What logs and Spark's UI call it."""
        return self.name or self._id[:8]

    @property
    def isActive(self) -> bool:
        """Whether it has not ended yet."""
        with self._lock:
            return not self._ended

    @property
    def status(self) -> dict[str, Any]:
        """What it is doing: Spark's ``message``, ``isDataAvailable`` and ``isTriggerActive``, and more.

        ``rowsIn`` and ``rowsOut`` since the start, ``slots`` (with host and process), ``subtasks``, checkpoints,
        ``sources`` (by uid, with the ``troubles`` of each: what keeps its enumerator or its readers from their
        work), ``recovery``: what is left of the rows that were in flight, and ``restore``: how far keyed state is taken
        on, both by stage, as in `lastProgress`.
        """
        driver, progress = self._driver, self._progress
        rows_in, rows_out = (0, 0) if progress is None else progress.rows
        recovery, restore = ([], []) if progress is None else (progress.recovery, progress.restore)
        active = driver is not None and self.isActive
        known = {} if driver is None else _plain(driver.status)
        for uid, troubles in ({} if progress is None else progress.reader_troubles).items():
            if troubles and uid in known.get("sources", {}):
                known["sources"][uid]["troubles"] = [*known["sources"][uid]["troubles"], *troubles]
        return {
            "message": known["state"] if active else "Stopped", "isDataAvailable": active, "isTriggerActive": active,
            **known, "rowsIn": rows_in, "rowsOut": rows_out, "recovery": recovery,
            "restore": restore,
        }  # fmt: skip

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """The newest progress, as PySpark's own class, with ours under ``["headgate"]``; None: there is none yet."""
        recent = self.recentProgress
        return recent[-1] if recent else None

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """The last hundred progresses, about one a second, the newest last."""
        return [] if self._progress is None else self._progress.recent

    def snapshot(self) -> dict[str, Any]:
        """Return how the query is, with all figures that there are and, under ``why``, what limits it now.

        One document for dashboards, exporters and programs, of JSON's values: docs/monitoring.md describes it. It may
        be asked for at any time, also after the end, and is never older than a second or two.

        Raises
        ------
        HeadgateError
            The query has not begun.
        """
        driver, progress, autoscaler = self._driver, self._progress, self._autoscaler
        if progress is None:
            raise HeadgateError("The query has not begun: it has no figures yet.")
        made = progress.snapshot(None if driver is None else driver.status)
        return made if autoscaler is None else made | {"autoscaler": autoscaler.shown()}

    def history(self) -> dict[str, Any]:
        """Return series of the last five minutes, a point each second: rows, watermarks of splits, how busy stages are.

        Raises
        ------
        HeadgateError
            The query has not begun.
        """
        if self._progress is None:
            raise HeadgateError("The query has not begun: it has no figures yet.")
        return self._progress.history()

    def exception(self) -> HeadgateError | None:
        """Return the error that ended the query; None while it runs and when it ended well."""
        with self._lock:
            return self._error

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Wait for the end.

        Parameters
        ----------
        timeout
            At most this long, in seconds; None: as long as it takes.

        Returns
        -------
        Whether it ended.

        Raises
        ------
        HeadgateError
            The query failed with this error.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._state_changed:
            while not self._ended:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._state_changed.wait(1.0 if left is None else min(1.0, left))  # lets Ctrl-C through
            if self._error is not None:
                raise self._error
            return True

    def checkpoint(self, timeout: float = 600.0) -> int:
        """Take a checkpoint now and return its number once it is complete.

        Parameters
        ----------
        timeout
            How long to wait for it, in seconds.

        Raises
        ------
        HeadgateError
            It did not complete, with the reason; or the query has ended.
        """
        return self._take(CheckpointKind.CHECKPOINT, timeout)

    def savepoint(self, location: str, timeout: float = 600.0) -> int:
        """Write a savepoint into a folder; the query continues. A savepoint needs nothing outside its folder."""
        check_savepoint_folder(str(location), "savepoint", live_queries.locations())
        return self._take(CheckpointKind.SAVEPOINT, timeout, str(location))

    def stop(self, savepoint: str | None = None, *, drain: bool = False, timeout: float = 600.0) -> None:
        """End the query.

        Parameters
        ----------
        savepoint
            Suspend: write a savepoint into this folder, after which nothing is emitted. If that fails, the query
            continues.
        drain
            End for good: the input ends here; everything that operators hold is emitted and committed.
        timeout
            How long to wait, in seconds.

        Raises
        ------
        HeadgateError
            The savepoint or the last checkpoint did not complete, and the query continues; or it did not end in time.
        """
        if savepoint is None and not drain:
            self._stop_now(timeout)
            return
        if savepoint is not None:
            check_savepoint_folder(str(savepoint), "savepoint", live_queries.locations())
        with self._changing:
            if not self.isActive:
                return
            try:
                self._take(CheckpointKind.DRAIN if drain else CheckpointKind.SUSPEND, timeout, str(savepoint or ""))
            except HeadgateError:
                driver = self._driver
                if savepoint is not None or driver is None or driver.status.checkpoint not in ("ending", "suspended"):
                    raise
                self._wait_for_end(timeout)  # its input has ended, and the last checkpoint has all of it
                if self._error is not None:
                    raise self._error from None
            self._wait_for_end(timeout)

    def rescale(self, parallelism: int, timeout: float = 600.0) -> None:
        """Continue with another number of slots: a checkpoint, then a new run. Nothing is lost or repeated.

        Parameters
        ----------
        parallelism
            How many slots from now on.
        timeout
            How long to wait for the checkpoint, and then for the end of the old slots, in seconds.

        Raises
        ------
        OptionError
            The number is out of range.
        HeadgateError
            The checkpoint did not complete, and the query continues as before; or the new run could not be started, and
            the query has ended.
        """
        check_session(self._spark, self._definition, parallelism)
        self._check_parallelism(parallelism)
        with self._changing:
            self._rescale(parallelism, timeout)

    def _rescale(self, parallelism: int, timeout: float) -> None:
        """Rescale; the caller holds ``_changing``."""
        driver = self._live()
        with self._lock:
            self._rescaling = True
        try:
            self._take(CheckpointKind.SUSPEND, timeout)
            if not driver.join(timeout):
                late = HeadgateError(
                    f"The query's slots did not end within {timeout:.0f} seconds: it was not rescaled. "
                    "It has ended; start it again from its checkpoint location to continue."
                )
                with self._lock:
                    self._late_error = late
                raise late
            with self._lock:
                over = self._stop_wanted or self._run_error is not None
            if not over:
                before = self._definition.parallelism
                self._definition = dataclasses.replace(self._definition, parallelism=parallelism, from_savepoint=None)
                self._start_run()
                if self._progress is not None:
                    self._progress.rescaled(before, parallelism)
        except BaseException as error:
            self._end_rescaling(error)
            raise
        self._end_rescaling(None)

    def dashboard(self) -> str:
        """Return the address of the page that shows this query, with the token that permits actions on it.

        Whoever has the address may stop the query: the start's log line has it without the token.

        Raises
        ------
        OptionError
            The query was started with ``dashboard.enabled`` false.
        HeadgateError
            The page could not be served, as a warning at the start reported, or is gone since the query ended long ago.
        """
        if not self._definition.options["dashboard.enabled"]:
            raise OptionError(
                "The query has no dashboard: its option dashboard.enabled is false. Start it with true, the default.",
                option="dashboard.enabled", value=False,
            )  # fmt: skip
        endpoint = self._endpoint
        if endpoint is None or endpoint.closed:
            raise HeadgateError(f"The query {self.name or self.id!r} has no dashboard: its endpoint is not open.")
        return f"{endpoint.url}#token={endpoint.token}&query={self._id}"

    def table(self) -> pa.Table:
        """Return the rows of the ``memory`` sink: committed ones only.

        If the program has other columns than the one whose checkpoint it resumed from, rows of that one that were not
        committed before are there as well: columns that they lack are null, and so are those that only they have.

        Raises
        ------
        OptionError
            The query has another sink; or rows from before have a column of a type that does not go with its type now.
        """
        driver = self._driver
        committer = None if driver is None else driver.committers.get(self._definition.sink.uid)
        if committer is None or not hasattr(committer, "table"):
            raise OptionError(
                f"table() is for the sink 'memory'; this query writes to {self._definition.sink_format!r}.",
                option="format", value=self._definition.sink_format,
            )  # fmt: skip
        made: pa.Table = committer.table()
        return made

    def _begin(self) -> None:
        """Start the first run."""
        self._check_parallelism(self._definition.parallelism)
        live_queries.enter(self._storage.store.path(""), self)
        try:
            exporters.begin(self._definition.options, self.name or "")
            self._exports = True
            self._start_run()
        except BaseException:
            self._leave_groups()
            if self._progress is not None:
                self._progress.abandon()
            self._leave()
            raise
        self._begin_autoscaling()

    def _rescale_from(self, before: int, parallelism: int) -> bool:
        """Rescale for the autoscaler; False: nothing was done, since the user rescales, has rescaled, or stops."""
        check_session(self._spark, self._definition, parallelism)
        if not self._changing.acquire(blocking=False):
            return False
        try:
            with self._lock:
                is_others = self._ended or self._stop_wanted or self._definition.parallelism != before
            if not is_others:
                self._rescale(parallelism, self._definition.options["execution.checkpointing.timeout"] / 1000 + 600)
            return not is_others
        finally:
            self._changing.release()

    def _begin_autoscaling(self) -> None:
        definition, options = self._definition, autoscaler_options(self._definition.options)
        if options is None:
            return
        self._autoscaler = QueryAutoscaler(
            self,
            self._shown_name,
            options,
            splits_bound(definition),
            definition.graph.threads,
            partial(most_slots, self._spark, definition),
            self._rescale_from,
            self._changing.locked,
        )
        self._autoscaler.start()

    def _start_run(self) -> None:
        definition = self._definition
        ownership = Ownership.claim(self._storage.store)
        self._storage.delete_orphans()  # of runs that are over: this one owns the location
        found = self._newest()
        self._id = self._storage.query_id(str(uuid.uuid4()))
        plan = job_plan(definition, self._id, ownership.run)
        allow_left_over = bool(definition.options["allowNonRestoredState"])
        restored = None
        if found is not None:
            restored = self._storage.adopt_rows(restore(found, plan, allow_non_restored_state=allow_left_over))
        if self._progress is None:
            self._progress = QueryProgress(definition, self._id, self._run_id)
        progress = self._progress
        self._serve()
        progress.run_began(0 if restored is None else restored.checkpoint_id)
        driver = QueryDriver(
            self._spark,
            definition,
            plan,
            restored,
            self._run_settings(ownership.run),
            self._storage,
            ownership,
            self._join_groups(plan),
            on_end=self._on_run_ended,
            on_progress=progress.take,
        )
        came_from = "no checkpoint" if restored is None else f"checkpoint {restored.checkpoint_id}"
        log_event(
            _log, logging.INFO, self._shown_name,
            f"Run {ownership.run} begins from {came_from}, with {definition.parallelism} slots; checkpoints are at "
            f"{self._location}.",
        )  # fmt: skip
        driver.start()
        with self._state_changed:
            self._driver, self._run_over, self._run_error = driver, driver.is_over, None
            stop = self._stop_wanted
            self._state_changed.notify_all()
        if stop:  # while there was no run to stop
            driver.stop()
        progress.started()

    def _join_groups(self, plan: JobPlan) -> dict[str, Membership]:
        """Meet the other queries of the application that share alignment groups with this one, for all runs."""
        alignments = [source.alignment for source in plan.sources.values()]
        for group in dict.fromkeys(alignment.group for alignment in alignments if alignment is not None):
            if group not in self._memberships:
                self._memberships[group] = HUB.join(str(self._spark.sparkContext.applicationId), group)
        return self._memberships

    def _serve(self) -> None:
        """Let the dashboard show the query, from its first run on."""
        options = self._definition.options
        if self._endpoint is not None or not options["dashboard.enabled"]:
            return
        asked = options.is_set("dashboard.host") or options.is_set("dashboard.port")
        self._endpoint = of_process.serve(self, options["dashboard.host"], options["dashboard.port"], asked=asked)
        if self._endpoint is not None:
            log_event(_log, logging.INFO, self._shown_name, f"Its dashboard is at {self._endpoint.url}")

    def _newest(self) -> Manifest | None:
        newest = self._storage.load_newest(fall_back=bool(self._definition.options["ignoreCorruptCheckpoints"]))
        if self._definition.from_savepoint is None:
            return newest
        savepoint = CheckpointStorage(self._definition.from_savepoint, option="fromSavepoint").load_savepoint()
        is_older = newest is None or (
            newest.query_id == savepoint.query_id
            and (newest.run, newest.checkpoint_id) < (savepoint.run, savepoint.checkpoint_id)
        )
        if newest is not None and not is_older:
            # The same program started again: going back would publish once more what came after the savepoint.
            _log.warning(
                "checkpoint %d at %s is newer than the savepoint %s: the query goes on from there. To go back to the "
                "savepoint, give the query another checkpointLocation.",
                newest.checkpoint_id, self._location, self._definition.from_savepoint,
            )  # fmt: skip
            return newest
        return savepoint

    def _run_settings(self, run: int) -> RunSettings:
        options, endpoint = self._definition.options, self._endpoint
        driver_host = self._spark.conf.get("spark.driver.host", "127.0.0.1") or ""
        transport = transport_options(options)
        host = transport.host or ("127.0.0.1" if is_local(self._spark) else driver_host)
        slot = SlotSettings(
            run=run,
            query_id=self._id,
            submission=0,
            address="",
            data_network=options["transport.slots.network"],
            secret=secrets.token_hex(32),
            tls=transport.tls,
            checkpoint_location=self._location,
            heartbeat_timeout_ms=options["heartbeat.timeout"],
            stuck_timeout_ms=options["task.stuck.timeout"],
            start_timeout_ms=_REGISTRATION_TIMEOUT_MS,
            time_zone=self._definition.time_zone,
            versions=Versions.here(),
            application=self._spark.sparkContext.applicationId or "",
            structured_logs=options[OPTION],
        )
        return RunSettings(
            slot=slot,
            host=host,
            port=transport.port,
            options=_job_options(self._definition),
            description=job_description(
                self._shown_name, self._id, self._run_id, None if endpoint is None else endpoint.url
            ),
        )

    def _on_run_ended(self, error: HeadgateError | None) -> None:
        """On the driver's thread."""
        with self._state_changed:
            self._run_over, self._run_error = True, error
            rescaling = self._rescaling  # then who rescales finds it, and decides
            self._state_changed.notify_all()
        if not rescaling:
            self._finish(error or self._late_error)

    def _end_rescaling(self, error: BaseException | None) -> None:
        """Let the query be over if its run is, and no new one began."""
        with self._state_changed:
            self._rescaling = False
            over = self._run_over
            if error is not None and not isinstance(error, HeadgateError):
                wrapped = HeadgateError(f"The query could not be rescaled: {error}")
                wrapped.__cause__ = error
                error = wrapped
            found = self._run_error or (error if isinstance(error, HeadgateError) else None)
            self._state_changed.notify_all()
        if over:
            self._finish(found)

    def _stop_now(self, timeout: float) -> None:
        """End without a checkpoint, also while somebody suspends or rescales."""
        with self._lock:
            self._stop_wanted = True
            driver = self._driver
        if driver is not None:
            driver.stop()
        if self.isActive:
            self._wait_for_end(timeout)

    def _wait_for_end(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with self._state_changed:
            while not self._ended:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise HeadgateError(f"The query did not end within {timeout:.0f} seconds.")
                self._state_changed.wait(min(1.0, left))

    def _finish(self, error: HeadgateError | None) -> None:
        self._leave_groups()  # first: others wait for this query
        if self._progress is not None:
            self._progress.end(error)
        if self._autoscaler is not None:
            self._autoscaler.close()
        self._leave()  # first: who waited for the end may start another query at this location at once
        with self._state_changed:
            self._ended, self._error = True, error
            self._state_changed.notify_all()

    def _leave_groups(self) -> None:
        for membership in self._memberships.values():
            membership.leave()

    def _leave(self) -> None:
        live_queries.leave(self._storage.store.path(""), self)
        if self._exports:
            exporters.end(self._definition.options)
        of_process.leave(self)
        if self._temporary is not None:
            self._temporary.cleanup()

    def _take(self, kind: CheckpointKind, timeout: float, location: str = "") -> int:
        """Take a checkpoint, and return its number; one that takes too long is given up, unless it is complete then."""
        driver = self._live()
        answer = driver.request_checkpoint(kind, location)
        with contextlib.suppress(TimeoutError):
            return answer.result(timeout)
        driver.withdraw(answer)
        try:
            return answer.result(_GIVES_UP_S)
        except (HeadgateError, TimeoutError) as error:
            raise given_up(timeout, error, goes_on=driver.goes_on) from error

    def _live(self) -> QueryDriver:
        """Return the driver of the run; between two runs, wait for the next."""
        with self._state_changed:
            while self._rescaling and self._run_over and not self._ended:
                self._state_changed.wait(1.0)
            driver = self._driver
            if driver is None or self._ended:
                raise HeadgateError("The query has ended.")
            return driver

    def _check_parallelism(self, parallelism: int) -> None:
        most = self._definition.options["max-parallelism"]
        if not 1 <= parallelism <= most:
            raise OptionError(
                f"The parallelism is {parallelism}; it must be from 1 to max-parallelism, which is {most}.",
                option="parallelism", value=parallelism,
            )  # fmt: skip


def given_up(timeout: float, error: Exception, *, goes_on: bool) -> HeadgateError:
    """Return the error for who waited so long for a checkpoint, in seconds, that nobody wants it any more.

    Parameters
    ----------
    error
        Why there is none; a `TimeoutError`: the driver has not answered that it is given up.
    goes_on
        Whether the run goes on.
    """
    message = f"The checkpoint was not complete after {timeout:.0f} seconds: "
    if not isinstance(error, HeadgateError):
        return HeadgateError(f"{message}{_GIVES_UP_S:.0f} seconds later it is still being given up.")
    message += str(error.facts.get("reason", error.message)).removesuffix(".")
    return HeadgateError(f"{message}. The query continues as before." if goes_on else f"{message}.")


def _job_options(definition: QueryDefinition) -> JobOptions:
    options = definition.options
    checkpoints = CheckpointOptions(
        interval_ms=definition.checkpoint_interval_ms,
        timeout_ms=options["execution.checkpointing.timeout"],
        num_retained=options["execution.checkpointing.num-retained"],
        tolerable_failed=options["execution.checkpointing.tolerable-failed-checkpoints"],
    )
    scheduler = SchedulerOptions(
        failover_strategy=options["failover-strategy"],
        restart=_restart_options(definition),
        heartbeat_timeout_ms=options["heartbeat.timeout"],
        registration_timeout_ms=_REGISTRATION_TIMEOUT_MS,
        release_timeout_ms=70_000 if definition.sink.publishes_on_slots else 10_000,
    )
    return JobOptions(
        checkpoints=checkpoints,
        scheduler=scheduler,
        unaligned=options["execution.checkpointing.unaligned.enabled"],
        alignment_timeout_ms=options["execution.checkpointing.aligned-checkpoint-timeout"],
        recover_output_downstream=options["execution.checkpointing.unaligned.recover-output-on-downstream.enabled"],
        stuck_timeout_ms=options["task.stuck.timeout"],
    )


def _restart_options(definition: QueryDefinition) -> RestartOptions:
    restart = restart_options(definition.options)
    if not isinstance(restart, ExponentialDelay):
        return restart
    if definition.options.is_set("restart-strategy.reset-backoff-threshold"):
        return restart
    # A record that always fails is met again within a few checkpoints: until then it is one failure, not a first one.
    threshold_ms = max(restart.reset_backoff_threshold_ms, 3 * definition.checkpoint_interval_ms)
    return msgspec.structs.replace(restart, reset_backoff_threshold_ms=threshold_ms)


def _plain(status: Any) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(status)
    return plain
