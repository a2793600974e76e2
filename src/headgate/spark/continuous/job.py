"""Spark's part of a continuous query: one job whose tasks are the slots, submitted again when Spark gives up on it.

Never: decide whether to submit again (the scheduler does), or start in a session that cannot keep slots alive.

Follows traps 19, 20 and 21.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from headgate.errors import DeploymentError, HeadgateError, OptionError
from headgate.operators.stage_graph import QueryDefinition
from headgate.protocol.messages import ErrorReport
from headgate.spark.continuous.error_reports import report_of
from headgate.spark.continuous.slot import SlotSettings, run_slot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_EXECUTORS_COME_S = 8.0
_HOPELESS = ("headgate.errors.DeploymentError", "ModuleNotFoundError")
"""What every attempt of a slot would meet again: executors that lack what the driver has."""
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b: ")
_OF_THE_JOB = re.compile(r".*most recent failure: Lost task [^:]*: ")
"""What Spark says before a task's error when it gives up on a job."""
_LOCAL = re.compile(r"local\[(\d+|\*)(?:,\d+)?\]")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,\s*(\d+)\s*,\s*\d+\s*\]")
_IDLE_TIMEOUTS = (
    "spark.sql.execution.pyspark.udf.idleTimeoutSeconds",
    "spark.python.worker.idleTimeoutSeconds",
)


_groups: set[str] = set()
"""The job groups of this process's slots."""


def check_session(spark: SparkSession, parallelism: int) -> None:
    """Refuse a session in which slots could not live.

    Raises
    ------
    OptionError
        Speculation is on (two live attempts of every slow slot), Spark ends silent Python workers, or a local session
        has fewer cores than the query wants slots.
    """
    conf = spark.sparkContext.getConf()
    if conf.get("spark.speculation", "false").lower() == "true":
        raise OptionError(
            "spark.speculation is true: Spark would start a second attempt of every slot of a continuous query. Set it "
            "to false for this application.",
            option="spark.speculation", value="true",
        )  # fmt: skip
    for name in _IDLE_TIMEOUTS:
        value = spark.conf.get(name, None) or conf.get(name, "0") or "0"
        if value != "0" and _kills_idle(spark, name):
            raise OptionError(
                f"{name} is {value} and Spark is told to kill idle workers: a slot of a continuous query is silent "
                "towards Spark as long as it lives. Set it to 0.",
                option=name, value=value,
            )  # fmt: skip
    cores = _cores(spark, parallelism)
    if cores is not None and cores < parallelism and not _grows(spark):
        raise OptionError(
            f"A continuous query of parallelism {parallelism} needs {parallelism} cores for its slots, but "
            f"{spark.sparkContext.master} has {cores}. Ask for a parallelism of at most {cores}, or for more cores.",
            option="parallelism", value=parallelism, cores=cores,
        )  # fmt: skip


def _cores(spark: SparkSession, wanted: int) -> int | None:
    """Return `cores_of`. Executors that have just been asked for are given some seconds to come."""
    deadline = time.monotonic() + (0.0 if is_local(spark) else _EXECUTORS_COME_S)
    while (cores := cores_of(spark)) is not None and cores < wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    return cores


def cores_of(spark: SparkSession) -> int | None:
    """Return how many cores the session has now; None: that cannot be told."""
    context: Any = spark.sparkContext
    master = context.master or ""
    if master == "local":
        return 1
    if (local := _LOCAL.fullmatch(master)) is not None:
        runtime = context._jvm.java.lang.Runtime.getRuntime()
        return int(runtime.availableProcessors() if local[1] == "*" else local[1])
    executors = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # the driver is one of them
    if (cluster := _LOCAL_CLUSTER.fullmatch(master)) is not None:
        return int(executors) * int(cluster[1])
    of_each = context.getConf().get("spark.executor.cores")
    return int(executors) * int(of_each) if of_each is not None else None


def other_jobs(spark: SparkSession) -> int:
    """Return how many jobs run that are not a continuous query's."""
    tracker: Any = spark.sparkContext._jsc.sc().statusTracker()
    active = set(tracker.getActiveJobIds())
    ours = {job for group in list(_groups) for job in tracker.getJobIdsForGroup(group)}
    return len(active - ours)


