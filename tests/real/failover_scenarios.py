"""What can happen to a running query, one function each: started, hurt, healed, and its output counted.

Used by test_continuous_failover.py in the tests' own session, and by scenario_program.py in sessions of other masters.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from failover_query import WITHIN_S, Numbers, Pulse, Running, check_emitted_all_along, check_exact
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from running_queries import happens, held_numbers

import headgate
from headgate.errors import UserFunctionError
from headgate.spark.continuous.job import _SlotContext
from headgate.spark.continuous.query import ContinuousQuery

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module


def stop_what_is_left(folder: Path) -> None:
    """Stop the query of a scenario that went wrong: others need its cores."""
    for query in headgate.streams.active:
        if query.name == folder.name:
            query.stop()


# Processes die.


def send(pid: int, number: int) -> None:
    """Send a signal to a process of a slot; 0 would be this one and all its family."""
    assert pid > 0, "the slot has no process"
    os.kill(pid, number)


def a_killed_worker_s_task_is_retried_alone(spark: SparkSession, folder: Path) -> None:
    """The other subtask keeps its attempt and its execution, and emits all along; it also gets splits all along."""
    running = Running(spark, folder, splits=250, batches=8, pause=0.02)  # these take the other one most of a minute
    running.until_it_runs()
    victim, other, attempt = running.pid(0), running.pid(1), running.attempt(1)
    pulse, began = Pulse(), time.time()
    send(victim, signal.SIGKILL)
    running.until_replaced(0, victim)
    ended, stall = time.time(), pulse.stop()
    assert (running.pid(1), running.attempt(1)) == (other, attempt)
    assert running.executions() == [2, 1]
    assert running.attempt(0) == (0, 1), "Spark retried the one task"
    rows = running.end()
    check_emitted_all_along(rows, other, began, ended, stall)
    its = rows.filter(pc.equal(rows["pid"], other))
    begun = its.filter(pc.equal(its["n"], 0))["at"].to_pylist()  # of a split that it was given
    starts = sorted({began, ended, *(each for each in begun if began <= each <= ended)})
    gap = max(after - before for before, after in itertools.pairwise(starts))
    assert gap < max(1.0, (ended - began) / 2) + 2 * stall, (
        f"no split for {gap:.3f} of {ended - began:.3f} s ({stall=:.3f})"
    )


def five_kills_of_one_slot(spark: SparkSession, folder: Path) -> None:
    """Spark gives up on the job in between, and it is submitted again: its task failures add up over its life."""
    running = Running(spark, folder)
    running.until_it_runs()
    for _ in range(5):
        victim = running.pid(0)
        send(victim, signal.SIGKILL)
        running.until_replaced(0, victim)
        running.until_another_checkpoint(1)
    failures = int(spark.sparkContext.getConf().get("spark.task.maxFailures", "0") or 0)
    assert running.attempt(0)[0] >= 1, f"the job was never submitted again ({failures=})"
    assert running.executions()[0] == 6
    running.end()


def a_killed_worker_ends_a_job_without_retries(spark: SparkSession, folder: Path) -> None:
    """On ``local[N]`` Spark gives up at once, and the driver submits the job again."""
    running = Running(spark, folder)
    running.until_it_runs()
    victim = running.pid(0)
    send(victim, signal.SIGKILL)
    running.until_replaced(0, victim)
    assert running.attempt(0) == running.attempt(1) == (1, 0)
    assert running.executions() == [2, 2]
    running.end()


class KillsItsProcess:
    """Passes on numbers; at those for which a file is there, the process dies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if any(happens(self.folder / f"kill-{number}") for number in batch["value"].to_pylist()):
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch


