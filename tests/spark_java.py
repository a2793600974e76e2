"""What the Javas of tests start with, and one that Spark programs share: a short program is mostly its Java's start.

Never: run two programs at a time in one Java (it has one SparkContext), or one there whose Java has to die with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headgate.catalyst.helper_jvm import HelperJvm, spark_jars
from local.jars import class_archive

IMPORTED = "HEADGATE_TESTS_IMPORTED"
"""The variable with which Spark's Python processes find where `imported_modules` listens."""
QUICK = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
"""Options of a Java that lives for minutes: the second compiler takes more time than its code saves. What Java gives
to the first alone has too little room for the code that Spark makes: it would drop some and compile it again."""
ROOM = {"spark.driver.extraJavaOptions": "-Xms800m -Xmn400m"}
"""Room for what queries of one or two tests allocate: with the few MiB that a heap begins with, collections take a
tenth of a test's CPU time."""
CLASSES_OF = """
import sys, tempfile
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
folder = Path(tempfile.mkdtemp(dir=sys.argv[1]))
frame = spark.range(100).selectExpr("id", "string(id) AS name", "timestamp_seconds(id) AS at").coalesce(1)
frame.mapInArrow(lambda batches: batches, frame.schema).groupBy("name").count().orderBy("name").collect()
for kind in ("parquet", "json", "csv", "text"):
    (frame.select("name") if kind == "text" else frame).write.format(kind).save(str(folder / kind))
    schema = spark.read.format(kind).load(str(folder / kind)).schema
    stream = spark.readStream.format(kind).schema(schema).load(str(folder / kind))
    query = stream.writeStream.format("memory").queryName(kind).trigger(availableNow=True)
    query.option("checkpointLocation", str(folder / f"{kind}-checkpoint")).start().awaitTermination()
spark.read.format("headgate.datagen").option("numRows", 10).load().toArrow()
spark.stop()
"""


def micro_batches() -> dict[str, str]:
    """Let micro-batches write their checkpoints in half the time.

    The other manager runs `readlink` in a process of its own some twenty times a batch, because Hadoop's native library
    is missing.
    """
    from headgate.spark.compatibility import spark_version  # unit tests must run without starting to import Spark

    package = "org.apache.spark.sql.execution.streaming" + (".checkpointing" if spark_version() >= (4, 1) else "")
    return {"spark.sql.streaming.checkpointFileManagerClass": f"{package}.FileSystemBasedCheckpointFileManager"}


def defaults() -> dict[str, str]:
    """Return what a program that does not say otherwise gets, as from a file spark-defaults.conf."""
    return {
        **micro_batches(),
        **ROOM,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
    }


@contextmanager
def imported_modules() -> Iterator[Path]:
    """Run the process of which Spark's Python processes may be forks; yield the folder where it listens."""
    with tempfile.TemporaryDirectory(prefix="headgate-", dir="/tmp") as folder:  # the address of a socket is short
        command = [sys.executable, "-m", "headgate_tests_imported", folder]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}  # as Spark's own workers have it
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None and process.stdout is not None
            assert process.stdout.readline() == b"listening\n", f"it ended with {process.wait()}"
            yield Path(folder)
            process.stdin.close()


@contextmanager
def forked_from(imported: Path) -> Iterator[None]:
    """Let the Python processes of a Spark that is started now be forks; of others they are what users have."""
    os.environ[IMPORTED] = str(imported)
    try:
        yield
    finally:
        del os.environ[IMPORTED]


def helper_options() -> dict[str, str]:
    """Return the setting that lets the Javas for expressions start in a third of their time, as `java_options` does.

    One waits for half a minute for the next test.
    """
    archive = class_archive("helper", f"{os.environ.get('JAVA_HOME', '')} {spark_jars()}", _helper_archive)
    options = f"-XX:TieredStopAtLevel=1 -XX:SharedArchiveFile={archive} -Dheadgate.grace.ms=30000"
    return {"spark.headgate.catalyst.extraJavaOptions": options}


def _helper_archive(made: Path) -> None:
    """Write an archive of the classes that a Java for expressions loads when it starts."""
    options = f"-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={made} -Dheadgate.grace.ms=1"
    connection, pid = HelperJvm(64 << 20, options).connect()
    connection.close()  # it ends when it has no other one
    os.waitpid(pid, 0)


def java_options() -> str:
    """Return the options of Spark's Java, with an archive of its loaded classes: half of what a start takes."""
    import pyspark

    of = f"{os.environ.get('JAVA_HOME', '')} {pyspark.__file__} {pyspark.__version__}"
    return f"{QUICK} -XX:SharedArchiveFile={class_archive('spark', of, _archive)}"


def _archive(made: Path) -> None:
    """Write an archive of the classes that a program of everything loads."""
    program = subprocess.run(
        [sys.executable, "-c", CLASSES_OF, made.parent], cwd=made.parent,
        env={**os.environ, "SPARK_SUBMIT_OPTS": f"{QUICK} -XX:ArchiveClassesAtExit={made}"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert program.returncode == 0, program.stdout[-4000:]


class SparkJava:
    """A Java in which programs make their SparkContext, one after the other; started when the first one comes.

    Each program is a process of its own, with a SparkContext, a master and settings of its own; it finds the Java as a
    program does that ``spark-submit`` started. The Java ends when this process does, however that ends: it reads from
    a pipe.
    """

    def __init__(self, folder: Path, imported: Path) -> None:
        self._folder = folder
        self._imported = imported
        self._gateway: Any = None

    def run(self, command: Sequence[str], **settings: Any) -> subprocess.CompletedProcess[Any]:
        """Run a program as `subprocess.run` does; what it leaves of Spark is stopped."""
        gateway = self._started()
        parameters = gateway.java_parameters
        found = {
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
            IMPORTED: str(self._imported),
        }
        try:
            return subprocess.run(command, env={**os.environ, **found}, stdin=subprocess.DEVNULL, **settings)
        finally:
            left = getattr(getattr(gateway.jvm.org.apache.spark, "SparkContext$"), "MODULE$").getActive()
            if left.isDefined():
                left.get().stop()

    def close(self) -> None:
        """End the Java."""
        if self._gateway is not None:
            self._gateway.shutdown()
            self._gateway.proc.stdin.close()
            self._gateway.proc.wait(60)
            self._gateway = None

    def _started(self) -> Any:
        if self._gateway is None:
            from pyspark import SparkConf
            from pyspark.java_gateway import launch_gateway

            self._folder.mkdir(parents=True, exist_ok=True)
            conf = SparkConf(loadDefaults=False).setAll((defaults() | helper_options()).items())
            # Spark resolves relative paths in its folder, and a warehouse may appear there.
            with forked_from(self._imported):
                self._gateway = launch_gateway(conf, popen_kwargs={"cwd": self._folder})
        return self._gateway
