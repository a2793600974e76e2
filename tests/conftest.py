"""One Spark session for the whole run: starting one takes seconds, and a machine runs several test jobs at once."""

from __future__ import annotations

import gc
import os
import re
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests import distribution, search, tiers
from tests.spark_java import (
    QUICK,
    ROOM,
    SparkJava,
    forked_from,
    helper_options,
    imported_modules,
    java_options,
    micro_batches,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from local.kafka import Certificates
    from local.kinesis import FaultyProxy, MotoServer
    from tests.shared_broker import Addresses, PulsarAddresses

# Without these a worker takes the first python3 on the PATH, which has no pyarrow.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("HEADGATE_HOME", f"{tempfile.gettempdir()}/headgate-tests-{os.getuid()}")  # not this user's own
_paths = [str(Path(__file__).parent / "worker_daemon"), *filter(None, [os.environ.get("PYTHONPATH")])]
os.environ["PYTHONPATH"] = os.pathsep.join(_paths)  # for `imported_modules`
# Every Java that a test starts: Spark's, the one that makes its command line, and brokers.
for _name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS"):
    os.environ.setdefault(_name, QUICK)
# No example has a time limit, nor has making it: on a machine that others use as well any may take long. Examples are
# the same in each run, so that what passes here passes there; other ones: pytest --exhaustive.
_unhurried = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("explore", _unhurried, derandomize=False)
hypothesis.settings.register_profile("headgate", _unhurried, derandomize=True, database=None)
hypothesis.settings.load_profile("headgate")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that choose a tier, and the one that measures."""
    parser.addoption("--tier", choices=["first", "rest"], help="only what tests/tiers.py says is in this tier")
    parser.addoption("--exhaustive", action="store_true", help="search all seeds, machines and other examples")
    parser.addoption("--cost", action="store_true", help="show each file's processor time, children included")


def pytest_configure(config: pytest.Config) -> None:
    """Say how far to search before a test module is imported."""
    search.exhaustive = config.getoption("exhaustive")
    if search.exhaustive:
        hypothesis.settings.load_profile("explore")
    if config.getoption("cost"):
        from tests import cost

        if not config.getoption("numprocesses", None):
            config.pluginmanager.register(cost.OfEachTest())
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(cost.OfAll(config.getoption("tier") or "all"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Say which seeds this run tries: what fails is found again with them."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # a process of several
        return
    if search.exhaustive:
        reporter.write_line("exhaustive: all seeds, whole explorations, other examples")
    elif session.config.getoption("tier") != "first":
        reporter.write_line(f"seeds: block {search.block()}, by the number of the commit; all of them: --exhaustive")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how long each part took, and all tests together, below the slowest ones."""
    if terminalreporter.config.option.durations is not None:
        seconds, tests = Counter[str](), Counter[str]()
        for report in (each for of_kind in terminalreporter.stats.values() for each in of_kind):
            if isinstance(report, pytest.TestReport):
                part = distribution.part_of(report.nodeid)
                seconds[part] += report.duration  # type: ignore[assignment]  # a counter of floats
                tests[part] += report.when == "call"
        for part, total_s in seconds.most_common():
            terminalreporter.write_line(f"{total_s:7.0f} s {tests[part]:6} tests  {part}")
        terminalreporter.write_line(f"all tests together: {sum(seconds.values()):.0f} s, set-up included")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out other tiers than the run's; skip what this version of Spark cannot do."""
    for item in items:
        for marker in item.iter_markers("spark_since"):
            skip_without(item, *marker.args)
    tiers.collected = frozenset(item.nodeid for item in items)
    run = [item for item in items if tiers.is_run(item.nodeid, config.getoption("tier"), search.exhaustive)]
    if len(run) < len(items):
        config.hook.pytest_deselected(items=[*{*items} - {*run}])
        items[:] = run


def skip_without(item: pytest.Item, *features: str) -> None:
    """Skip a test that needs what this version of Spark does not have."""
    from headgate.spark.compatibility import missing, supports  # unit tests must run without starting to import Spark

    for each in features:
        if not supports(each):
            item.add_marker(pytest.mark.skip(reason=f"{each}: {missing(each)}"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the garbage collector from going through thousands of tests, which live to the end, again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadfile``, cut the longest files in pieces and begin with them."""
    return distribution.scheduler(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def imported() -> Iterator[Path]:
    """Let each Java of a Spark start sooner; return where a process listens that has imported what workers need.

    A file of this folder, named by the id of a process that Spark started, holds that of its fork.
    """
    if os.environ["SPARK_SUBMIT_OPTS"] == QUICK:
        os.environ["SPARK_SUBMIT_OPTS"] = java_options()
    with imported_modules() as folder:
        yield folder


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, imported: Path) -> Iterator[SparkSession]:
    """Return the session that all tests share; a test that changes a setting puts it back."""
    from pyspark.sql import SparkSession  # unit tests must run without starting to import Spark

    from local.jars import spark_kafka

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, spark_kafka())))  # the peer of headgate.kafka
        .appName("headgate-tests")
        .config(map=micro_batches() | ROOM | helper_options())
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.pythonUDF.arrow.enabled", "true")  # as is the default since Spark 4.2
        # A kill while Spark 4.3 writes its first offset leaves a temporary file, which it then refuses to start from.
        .config("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    )
    with forked_from(imported):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the folder that holds the project."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory, imported: Path) -> Iterator[SparkJava]:
    """Return the Java in which Spark programs run that are processes of their own, one after the other."""
    java = SparkJava(tmp_path_factory.mktemp("java"), imported)
    yield java
    java.close()


@pytest.fixture(scope="session")
def of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all processes of this run share."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"


@pytest.fixture(scope="session")
def certificates(of_all_workers: Path) -> Certificates:
    """Return a CA, a broker's certificate by it, and a CA that signed nothing."""
    from tests.shared_broker import certificates_of

    return certificates_of(of_all_workers)


@pytest.fixture(scope="session")
def kafka(of_all_workers: Path) -> Iterator[Addresses]:
    """Return the broker that all tests share, with all its listeners; a test that kills a broker starts its own."""
    from tests.shared_broker import shared_broker

    with shared_broker(of_all_workers) as addresses:
        yield addresses


@pytest.fixture(scope="session")
def pulsar(of_all_workers: Path) -> Iterator[PulsarAddresses]:
    """Return the Pulsar broker that all tests share, with TLS and without tokens, which drops nothing that is repeated.

    Topics whose producers' repeated messages are dropped: in ``public/once``.
    """
    from local.pulsar_topics import create_namespace
    from tests.shared_broker import shared_pulsar

    with shared_pulsar(of_all_workers) as addresses:
        create_namespace(addresses, "once", deduplication=True)
        yield addresses


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """Return a name for a topic that no other test has."""
    return f"{re.sub(r'[^a-zA-Z0-9]+', '-', request.node.name)[:80]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def aws() -> Iterator[MotoServer]:
    """Return moto's server, which all tests share: Kinesis and S3."""
    from local.kinesis import running_moto

    with running_moto() as server:
        yield server


@pytest.fixture
def faulty(aws: MotoServer) -> Iterator[FaultyProxy]:
    """Return a proxy before moto's server that counts calls, and fails on command."""
    from local.kinesis import FaultyProxy

    proxy = FaultyProxy(aws)
    yield proxy
    proxy.close()
