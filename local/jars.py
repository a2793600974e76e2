"""What Java needs and is made once, into ``.cache``: libraries by Maven (a POM beside this file), archives of classes.

Never: run at import, or name where Maven gets them from: that is the machine's setting.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_HERE = Path(__file__).resolve().parent
CACHE = _HERE.parent / ".cache"


_MEGABYTES = {"pulsar-broker": 150}
"""What Maven fetches for a POM, where it is much more than for the others."""
SPARK_KAFKA = {(4, 0): "4.0.3", (4, 1): "4.1.2"}
"""The version of Spark's Kafka source for older versions of Spark."""


def spark_kafka() -> list[Path]:
    """Return the jars of Spark's own Kafka source for the Spark that is installed."""
    from headgate.spark.compatibility import spark_version

    return jars("spark-kafka", SPARK_KAFKA.get(spark_version(), ""))


def jars(pom: str, spark: str = "") -> list[Path]:
    """Return the jars of ``local/POM.pom.xml``, fetched if they are not there yet.

    With ``spark`` they are those of another version of Spark than the one that the POM says.

    Raises
    ------
    SystemExit
        Maven is missing or failed: the message says what to type.
    """
    source = _HERE / f"{pom}.pom.xml"
    folder = CACHE / "jars" / f"{pom}{spark}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    given = [f"-Dspark.version={spark}"] if spark else []
    return sorted(_made_once(folder, lambda staged: _fetch(source, staged, given)).glob("*.jar"))


def class_archive(name: str, of: str, make: Callable[[Path], None]) -> Path:
    """Return an archive of the classes that a program loads, without which its start takes twice as long.

    ``of`` says what it depends on: Java, the libraries. ``make`` writes it, the first time.
    """
    return _made_once(CACHE / "classes" / f"{name}-{hashlib.sha256(of.encode()).hexdigest()[:12]}.jsa", make)


def java() -> str:
    """Return the Java to run them with: the one that ``./run`` chose for Spark, else the first on the path."""
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def _made_once(path: Path, make: Callable[[Path], None]) -> Path:
    """Return a file or folder that whoever comes first makes elsewhere, while others wait."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                    made = Path(folder) / path.name
                    make(made)
                    made.replace(path)
    return path


def _fetch(pom: Path, folder: Path, options: Sequence[str] = ()) -> None:
    if shutil.which("mvn") is None:
        raise SystemExit("Maven is missing. Please type: apt-get install -y maven   (or: brew install maven)")
    megabytes = _MEGABYTES.get(pom.name.partition(".")[0], 50)
    print(
        f"run: fetching the jars of {pom.name} by Maven (the first time: about {megabytes} MB)",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    command = ["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", "-DincludeScope=runtime",
               f"-DoutputDirectory={folder}", *options]  # fmt: skip
    began = time.monotonic()
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as maven,
    ):
        while True:
            try:
                code = maven.wait(timeout=5)
                break
            except subprocess.TimeoutExpired:
                print(f"run:   {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        if code != 0:
            output.seek(0)
            words = output.read().decode(errors="replace")
            raise SystemExit(f"Maven could not fetch the jars of {pom.name}:\n{words[-2000:]}")


if __name__ == "__main__":
    for _pom in ("kafka-broker", "pulsar-broker"):
        jars(_pom)
    spark_kafka()
