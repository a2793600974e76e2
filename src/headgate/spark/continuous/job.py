"""Spark's part of a continuous query: one job whose tasks are the slots, submitted again when it ends too early.

Never: decide whether to submit again (the scheduler does), or start in a session that cannot keep slots alive.
"""

from __future__ import annotations

import html
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]

from headgate.errors import DeploymentError, HeadgateError, OptionError
from headgate.graph.stage_graph import QueryDefinition
from headgate.protocol.error_reports import report_of
from headgate.protocol.messages import ErrorReport
from headgate.runtime.slot import SlotSettings
from headgate.spark.analyzed.scala import class_named
from headgate.spark.continuous import worker_start
from headgate.spark.continuous.slot_task import run_slot

if TYPE_CHECKING:
    from pyspark import RDD, SparkConf
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_EXECUTORS_COME = ("spark.scheduler.maxRegisteredResourcesWaitingTime", "30s")
"""How long Spark waits for executors that it has asked for before it gives out work, and its default."""
_SLOTS_END_S = 10.0
"""How long slots that were asked to end may keep their cores."""
_EXECUTOR_ANSWERS_S = 1.0
"""How long an executor's host may take to accept a connection: its kernel does that, however busy the executor is."""
_HOPELESS = re.compile(
    r"headgate\.errors\.DeploymentError|ModuleNotFoundError|.*Cannot run program|.*PYTHON_VERSION_MISMATCH"
)
"""What every attempt of a slot would meet again: executors that lack what the driver has."""
_NO_PYTHON = re.compile(r'.*Cannot run program "([^"]*)"')
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b: ")
_OF_THE_JOB = re.compile(r".*most recent failure: Lost task [^:]*: ")
"""What Spark says before a task's error when it gives up on a job."""
_LOCAL = re.compile(r"local\[(\d+|\*)(?:,\d+)?\]")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,\s*(\d+)\s*,\s*\d+\s*\]")
_SESSION_STOPPED = (
    "The Spark session was stopped while the query ran. Stop the query first; started again from its checkpoint "
    "location it goes on from its last checkpoint."
)
_JVM_GONE = (
    "Spark's driver, the Java process of this program, was killed or has crashed. Start the program again: from its "
    "checkpoint location the query goes on from its last checkpoint."
)
_IDLE_TIMEOUTS = (
    "spark.sql.execution.pyspark.udf.idleTimeoutSeconds",
    "spark.python.worker.idleTimeoutSeconds",
)


_groups: set[str] = set()
"""The job groups of this process's slots."""


def check_session(spark: SparkSession, definition: QueryDefinition, parallelism: int) -> None:
    """Refuse a session in which slots could not live, or that the option ``slots`` is not for.

    Raises
    ------
    OptionError
        Slots are to be threads, and there are executors. Or they are tasks, and speculation is on (two live attempts of
        every slow slot), Spark ends silent Python workers, or a local session has fewer cores than the query wants
        slots, and one for the jobs of its sink.
    """
    slots, spare = definition.options["slots"], int(definition.sink.commits_with_spark)
    if slots == "threads":
        if not is_local(spark):
            raise OptionError(
                f"The option 'slots' is 'threads': all slots would run in this one process, the driver's, and none on "
                f"the executors of {spark.sparkContext.master}. Leave it out, or use the master local[*].",
                option="slots", value=slots,
            )  # fmt: skip
        return
    conf = _conf(spark)
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
                f"{name} is {value} and Spark is set to kill idle workers: a slot of a continuous query is silent "
                "towards Spark as long as it lives. Set it to 0.",
                option=name, value=value,
            )  # fmt: skip
    cores = _cores(spark, parallelism + spare)
    if cores is not None and cores < parallelism + spare and not _grows(spark):
        beside = " and one for the jobs of its sink" if spare else ""
        raise OptionError(
            f"A continuous query of parallelism {parallelism} needs {parallelism} cores for its slots{beside}, but "
            f"{spark.sparkContext.master} has {cores}. Ask for a parallelism of at most {cores - spare}, or for more "
            "cores.",
            option="parallelism", value=parallelism, cores=cores,
        )  # fmt: skip


