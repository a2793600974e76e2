"""What Spark says when it gives up on the slots, in one line."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.errors import OptionError
from headgate.graph.query_options import parse_query_options
from headgate.protocol.messages import ErrorReport
from headgate.spark.continuous.job import SlotJob, _essence, _report, check_session, session_end
from headgate.spark.continuous.query import _job_options

FAILED = """An error occurred while calling o91.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 3.0 failed 1 times, most recent \
failure: Lost task 1.0 in stage 3.0 (TID 8) (localhost executor driver): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "/spark/worker.py", line 1, in main
    process()
  File "/headgate/slot.py", line 2, in run
    raise error
headgate.errors.{raised}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
\tat java.base/java.lang.Thread.run(Thread.java:1)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.$anonfun$abortStage$2(DAGScheduler.scala:1)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
"""

CRASHED = """An error occurred while calling o674.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 3.0 (TID 8) (localhost executor driver): org.apache.spark.SparkException: Python \
worker exited unexpectedly (crashed)
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$3.applyOrElse(PythonRunner.scala:1)
Caused by: java.io.EOFException
"""


@pytest.mark.parametrize(
    ("text", "essence"),
    [
        (FAILED.format(raised="HeadgateError: Slot 1, attempt 0, ends: fenced."),
         "headgate.errors.HeadgateError: Slot 1, attempt 0, ends: fenced."),
        (CRASHED, "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"),
        ("[JOB_CANCELLED] Job 3 cancelled because SparkContext was shut down\nmore",
         "[JOB_CANCELLED] Job 3 cancelled because SparkContext was shut down"),
        ("Job aborted: ExecutorLostFailure (executor 1 exited: remote RPC client disassociated)",
         "Job aborted: ExecutorLostFailure (executor 1 exited: remote RPC client disassociated)"),
        ("", "RuntimeError"),
        ("x" * 5000, "x" * 1000),
    ],
    ids=["an error of the slot", "a killed worker", "the session ended", "a lost executor", "nothing", "very much"],
)  # fmt: skip
def test_the_line_that_says_what_happened(text: str, essence: str) -> None:
    assert _essence(RuntimeError(text)) == essence


@pytest.mark.parametrize(
    ("raised", "kind", "final"),
    [
        ("DeploymentError: This executor has headgate 0.1.", "DeploymentError", True),
        ("HeadgateError: Slot 1 ends: fenced.", "HeadgateError", False),
    ],
)
def test_what_every_attempt_would_meet_again_is_final(raised: str, kind: str, final: bool) -> None:
    report = _report(RuntimeError(FAILED.format(raised=raised)))
    assert (report.error_type, report.final) == (kind, final)
    assert report.message == f"Spark ended the job of the slots: headgate.errors.{raised}"


def test_a_module_that_executors_lack_is_final() -> None:
    assert _report(RuntimeError("Traceback:\nModuleNotFoundError: No module named 'headgate'")).final


NO_PYTHON = """An error occurred while calling o74.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 0.0 (TID 0) (localhost executor driver): java.io.IOException: Cannot run program \
"/nope/python": error=2, No such file or directory
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
Caused by: java.io.IOException: error=2, No such file or directory
"""


def test_a_python_that_is_not_there_is_final_and_named() -> None:
    report = _report(RuntimeError(NO_PYTHON))
    assert (report.error_type, report.final, report.facts["python"]) == ("DeploymentError", True, "/nope/python")
    assert "PYSPARK_PYTHON" in report.message


def test_another_python_than_the_drivers_is_final() -> None:
    text = (
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different"
    )
    assert _report(RuntimeError(f"Traceback:\n{text}")).final


class NoJvm:
    """A session whose Java process is gone: every call raises what py4j raises then."""

    @property
    def sparkContext(self) -> Any:
        context = SimpleNamespace(_jsc=object(), master="local[2]", setJobGroup=self._refuse)
        context._jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=self)))
        return context

    def _refuse(self, *_args: object, **_named: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    nanoTime = _refuse


def test_a_jvm_that_is_gone_is_final_at_once() -> None:
    ended: queue.SimpleQueue[ErrorReport | None] = queue.SimpleQueue()
    settings: Any = SimpleNamespace(query_id="q", run=1, submission=1)
    SlotJob(NoJvm(), "gone", settings, None, 1, ended.put)  # type: ignore[arg-type]
    report = ended.get(timeout=60)
    assert report is not None
    assert (report.error_type, report.final) == ("DeploymentError", True)
    assert "was killed or has crashed" in report.message


def test_a_session_that_was_stopped_or_lost_ends_threads_too() -> None:
    stopped: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    reports = [session_end(stopped), session_end(NoJvm())]  # type: ignore[arg-type]
    assert [report is not None and report.final for report in reports] == [True, True]
    assert "was stopped while the query ran" in reports[0].message  # type: ignore[union-attr]
    assert "was killed or has crashed" in reports[1].message  # type: ignore[union-attr]


@pytest.mark.parametrize("unaligned", [True, False])
@pytest.mark.parametrize("downstream", [True, False])
def test_a_job_has_the_options_of_its_query(unaligned: bool, downstream: bool) -> None:
    prefix = "execution.checkpointing"
    given = {
        f"{prefix}.unaligned.enabled": unaligned,
        f"{prefix}.unaligned.recover-output-on-downstream.enabled": downstream,
        f"{prefix}.aligned-checkpoint-timeout": "3 seconds", f"{prefix}.timeout": "4 seconds",
        f"{prefix}.num-retained": 5, f"{prefix}.tolerable-failed-checkpoints": 6, "failover-strategy": "full",
        "heartbeat.timeout": "7 seconds", "task.stuck.timeout": "8 seconds",
    }  # fmt: skip
    if not downstream:
        given[f"{prefix}.unaligned.during-recovery.enabled"] = False
    options = parse_query_options({name: str(value).lower() for name, value in given.items()}, {})
    definition: Any = SimpleNamespace(
        options=options, checkpoint_interval_ms=900, sink=SimpleNamespace(publishes_on_slots=False)
    )
    made = _job_options(definition)
    assert (made.unaligned, made.recover_output_downstream) == (unaligned, downstream)
    assert (made.alignment_timeout_ms, made.stuck_timeout_ms) == (3000, 8000)
    of_checkpoints = made.checkpoints
    assert (of_checkpoints.interval_ms, of_checkpoints.timeout_ms) == (900, 4000)
    assert (of_checkpoints.num_retained, of_checkpoints.tolerable_failed) == (5, 6)
    assert (made.scheduler.failover_strategy, made.scheduler.heartbeat_timeout_ms) == ("full", 7000)


def threads() -> Any:
    return SimpleNamespace(options={"slots": "threads"}, sink=SimpleNamespace(commits_with_spark=True))


@pytest.mark.parametrize("master", ["spark://host:7077", "local-cluster[2,1,1024]", "yarn"])
def test_threads_are_for_a_local_master_only(master: str) -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    with pytest.raises(
        OptionError, match="'slots' is 'threads': all slots would run in this one process, the driver's"
    ):
        check_session(session, threads(), 2)


@pytest.mark.parametrize("master", ["local", "local[1]", "local[*]"])
def test_threads_wait_for_no_core(master: str) -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    check_session(session, threads(), 8)
