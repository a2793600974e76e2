"""A driver that kills itself in the middle of something.

``checkpoint``: between the subtasks' acknowledgements and the manifest. ``commit``: between moving staged files and
naming them in Spark's log.

Arguments: which, how many of them go well before, and a folder.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from failover_query import WITHIN_S
from failover_scenarios import start_with_files
from pyspark.sql import SparkSession

from headgate.checkpoint.storage import CheckpointStorage
from headgate.connectors.files.sink.spark_metadata import SparkMetadataLog

moment, well, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
os.environ["PYSPARK_PYTHON"] = sys.executable


def dies_at_last(owner: type, method: str) -> None:
    """Let a method work so many times, and then the process die before it does anything."""
    works, calls = getattr(owner, method), []

    def die(*arguments: Any, **named: Any) -> Any:
        calls.append(method)
        if len(calls) > well:
            os.kill(os.getpid(), signal.SIGKILL)
        return works(*arguments, **named)

    setattr(owner, method, die)


if moment == "checkpoint":
    dies_at_last(CheckpointStorage, "write_manifest")
else:
    dies_at_last(SparkMetadataLog, "append")
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
start_with_files(spark, folder).awaitTermination(WITHIN_S)
sys.exit("it was to die")
