"""Stores rides that come into a folder by the functions of ``examples/continuous_jdbc.py``.

Arguments: a folder, and how many rides there are in all. It ends when so many are stored, or killed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headgate

folder, wanted = Path(sys.argv[1]), int(sys.argv[2])
os.environ["PYSPARK_PYTHON"] = sys.executable
path = Path(__file__).resolve().parents[2] / "examples" / "continuous_jdbc.py"
spec = importlib.util.spec_from_file_location("continuous_jdbc", path)
assert spec is not None and spec.loader is not None
example: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)

spark = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
example.spark, example.url = spark, f"jdbc:derby:{folder}/database;create=true"
example.create_tables()
rides = spark.readStream.format("headgate.files").options(**{"fileFormat": "json", "discovery.interval": "1 second"})
query = (
    headgate.continuous(rides.schema("ride long, city long").load(f"{folder}/in"), 1)
    .writeStream.foreachBatch(example.store)
    .options(slots="threads", checkpointLocation=f"{folder}/checkpoint")
    .trigger(continuous="200 milliseconds")
    .start()
)
stored = spark.read.jdbc(example.url, "rides")
while stored.count() < wanted and not query.awaitTermination(0.2):
    pass
query.stop(drain=True)
print("rides: {} {} {}".format(*stored.agg(F.count("ride"), F.countDistinct("ride"), F.sum("ride")).head() or ()))
