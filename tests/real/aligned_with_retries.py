"""Kills workers of aligned queries in a session that retries tasks, in the folder that is its argument."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.real.test_continuous_event_time import kill_a_worker

os.environ["PYSPARK_PYTHON"] = sys.executable
spark = (
    SparkSession.builder.master("local[2,4]")
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)  # fmt: skip
spark.sparkContext.setLogLevel("OFF")
for victim in ("slow", "fast"):
    kill_a_worker(spark, Path(sys.argv[1]) / victim, victim, executions=[1, 2])
spark.stop()