def a_function_that_kills_its_process(spark: SparkSession, folder: Path) -> None:
    """There is no checkpoint yet: all is read again, and the splits first that were begun, or the rest never comes.

    All these numbers are in the first of four splits, and the other three hold their last rows.
    """
    kills = range(0, 500, 100)
    folder.mkdir(parents=True)
    for number in kills:
        (folder / f"kill-{number}").touch()
    numbers = held_numbers(spark, folder / "may-end", rows=600).mapInArrow(KillsItsProcess(folder), "value bigint")
    options = {"restart-strategy": "fixed-delay", "restart-strategy.attempts": len(kills), "restart-strategy.delay": 0}
    writer = headgate.continuous(numbers, parallelism=2).writeStream.format("memory").queryName(folder.name)
    writer = writer.options(checkpointLocation=folder / "checkpoints", **options).trigger(continuous="1 hour")
    query = writer.start()
    wait_until(lambda: not [*folder.glob("kill-*")])
    (folder / "may-end").touch()
    assert query.awaitTermination(WITHIN_S), query.status
    assert sorted(query.table()["value"].to_pylist()) == list(range(600))


def a_killed_executor(spark: SparkSession, folder: Path) -> None:
    """The slots of the other executor read on."""
    import psutil
    from headgate_tests_imported import daemon_of

    running = Running(spark, folder)
    running.until_it_runs()
    victim, other = running.pid(0), running.pid(1)
    executor, another = (psutil.Process(daemon_of(each)).ppid() for each in (victim, other))
    assert executor != another, "two executors of one core each"
    send(executor, signal.SIGKILL)
    running.until_replaced(0, victim)
    assert running.pid(1) == other
    assert running.executions() == [2, 1]
    wait_for_the_end_of(victim)  # it would read on as a zombie: nothing else shows it that its executor is gone
    running.end()


def a_zombie(spark: SparkSession, folder: Path) -> None:
    """A worker that stood still until it was given up: it is fenced, and its rows count nowhere."""
    running = Running(spark, folder, {"heartbeat.timeout": "4 seconds"})
    running.until_it_runs()
    zombie = running.pid(0)
    send(zombie, signal.SIGSTOP)
    try:
        running.until(lambda: running.pid(0) != zombie, "the loss of a slot")
    finally:
        wake_up(zombie)
    running.until_replaced(0, zombie)
    running.until_another_checkpoint()
    running.end()
    wait_for_the_end_of(zombie)


def wake_up(zombie: int) -> None:
    """Let a process go on, unless Spark has killed it by now."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(zombie, signal.SIGCONT)


def a_frozen_worker(spark: SparkSession, folder: Path) -> None:
    """A worker that never moves again: Spark takes its task for well, so the job is submitted again."""
    running = Running(spark, folder, {"heartbeat.timeout": "4 seconds"})
    running.until_it_runs()
    frozen = running.pid(0)
    send(frozen, signal.SIGSTOP)
    running.until_replaced(0, frozen)
    assert running.attempt(0)[0] >= 1
    running.end()
    wait_for_the_end_of(frozen)  # Spark killed it


def wait_for_the_end_of(pid: int) -> None:
    """Wait until a process is gone."""
    import psutil

    deadline = time.monotonic() + WITHIN_S
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, f"process {pid} is still there"
            time.sleep(0.05)


# Code hangs.


def a_hung_fetch(spark: SparkSession, folder: Path) -> None:
    """A heartbeat goes on beating; the slot's process is ended because of the fetch."""
    running = Running(spark, folder, {"task.stuck.timeout": "6 seconds"})
    running.until_it_runs()
    victim, other = running.pid(0), running.pid(1)
    (folder / f"fetch-hangs-{victim}").touch()
    running.until_replaced(0, victim)
    assert not (folder / f"fetch-hangs-{victim}").exists()
    assert running.pid(1) == other or running.attempt(1)[0] == 1
    running.end()


def a_function_that_holds_the_gil(spark: SparkSession, folder: Path) -> None:
    """No thread of the process can do anything about it, but something that is not a thread of Python's."""
    running = Running(spark, folder, {"heartbeat.timeout": "4 seconds"})
    running.until_it_runs()
    victim = running.pid(0)
    (folder / f"function-holds-the-gil-{victim}").touch()
    running.until_replaced(0, victim)
    assert not (folder / f"function-holds-the-gil-{victim}").exists()
    running.end()


# Code raises.