def most_slots(spark: SparkSession, definition: QueryDefinition) -> int | None:
    """Return how many slots of a query the session has room for now; None: that is unknown, or it grows."""
    if definition.options["slots"] == "threads" or _grows(spark):
        return None
    cores = cores_of(spark)
    return None if cores is None else max(0, cores - int(definition.sink.commits_with_spark))


def _cores(spark: SparkSession, wanted: int) -> int | None:
    """Return `cores_of`. Executors that have just been asked for are given the time that Spark gives them to come."""
    wait_ms = 0
    if not (is_local(spark) or _grows(spark)):  # one that grows asks for executors when it has work for them
        wait_ms = cast(Any, spark.sparkContext)._jsc.sc().conf().getTimeAsMs(*_EXECUTORS_COME)
    deadline = time.monotonic() + wait_ms / 1000
    while (cores := cores_of(spark)) is not None and cores < wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    return cores


def cores_of(spark: SparkSession) -> int | None:
    """Return how many cores the session has now; None: that is unknown."""
    context: Any = spark.sparkContext
    master = context.master or ""
    if master == "local":
        return 1
    if (local := _LOCAL.fullmatch(master)) is not None:
        everything = local[1] == "*"
        return int(class_named("java.lang.Runtime").getRuntime().availableProcessors() if everything else local[1])
    executors = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # the driver is one of them
    if (cluster := _LOCAL_CLUSTER.fullmatch(master)) is not None:
        return int(executors) * int(cluster[1])
    of_each = _conf(spark).get("spark.executor.cores")
    return int(executors) * int(of_each) if of_each is not None else None


def _conf(spark: SparkSession) -> SparkConf:
    """Return the application's settings: ``getConf`` would copy each of them, in four calls."""
    conf: SparkConf = cast(Any, spark.sparkContext)._conf
    return conf


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
    return _conf(spark).get("spark.dynamicAllocation.enabled", "false").lower() == "true"


def job_description(name: str, query_id: str, run_id: str, dashboard: str | None) -> str:
    """Return what Spark's UI shows of a query's job, as it does for Structured Streaming, with a link to its dashboard.

    Spark renders links of its own server only, such as begin with ``/``; with two of them a browser finds another one.
    Where Spark's UI is reached through a proxy that does not work: the address is there to be copied.

    Examples
    --------
    >>> job_description("rides & co", "17", "18", "http://127.0.0.1:4051/")
    'rides &amp; co<br/>id = 17<br/>runId = 18<br/><a href="//127.0.0.1:4051/#query=17">http://127.0.0.1:4051/</a>'
    """
    lines = [html.escape(name), f"id = {query_id}", f"runId = {run_id}"]
    if dashboard is not None:
        link = html.escape(f"{dashboard.removeprefix('http:')}#query={query_id}")
        lines.append(f'<a href="{link}">{html.escape(dashboard)}</a>')
    return "<br/>".join(lines)


def is_local(spark: SparkSession) -> bool:
    """Return whether everything runs in this machine's one JVM."""
    master = spark.sparkContext.master or ""
    return master == "local" or master.startswith("local[")


def is_one_machine(spark: SparkSession) -> bool:
    """Return whether driver and executors share a file system for certain."""
    return is_local(spark) or (spark.sparkContext.master or "").startswith("local-cluster[")


def _kills_idle(spark: SparkSession, name: str) -> bool:
    switch = name.replace("idleTimeoutSeconds", "killOnIdleTimeout")
    value = spark.conf.get(switch, None) or _conf(spark).get(switch, "false")
    return str(value).lower() == "true"


