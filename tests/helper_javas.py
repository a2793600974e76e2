"""The Javas that evaluate expressions, looked at from outside.

Never: start one.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pyspark.sql import SparkSession

from headgate.catalyst.helper_jvm import HelperJvm
from tests.spark_java import helper_options


@cache
def _session_options() -> str:
    """Return those of the session; a test that has changed JAVA_HOME gets the same."""
    return helper_options()["spark.headgate.catalyst.extraJavaOptions"]


def quick(java_options: str = "") -> str:
    """Return options with which one starts quickly."""
    return f"{_session_options()} {java_options}".strip()


def helper_of(spark: SparkSession, memory_bytes: int = 512 << 20, java_options: str = "") -> HelperJvm:
    """Return the helper of the session's queries with these options."""
    return HelperJvm(memory_bytes, java_options or quick(), spark.sparkContext.applicationId)


def javas(helper: HelperJvm) -> list[int]:
    """Return the processes that are, or will be, what connects to this helper."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            command = (each / "cmdline").read_bytes().decode().rstrip("\0").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if command[-1] == str(helper.folder):
            found.append(int(each.name))
    return found


def parent_of(pid: int) -> int:
    """Return who started a process, if that one lives."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