def a_function_that_raises_once(spark: SparkSession, folder: Path) -> None:
    """The Spark tasks survive; only the subtask restarts."""
    running = Running(spark, folder)
    running.until_it_runs()
    pids = [running.pid(0), running.pid(1)]
    (folder / "function-raises").touch()
    running.until(lambda: sorted(running.executions()) == [1, 2], "a restart")
    running.until_another_checkpoint()
    assert [running.pid(0), running.pid(1)] == pids
    assert running.attempt(0) == running.attempt(1) == (0, 0)
    running.end()


def a_fetch_that_raises_once(spark: SparkSession, folder: Path) -> None:
    """The same for code on a fetcher's thread."""
    running = Running(spark, folder)
    running.until_it_runs()
    pids = [running.pid(0), running.pid(1)]
    (folder / "fetch-raises").touch()
    running.until(lambda: sorted(running.executions()) == [1, 2], "a restart")
    running.until_another_checkpoint()
    assert [running.pid(0), running.pid(1)] == pids
    running.end()


def a_full_failover(spark: SparkSession, folder: Path) -> None:
    """With ``failover-strategy`` ``full`` everything restarts, in the same processes."""
    running = Running(spark, folder, {"failover-strategy": "full"})
    running.until_it_runs()
    pids = [running.pid(0), running.pid(1)]
    (folder / "function-raises").touch()
    running.until_deployed([2, 2])
    running.until_another_checkpoint()
    assert [running.pid(0), running.pid(1)] == pids
    running.end()


def fails_for_good(running: Running, restarts: int) -> UserFunctionError:
    """Let the user's function raise for ever, and return the error that ends the query after so many restarts."""
    (running.folder / "function-always-raises").touch()
    deadline = time.monotonic() + WITHIN_S
    while running.query.isActive and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not running.query.isActive, running.query.status
    error = running.query.exception()
    assert isinstance(error, UserFunctionError), repr(error)
    assert (running.folder / "raised").stat().st_size >= restarts + 1
    return error


def a_function_that_always_raises(spark: SparkSession, folder: Path) -> None:
    """The query ends, and its error says what the user wants to know."""
    options = {"restart-strategy": "fixed-delay", "restart-strategy.attempts": 2, "restart-strategy.delay": "50 ms"}
    error = fails_for_good(Running(spark, folder, options), restarts=2)
    assert isinstance(error.__cause__, ValueError) and str(error.__cause__) == "a number that I will never like"
    text = str(error)
    assert 'raise ValueError("a number that I will never like")' in text, text  # the line of the user's
    assert "failover_query.py" in text
    assert error.stage == 0 and error.subtask in (0, 1)
    assert error.split.startswith("split-") and error.source == Numbers.name
    assert '"position":' in error.position, error.position
    place = ("stage 0", f"subtask {error.subtask}", error.split, '"position":')
    for fact in ("restart-strategy.attempts is 2", "Stamp raised ValueError", *place):
        assert fact in text.partition("Traceback")[0], f"{fact!r} is not in the message: {text}"
    assert "src/headgate" not in text, "of the traceback only what is the user's"


def no_restarts(spark: SparkSession, folder: Path) -> None:
    """With ``restart-strategy`` ``none`` the first error is the last."""
    error = fails_for_good(Running(spark, folder, {"restart-strategy": "none"}), restarts=0)
    assert str(error.__cause__) == "a number that I will never like"
    assert "restart-strategy is 'none'" in str(error)
    assert (folder / "raised").stat().st_size <= 2  # once in each subtask


# The driver's side fails.


def source_of(running: Running) -> Any:
    """Return the coordinator of the source."""
    (source,) = running.query._driver._master._sources.values()  # type: ignore[union-attr]
    return source


def an_enumerator_that_raises_once(spark: SparkSession, folder: Path) -> None:
    """It is restored from the checkpoint and its log while the readers read on."""
    running = Running(spark, folder)
    running.until_it_runs()
    attempts, began, pulse = [running.attempt(0), running.attempt(1)], time.time(), Pulse()
    incarnation = source_of(running)._shared.incarnation
    (folder / "listing-is-wrong").touch()
    running.until(lambda: source_of(running)._shared.incarnation > incarnation, "another enumerator")
    running.until_another_checkpoint()
    ended, stall = time.time(), pulse.stop()
    assert running.executions() == [1, 1]
    assert [running.attempt(0), running.attempt(1)] == attempts
    pids = [running.pid(0), running.pid(1)]
    rows = running.end()
    for pid in pids:
        check_emitted_all_along(rows, pid, began, ended, stall)