def running_tasks(spark: SparkSession, group: str | None = None) -> int:
    """Return how many tasks have a core: those of a job group; None: all."""
    tracker = spark.sparkContext.statusTracker()
    jobs = tracker.getActiveJobsIds() if group is None else tracker.getJobIdsForGroup(group)
    stages = {stage for job in jobs if (known := tracker.getJobInfo(job)) is not None for stage in known.stageIds}
    return sum(info.numActiveTasks for stage in stages if (info := tracker.getStageInfo(stage)) is not None)


def _grows(spark: SparkSession) -> bool:
    """Return whether Spark asks for more executors when it has work for them."""
    return spark.sparkContext.getConf().get("spark.dynamicAllocation.enabled", "false").lower() == "true"


def is_local(spark: SparkSession) -> bool:
    """Return whether everything runs in this machine's one JVM."""
    master = spark.sparkContext.master or ""
    return master == "local" or master.startswith("local[")


def is_one_machine(spark: SparkSession) -> bool:
    """Return whether driver and executors share a file system for certain."""
    return is_local(spark) or (spark.sparkContext.master or "").startswith("local-cluster[")


def _kills_idle(spark: SparkSession, name: str) -> bool:
    switch = name.replace("idleTimeoutSeconds", "killOnIdleTimeout")
    value = spark.conf.get(switch, None) or spark.sparkContext.getConf().get(switch, "false")
    return str(value).lower() == "true"


class SlotJob:
    """One submission of the job.

    Parameters
    ----------
    spark
        The session.
    name
        What stands in Spark's UI.
    settings
        For the slots.
    definition
        For the slots.
    parallelism
        How many.
    on_ended
        Called on the job's thread with None, or the error that Spark ended it with.
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        settings: SlotSettings,
        definition: QueryDefinition,
        parallelism: int,
        on_ended: Callable[[ErrorReport | None], None],
    ) -> None:
        self._spark = spark
        self._group = f"headgate-{settings.query_id}-{settings.run}-{settings.submission}"
        self._name = name
        self._slot = partial(run_slot, settings, definition)
        self._parallelism = parallelism
        self._on_ended = on_ended
        self._thread = threading.Thread(target=self._run, name=f"headgate-job-{name}", daemon=True)
        self._thread.start()

    @property
    def running_slots(self) -> int:
        """How many slots have a core, whether they have come yet or not."""
        return running_tasks(self._spark, self._group)

    def cancel(self) -> None:
        """Let Spark kill the slots."""
        self._spark.sparkContext.cancelJobGroup(self._group)

    def join(self, timeout_s: float) -> None:
        """Wait for the job's end at most this long, in seconds."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        outcome: ErrorReport | None = None
        _groups.add(self._group)
        try:
            context: Any = self._spark.sparkContext
            context.setJobGroup(self._group, self._name, interruptOnCancel=True)
            slots = self._spark.range(0, self._parallelism, 1, self._parallelism)
            slots.mapInArrow(self._slot, "id long").write.format("noop").mode("overwrite").save()
        except Exception as error:
            _log.debug("the job of the slots ended", exc_info=True)
            outcome = _session_stopped() if self._is_session_stopped(error) else _report(error)
        finally:
            _groups.discard(self._group)
        self._on_ended(outcome)

    def _is_session_stopped(self, error: Exception) -> bool:
        context: Any = self._spark.sparkContext
        return context._jsc is None or "SparkContext was shut down" in str(error)


def _session_stopped() -> ErrorReport:
    return report_of(
        DeploymentError(
            "The Spark session was stopped while the query ran. Stop the query first; started again from its "
            "checkpoint location it goes on from its last checkpoint."
        )
    )


def _report(error: Exception) -> ErrorReport:
    essence = _essence(error)
    kind = DeploymentError if essence.startswith(_HOPELESS) else HeadgateError
    return report_of(kind(f"Spark ended the job of the slots: {essence}"))


def _essence(error: Exception) -> str:
    """Return the line of an error that says what happened: a worker's own error, not that there was one."""
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    essence = (raised or lines or [type(error).__name__])[-1 if raised else 0]
    return _OF_THE_JOB.sub("", essence)[:1000]
