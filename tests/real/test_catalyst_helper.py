"""The Java that evaluates expressions, and processes that share it: who starts it, whom it outlives, when it ends."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headgate.catalyst import helper_jvm
from headgate.catalyst.class_archive import ClassArchive
from headgate.catalyst.helper_jvm import HelperJvm
from headgate.errors import DeploymentError, ExpressionError, HelperLostError
from headgate.graph.plan import stage_graph
from headgate.operators.catalyst_project import CatalystProject
from headgate.operators.operator import Operator
from headgate.private_files import FileLock, make_private
from headgate.protocol.operator_context import OperatorContext
from headgate.spark.analyzed.plan import plan_of
from tests.helper_javas import javas, quick
from tests.waiting import wait_until

MEMORY = 64 << 20
CONNECTS = """
import sys
from headgate.catalyst.helper_jvm import HelperJvm
helper = HelperJvm(64 << 20, *sys.argv[1:])
while True:
    connection, pid = helper.connect()
    print(pid, flush=True)
    connection.recv(1)  # until it ends
"""
EVALUATES = """
import pickle, sys
import pyarrow as pa
from headgate.protocol.operator_context import OperatorContext
operator, context, rows = pickle.load(sys.stdin.buffer)
operator.open(OperatorContext(**context), [])
print("begins", flush=True)
operator.process(pa.record_batch({"n": pa.array(range(rows), pa.int64())}), "split", lambda *_: None)
"""


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let each Java that is started add its process to a file."""
    quick()  # its archive is of the Java that there was
    java, file = tmp_path / "home" / "bin" / "java", tmp_path / "starts"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\necho $$ >> {file}\nexec {helper_jvm._java()} "$@"\n')
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    return file


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let this process's folder for what is temporary be one of its own, whose name is short."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@contextmanager
def user(options: str, application: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that stays connected, and writes the Java's process at each connection."""
    command = [sys.executable, "-c", CONNECTS, options, application]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def connected(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def hashing(spark: SparkSession) -> CatalystProject:
    return operator_of(spark, "sha2(string(n), 256) AS hashed")


def operator_of(spark: SparkSession, expression: str) -> CatalystProject:
    numbers = spark.readStream.format("headgate.datagen").option("rowsPerSecond", 1).schema("n long").load()
    operators: list[Operator] = [
        each.operator for each in stage_graph(plan_of(numbers.selectExpr("n", expression))).operators
    ]
    (found,) = (each for each in operators if isinstance(each, CatalystProject))
    return found


def test_processes_that_come_at_once_share_one_and_so_do_they_when_it_is_killed(starts: Path) -> None:
    options, application = quick("-Dheadgate.grace.ms=5000"), str(starts)
    with ExitStack() as stack:
        users = [stack.enter_context(user(options, application)) for _ in range(4)]
        (first,) = {connected(each) for each in users}
        assert javas(HelperJvm(MEMORY, options, application)) == [first]
        subprocess.run(["kill", "-KILL", str(first)], check=True)
        (second,) = {connected(each) for each in users}
        assert starts.read_text().split() == [str(first), str(second)] and first != second
        others = HelperJvm(MEMORY, options, "another application")
        assert others.folder != HelperJvm(MEMORY, options, application).folder


def test_it_outlives_who_started_it_and_ends_when_all_are_killed(starts: Path) -> None:
    options, application = quick("-Dheadgate.grace.ms=100"), str(starts)
    helper = HelperJvm(MEMORY, options, application)
    with user(options, application) as first:
        java = connected(first)
        with user(options, application) as second, user(options, application) as third:
            assert connected(second) == connected(third) == java
            first.kill()
            first.wait()
            connection, same = helper.connect()  # a good while after it would have ended
            connection.close()
            assert same == java
            second.kill()
            third.kill()
            wait_until(lambda: not javas(helper) and not helper.folder.exists())
    assert starts.read_text().split() == [str(java)]


def test_nothing_that_it_evaluates_keeps_it_when_its_users_are_killed(spark: SparkSession, starts: Path) -> None:
    """What takes an hour is not for anyone any more: it ends at once, be the process needed by others or not."""
    forever = operator_of(spark, "aggregate(sequence(1, 100000), n, (sum, x) -> sum * 31 % 1000003 + x) AS sum")
    context = {
        "uid": "x", "subtask": 0, "parallelism": 1, "catalyst_memory_bytes": MEMORY,
        "catalyst_java_options": quick("-Dheadgate.grace.ms=100"), "application": str(starts),
    }  # fmt: skip
    helper = HelperJvm(MEMORY, str(context["catalyst_java_options"]), str(starts))
    command = [sys.executable, "-c", EVALUATES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(pickle.dumps((forever, context, 1 << 20)))
        process.stdin.close()
        assert process.stdout.readline() == b"begins\n"
        (java,) = javas(helper)
        wait_until(lambda: b"evaluator" in threads_that_run(java))
        connection, _ = helper.connect()
        process.kill()
        wait_until(lambda: b"evaluator" not in threads_that_run(java))
        assert javas(helper) == [java]
        connection.close()
        wait_until(lambda: not javas(helper))


def threads_that_run(pid: int) -> list[bytes]:
    """Return the names of a process's threads that have used the processor for a second."""
    found = []
    for each in Path(f"/proc/{pid}/task").glob("*/stat"):
        name, _, rest = each.read_bytes().partition(b"(")[2].rpartition(b")")
        if int(rest.split()[11]) > 100:
            found.append(name)
    return found


def test_who_comes_while_it_ends_starts_another_one(starts: Path) -> None:
    """It does not greet any more, renames its folder, and ends a moment later: here a thread that does so."""
    helper = HelperJvm(MEMORY, quick("-Dheadgate.grace.ms=100"), str(starts))
    make_private(helper.folder)
    lock = FileLock(helper.folder / "lock")
    came = threading.Event()

    def end() -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(helper.folder / "socket"))
            server.listen()
            server.accept()[0].close()
        came.set()
        server.close()
        renamed = helper.folder.rename(starts.parent / "ended")
        assert (renamed / "lock").exists()

    ending = threading.Thread(target=end)
    ending.start()
    connection, pid = helper.connect()
    ending.join()
    lock.release()
    with connection:
        assert came.is_set() and starts.read_text().split() == [str(pid)]
    wait_until(lambda: not helper.folder.exists())


def test_it_lives_as_long_as_an_operator_is_open(spark: SparkSession, starts: Path) -> None:
    options = quick("-Dheadgate.grace.ms=1")
    context = OperatorContext(
        uid="x", subtask=0, parallelism=1, catalyst_memory_bytes=MEMORY, catalyst_java_options=options,
        application=str(starts),
    )  # fmt: skip
    operator, made = hashing(spark), []
    operator.open(context, [])
    batch = pa.record_batch({"n": pa.array(range(10), pa.int64())})
    for _ in range(3):
        threading.Event().wait(0.2)
        operator.process(batch, "split", lambda rows, _: made.append(rows))
    assert len(made) == 3
    operator.close()
    wait_until(lambda: not javas(HelperJvm(MEMORY, options, str(starts))))


def test_who_comes_back_soon_finds_it_again(starts: Path) -> None:
    helper = HelperJvm(MEMORY, quick("-Dheadgate.grace.ms=5000"), str(starts))
    found = set()
    for _ in range(3):
        connection, pid = helper.connect()
        connection.close()
        found.add(str(pid))
    assert found == set(starts.read_text().split()) and len(found) == 1


def test_the_error_of_one_that_ended_has_what_it_wrote(spark: SparkSession, starts: Path, temporary: Path) -> None:
    context = OperatorContext(
        uid="x", subtask=0, parallelism=1, catalyst_memory_bytes=MEMORY,
        catalyst_java_options=quick(), application=str(starts),
    )  # fmt: skip
    operator = operator_of(spark, "repeat('x', int(n) + 200000000) AS large")
    operator.open(context, [])
    with pytest.raises(HelperLostError, match=r"catalyst\.memory") as raised:
        operator.process(pa.record_batch({"n": pa.array([0, 0, 0], pa.int64())}), "split", lambda *_: None)
    operator.close()
    assert "OutOfMemoryError: Java heap space" in str(raised.value)
    assert str(HelperJvm(MEMORY, quick(), str(starts)).folder / "log") in str(raised.value)


def test_buffers_that_have_no_room_are_an_error_that_says_so_and_nobody_else_s(
    spark: SparkSession, starts: Path
) -> None:
    options = quick("-XX:MaxDirectMemorySize=48m -Dheadgate.grace.ms=1")
    context = OperatorContext(
        uid="x", subtask=0, parallelism=1, catalyst_memory_bytes=512 << 20, catalyst_java_options=options,
        application=str(starts),
    )  # fmt: skip
    operator, made = operator_of(spark, "repeat('x', int(n)) AS large"), []
    operator.open(context, [])
    with pytest.raises(ExpressionError, match=r"catalyst\.memory") as raised:
        operator.process(pa.record_batch({"n": pa.array([1 << 20] * 40, pa.int64())}), "split", lambda *_: None)
    assert raised.value.facts["java_class"] == "org.apache.arrow.memory.OutOfMemoryException"
    operator.process(pa.record_batch({"n": pa.array([1, 2], pa.int64())}), "split", lambda rows, _: made.append(rows))
    operator.close()
    assert made[0].columns[-1].to_pylist() == ["x", "xx"]
    wait_until(lambda: not javas(HelperJvm(512 << 20, options, str(starts))))


def test_one_that_ends_by_another_s_doing_before_its_starter_connects_did_start(starts: Path) -> None:
    options = quick("-Dheadgate.grace.ms=1")
    starter, other = (HelperJvm(MEMORY, options, str(starts)) for _ in range(2))
    steps = starter.started_in_steps()
    next(steps)
    connection, first = other.connect()
    subprocess.run(["kill", "-KILL", str(first)], check=True)
    wait_until(lambda: not javas(starter))
    connection.close()
    for _ in steps:
        pass
    connection, second = starter.connect()
    connection.close()
    started = starts.read_text().split()  # one that nobody used may have ended between those two
    assert started[0] == str(first) and started[-1] == str(second)
    wait_until(lambda: not starter.folder.exists())


def test_one_that_does_not_start_is_reported_with_what_it_wrote(temporary: Path) -> None:
    with pytest.raises(DeploymentError, match="Unrecognized VM option 'Nonsense'"):
        HelperJvm(MEMORY, "-XX:Nonsense").connect()


def run_once(helper: HelperJvm) -> tuple[list[str], bool]:
    """Start the helper and wait until it has ended; return its command, and whether it had an archive of its own."""
    connection, pid = helper.connect()
    with connection:
        command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        has_archive = f"{helper.folder.parent}/classes-" in Path(f"/proc/{pid}/maps").read_text()
    wait_until(lambda: not javas(helper))
    return command, has_archive


def test_the_second_one_makes_an_archive_of_its_classes_with_which_the_others_start(temporary: Path) -> None:
    # Whoever is not greeted in time connects again: it must not end meanwhile, and be one of those that are counted.
    """What breaks it breaks `tests/unit/catalyst/test_class_archive.py` too."""
    helper = HelperJvm(MEMORY, "-XX:TieredStopAtLevel=1 -Dheadgate.grace.ms=2000")
    plain, has_archive = run_once(helper)
    (archive,) = helper.folder.parent.glob("*.jsa")
    assert not has_archive and not archive.read_bytes() and not any(str(archive) in each for each in plain)
    assert not run_once(helper)[1] and archive.stat().st_size > 1 << 20
    other_application = HelperJvm(2 * MEMORY, "-XX:TieredStopAtLevel=1 -Dheadgate.grace.ms=2000", "another")
    assert run_once(other_application)[1]
    assert [archive] == list(helper.folder.parent.iterdir())


def test_an_archive_with_which_it_does_not_start_is_deleted(temporary: Path) -> None:
    """What breaks it breaks
    `tests/real/test_catalyst_helper.py::test_an_archive_is_deleted_if_no_process_starts_with_it` too.
    """
    helper = HelperJvm(MEMORY, "-XX:TieredStopAtLevel=1 -Dheadgate.grace.ms=1")
    run_once(helper)
    run_once(helper)
    (archive,) = helper.folder.parent.glob("*.jsa")
    archive.chmod(0o600)
    os.truncate(archive, 1 << 20)  # Java crashes
    run_once(helper)
    assert not archive.read_bytes()


def test_an_archive_is_deleted_if_no_process_starts_with_it(temporary: Path) -> None:
    helper = HelperJvm(MEMORY, "-XX:NoSuchOption")
    assert helper._archive.options() == []
    (archive,) = helper.folder.parent.glob("*.jsa")
    archive.write_bytes(b"whole")
    with pytest.raises(DeploymentError, match="NoSuchOption"):
        helper.connect()
    assert not archive.read_bytes(), "the next process may make another one"


def test_no_archive_is_needed_where_none_can_be_made(tmp_path: Path) -> None:
    assert ClassArchive(tmp_path / "deleted", helper_jvm._java(), helper_jvm.spark_jars(), []).options() == []


def test_the_user_s_options_about_archives_are_left_alone(temporary: Path) -> None:
    helper = HelperJvm(MEMORY, "-XX:TieredStopAtLevel=1 -Xshare:off -Dheadgate.grace.ms=1")
    run_once(helper)
    assert not any(helper.folder.parent.iterdir())


def test_what_one_that_was_killed_left_is_deleted_after_a_day(temporary: Path) -> None:
    options = quick("-Dheadgate.grace.ms=1")
    yesterday, today, lives = (HelperJvm(MEMORY, options, each) for each in ("yesterday", "today", "lives"))
    connection, _ = lives.connect()
    for each in (yesterday, today):
        each.folder.mkdir()
        (each.folder / "log").write_text("killed")
    for each in (yesterday, lives):
        os.utime(each.folder, (0, 0))
    run_once(HelperJvm(MEMORY, options, "another"))
    assert today.folder.exists() and lives.folder.exists() and not yesterday.folder.exists()
    connection.close()
    wait_until(lambda: not javas(lives))


def test_a_folder_that_is_not_the_user_s_is_not_used(temporary: Path) -> None:
    """Anybody may make one of that name where all write: the user's processes meet in one of another name."""
    shared = helper_jvm._folder_of_user()
    assert shared.parent == temporary and shared.stat().st_mode & 0o777 == 0o700
    shared.rename(temporary / "elsewhere")
    shared.symlink_to(temporary / "elsewhere")
    own = HelperJvm(MEMORY).folder.parent
    assert own == shared.with_name(f"{shared.name}-1") and own.stat().st_mode & 0o777 == 0o700
    assert HelperJvm(MEMORY).folder.parent == own
    for number in range(2, helper_jvm._NAMES):
        (temporary / f"{shared.name}-{number}").touch()
    own.rmdir()
    own.touch()
    with pytest.raises(DeploymentError, match="Set TMPDIR to a folder of this user's"):
        HelperJvm(MEMORY)