def an_enumerator_without_a_log(spark: SparkSession, folder: Path) -> None:
    """Then everything is restored from the last checkpoint."""
    running = Running(spark, folder)
    running.until_it_runs()
    pids = [running.pid(0), running.pid(1)]
    driver = running.query._driver
    assert driver is not None
    (log,) = driver._logs.values()
    load = log._load
    log._load = lambda action: (corrupt(folder / "checkpoints" / "log"), load(action))[1]  # type: ignore[method-assign]
    (folder / "listing-is-wrong").touch()
    running.until_deployed([2, 2])
    running.until_another_checkpoint()
    assert [running.pid(0), running.pid(1)] == pids
    running.end()


def corrupt(folder: Path) -> None:
    """Change a byte of each file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files, "there is no log"
    for path in files:
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def an_endpoint_that_moves(spark: SparkSession, folder: Path) -> None:
    """Readers read on, the slots look the address up and register again."""
    running = Running(spark, folder)
    running.until_it_runs()
    driver = running.query._driver
    assert driver is not None
    pids, address = [running.pid(0), running.pid(1)], driver._server.address
    began, pulse = time.time(), Pulse()
    driver._server.close()
    driver._server = driver._open_server(0)
    assert driver._server.address != address
    running.until_another_checkpoint()
    ended, stall = time.time(), pulse.stop()
    assert running.executions() == [1, 1]
    assert [running.pid(0), running.pid(1)] == pids
    rows = running.end()
    for pid in pids:
        check_emitted_all_along(rows, pid, began, ended, stall)


def a_stopped_query_leaves_nothing(spark: SparkSession, folder: Path) -> None:
    """No thread, no open port, no process of its own: its workers wait for the next slots, without threads of ours."""
    import psutil

    here = psutil.Process()
    before, ports, children = set(threading.enumerate()), listening(here), {each.pid for each in here.children()}
    running = Running(spark, folder)
    running.until_it_runs()
    slots = {running.pid(0), running.pid(1)}
    assert len(listening(here) - ports) == 1
    running.end()
    # The thread that reported the end has still to end itself.
    wait_until(lambda: not {each for each in set(threading.enumerate()) - before if each.name.startswith("headgate")})
    wait_until(lambda: listening(here) <= ports and {each.pid for each in here.children()} <= children)
    threads: dict[int, set[str]] = {}

    def seen() -> bool:
        """Look into the workers that the next slots get; Spark may have others, which it takes in turn."""
        names = spark.sparkContext.parallelize(range(2), 2).mapPartitions(own_threads)
        names.ctx = _SlotContext(spark.sparkContext)
        threads.update(names.collect())
        return slots <= threads.keys()

    wait_until(seen)
    assert [threads[pid] for pid in slots] == [{"MainThread"}] * len(slots)


def listening(process: Any) -> set[Any]:
    """Return the addresses at which a process listens."""
    return {each.laddr for each in process.net_connections(kind="inet") if each.status == "LISTEN"}


def own_threads(numbers: Iterator[int]) -> Iterator[tuple[int, set[str]]]:
    """List the threads of Spark's worker."""
    yield os.getpid(), {each.name for each in threading.enumerate()}


def let_manifests_fail(running: Running, times: int) -> list[int]:
    """Let the next manifests not be written; return a list that gets an entry for each."""
    driver = running.query._driver
    assert driver is not None
    storage, failed = driver._storage, []
    write = storage.write_manifest

    def fail(manifest: Any, location: str = "") -> int:
        if len(failed) < times:
            failed.append(manifest.checkpoint_id)
            raise OSError(28, "No space left on device")
        return write(manifest, location)

    storage.write_manifest = fail  # type: ignore[method-assign]
    return failed