def give_up_silent_executors(spark: SparkSession) -> list[str]:
    """Let Spark put others in the place of executors whose hosts do not answer; return them, as ``id at host:port``.

    Spark takes them for well until ``spark.network.timeout`` is over, and would place slots there.
    """
    context: Any = spark.sparkContext._jsc.sc()
    addresses = {each.id(): str(each.hostPort()) for each in _executors(spark)}
    if not addresses:
        return []
    with ThreadPoolExecutor(len(addresses), thread_name_prefix="headgate-probe") as pool:
        silent = [each for each, answers in zip(addresses, pool.map(_answers, addresses.values())) if not answers]
    if len(silent) == len(addresses):
        return []  # the driver reaches none of them, alive or not
    for each in silent:
        context.killAndReplaceExecutor(each)
    return [f"{each} at {addresses[each]}" for each in silent]


def _executors(spark: SparkSession) -> list[Any]:
    """Return what Spark's UI knows of the living executors."""
    return [each for each in _listed(_status_store(spark).executorList(True)) if each.id() != "driver"]


def _status_store(spark: SparkSession) -> Any:
    context: Any = spark.sparkContext
    return context._jsc.sc().statusStore()


def _listed(sequence: Any) -> list[Any]:
    return [sequence.apply(number) for number in range(sequence.size())]


def _numbers(spark: SparkSession, parallelism: int, avoid: Collection[str]) -> RDD[Any]:
    """Return the numbers of slots, one in a partition, to be read on hosts that are not to be avoided.

    A preference: where those have not enough free cores, Spark places slots elsewhere after `spark.locality.wait`.
    """
    context: Any = spark.sparkContext
    hosts = {str(each.hostPort()).rpartition(":")[0] for each in _executors(spark)} - set(avoid) if avoid else ()
    if not hosts:
        numbers: RDD[Any] = context.parallelize(range(parallelism), parallelism)
        return numbers
    from pyspark import RDD  # there is no public way from Spark's own to Python's
    from pyspark.serializers import UTF8Deserializer

    jvm = context._jvm
    preferred = jvm.PythonUtils.toSeq(sorted(hosts))
    pairs = jvm.PythonUtils.toSeq([jvm.scala.Tuple2(str(number), preferred) for number in range(parallelism)])
    tags, text = getattr(jvm.scala.reflect, "ClassTag$"), jvm.java.lang.Class.forName("java.lang.String")
    placed = context._jsc.sc().makeRDD(pairs, getattr(tags, "MODULE$").apply(text))
    return RDD(placed.toJavaRDD(), context, UTF8Deserializer())  # type: ignore[no-untyped-call]


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _EXECUTOR_ANSWERS_S):
            return True
    except OSError:
        return False


