"""One Spark session for the whole run: starting one takes seconds, and a machine runs several test jobs at once."""

from __future__ import annotations

import os
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from local.kafka import Broker, Certificates
    from local.kinesis import FaultyProxy, MotoServer

# Without these a worker takes the first python3 on the PATH, which has no pyarrow.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
# No example has a time limit, nor has making it: on a machine that others use as well any may take long. Examples are
# the same in each run, so that what passes here passes there; other ones: pytest --hypothesis-profile explore.
_unhurried = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("explore", _unhurried, derandomize=False)
hypothesis.settings.register_profile("headgate", _unhurried, derandomize=True, database=None)
hypothesis.settings.load_profile("headgate")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return the session that all tests share; a test that changes a setting puts it back."""
    from pyspark.sql import SparkSession  # unit tests must run without starting to import Spark

    from local.jars import jars

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, jars("spark-kafka"))))  # the peer of headgate.kafka
        .appName("headgate-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        # A kill while Spark 4.3 writes its first offset leaves a temporary file, which it then refuses to start from.
        .config("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the folder that holds the project."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Return a CA, a broker's certificate by it, and a CA that signed nothing."""
    from local.kafka import Certificates

    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Broker]:
    """Return the broker that all tests share, with all its listeners; a test that kills a broker starts its own."""
    from local.kafka import running_broker

    with running_broker(tmp_path_factory.mktemp("kafka"), certificates=certificates) as broker:
        yield broker


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