def tolerable_failures_of_the_storage(spark: SparkSession, folder: Path) -> None:
    """Checkpoints fail for a while, and nothing else happens."""
    running = Running(spark, folder, {"execution.checkpointing.tolerable-failed-checkpoints": 3})
    running.until_it_runs()
    failed = let_manifests_fail(running, 3)
    running.until(lambda: len(failed) == 3, "three failures")
    running.until_another_checkpoint()
    assert running.executions() == [1, 1]
    running.end()


def failures_of_the_storage(spark: SparkSession, folder: Path) -> None:
    """One checkpoint too many fails, and everything is restored."""
    running = Running(spark, folder)
    running.until_it_runs()
    failed = let_manifests_fail(running, 1)
    running.until(lambda: failed, "a failure")
    running.until_deployed([2, 2])
    running.until_another_checkpoint()
    running.end()


# Rows on their way to files.


def start_with_files(
    spark: SparkSession, folder: Path, options: Mapping[str, Any] = MappingProxyType({})
) -> ContinuousQuery:
    """Start a bounded query from `Numbers` to parquet files, or go on with it."""
    headgate.register(spark, Numbers)
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"splits": 4, "batches": 150, "pause": 0.03, "folder": folder, "held": True}
    numbers = spark.read.format(Numbers.name).options(**settings).load()
    writer = headgate.continuous(numbers, parallelism=2).writeStream.format("parquet").queryName(folder.name)
    writer = writer.options(**{"publishInterval": "100 ms", "checkpointLocation": folder / "checkpoints", **options})
    return writer.trigger(continuous="250 milliseconds").start(str(folder / "out"))


def check_files(spark: SparkSession, folder: Path, query: ContinuousQuery) -> None:
    """Let the query end, and assert that Spark reads each row once."""
    (folder / "may-end").touch()
    assert query.awaitTermination(WITHIN_S), query.status
    check_exact(pa.table(spark.read.parquet(str(folder / "out")).toArrow()), splits=4, batches=150)


def links_to(link: Path, target: Path) -> None:
    """Let a link lead somewhere, all at once: nobody finds nothing there, and makes a folder of it."""
    made = link.with_suffix(".made")
    made.symlink_to(target)
    made.replace(link)


def wait_until(condition: Callable[[], Any]) -> Any:
    """Wait for something, and return it."""
    deadline = time.monotonic() + WITHIN_S
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def files_of_a_zombie(spark: SparkSession, folder: Path) -> None:
    """What it has staged, and goes on staging, is never published."""
    query = start_with_files(spark, folder, {"heartbeat.timeout": "4 seconds"})
    wait_until(lambda: query.status["epoch"] >= 2)
    zombie = wait_until(lambda: query.status["slots"][0]["pid"])
    send(zombie, signal.SIGSTOP)
    try:
        wait_until(lambda: query.status["slots"][0]["pid"] != zombie)
    finally:
        wake_up(zombie)
    check_files(spark, folder, query)


def an_output_folder_that_is_gone_for_a_while(spark: SparkSession, folder: Path) -> None:
    """Slots cannot stage and the driver cannot publish; then they can again."""
    patient = {"restart-strategy.attempts": "infinite", "restart-strategy.max-backoff": "200 ms"}
    out, real, file = folder / "out", folder / "real", folder / "file"
    real.mkdir(parents=True)
    file.touch()
    links_to(out, real)
    query = start_with_files(spark, folder, patient)
    wait_until(lambda: query.status["epoch"] >= 2)
    links_to(out, file)
    wait_until(lambda: any(each["execution"] > 1 for each in query.status["subtasks"]))
    links_to(out, real)
    check_files(spark, folder, query)


# The driver dies: see failover_driver.py.


def a_query_goes_on_after_its_driver(spark: SparkSession, folder: Path) -> None:
    """Whatever the killed driver left is finished or undone: each row is there once."""
    check_files(spark, folder, start_with_files(spark, folder))


def a_stopped_session(spark: SparkSession, folder: Path) -> None:
    """The query ends at once, and says why. The last scenario in its process."""
    running = Running(spark, folder)
    running.until_it_runs()
    spark.stop()
    deadline = time.monotonic() + WITHIN_S
    while running.query.isActive and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "The Spark session was stopped" in str(running.query.exception())
    check_exact(running.query.table(), running.splits, 0)