class _SlotContext:
    """A Spark context whose Python processes start as slots do: see `headgate.spark.continuous.worker_start`."""

    def __init__(self, context: Any) -> None:
        self._context = context
        there = context.environment.get("PYTHONPATH")
        paths = [str(Path(worker_start.__file__).parent), *([there] if there else [])]
        self.environment = {**context.environment, "PYTHONPATH": os.pathsep.join(paths)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class SlotJob:
    """One submission of the job.

    Parameters
    ----------
    spark
        The session.
    name
        The query's, for messages.
    settings
        For the slots.
    definition
        For the slots.
    parallelism
        How many.
    avoid
        Hosts that are to get no slot, if others have the cores for all.
    description
        What Spark's UI shows of the job.
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
        avoid: Collection[str] = (),
        description: str = "",
    ) -> None:
        self._spark = spark
        groups = f"headgate-{settings.query_id}-{settings.run}-"
        self._group, self._group_before = (f"{groups}{settings.submission - back}" for back in (0, 1))
        self._name = name
        self._description = description or name
        self._slot = partial(run_slot, settings, definition)
        self._parallelism = parallelism
        self._again = settings.submission > 0
        self._avoid = avoid
        self._on_ended = on_ended
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"headgate-job-{name}", daemon=True)
        self._thread.start()

    @property
    def running_slots(self) -> int:
        """How many slots have a core, whether they have come yet or not."""
        return running_tasks(self._spark, self._group)

    def hosts_of(self, slots: Collection[int]) -> set[str]:
        """Return the hosts that slots run on or ran on last, as Spark names them."""
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)] if slots else []
        found: dict[int, tuple[int, str]] = {}
        for stage in [stage for job in jobs if job is not None for stage in job.stageIds]:
            for task in _listed(_status_store(self._spark).taskList(stage, 0, 2 * self._parallelism + 1000)):
                found[task.index()] = max(found.get(task.index(), (-1, "")), (task.attempt(), str(task.host())))
        return {found[slot][1] for slot in slots if slot in found}

    def cancel(self) -> None:
        """Let Spark kill the slots."""
        self._cancelled.set()
        self._spark.sparkContext.cancelJobGroup(self._group)

    def join(self, timeout_s: float) -> None:
        """Wait for the job's end at most this long, in seconds."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        outcome: ErrorReport | None = None
        _groups.add(self._group)
        try:
            if self._again and not is_local(self._spark):
                for each in give_up_silent_executors(self._spark):
                    _log.warning("query %s: executor %s does not answer; Spark is to replace it", self._name, each)
            if self._avoid:
                self._let_slots_end()
            context: Any = self._spark.sparkContext
            context.setJobGroup(self._group, self._description, interruptOnCancel=True)
            # A job of Spark's SQL would take a new session seconds longer to begin.
            slots = _numbers(self._spark, self._parallelism, self._avoid).mapPartitions(self._slot)
            slots.ctx = cast(Any, _SlotContext(context))
            slots.count()
        except Exception as error:
            _log.debug("the job of the slots ended", exc_info=True)
            outcome = self._outcome(error)
        finally:
            _groups.discard(self._group)
        self._on_ended(outcome)

    def _let_slots_end(self) -> None:
        """Wait until the slots of the submission before have left their cores.

        Spark waits three seconds for a core on a host that is preferred, then it takes any.
        """
        deadline = time.monotonic() + _SLOTS_END_S
        while running_tasks(self._spark, self._group_before) and time.monotonic() < deadline:
            if self._cancelled.wait(0.1):
                raise HeadgateError("The job was cancelled before it was submitted.")

    def _outcome(self, error: Exception) -> ErrorReport:
        if "SparkContext was shut down" in str(error):
            return report_of(DeploymentError(_SESSION_STOPPED))
        lost = isinstance(error, Py4JNetworkError | OSError)
        return session_end(self._spark, look=lost) or _report(error)


def session_end(spark: SparkSession, *, look: bool = True) -> ErrorReport | None:
    """Return how the session has ended; None: it has not, as far as one can see, or did not ``look`` for its JVM."""
    if cast(Any, spark.sparkContext)._jsc is None:
        return report_of(DeploymentError(_SESSION_STOPPED))
    return report_of(DeploymentError(_JVM_GONE)) if look and not _jvm_answers(spark) else None


def _jvm_answers(spark: SparkSession) -> bool:
    """Return whether Spark's JVM is there: one broken connection says nothing, a new one that is refused does."""
    try:
        spark.sparkContext._jvm.java.lang.System.nanoTime()  # type: ignore[union-attr]
    except (Py4JError, OSError):
        return False
    return True


def _report(error: Exception) -> ErrorReport:
    essence = _essence(error)
    missing = _NO_PYTHON.match(essence)
    if missing is not None:
        return report_of(
            DeploymentError(
                f"Executors cannot start Python as {missing[1]!r}: PYSPARK_PYTHON (or spark.pyspark.python) must be a "
                f"Python that is there on every executor; see docs/deploy.md. Spark says: {essence}",
                python=missing[1],
            )
        )
    kind = DeploymentError if _HOPELESS.match(essence) else HeadgateError
    return report_of(kind(f"Spark ended the job of the slots: {essence}"))


def _essence(error: Exception) -> str:
    """Return the line of an error that says what happened: a worker's own error, not that there was one."""
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    essence = (raised or lines or [type(error).__name__])[-1 if raised else 0]
    return _OF_THE_JOB.sub("", essence)[:1000]
