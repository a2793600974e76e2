"""Runs scenarios of modules in a session of its own; prints a JSON object of what went wrong in each.

Arguments: the modules (with commas between), Spark's master, a folder, how many at a time, and the scenarios' names.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

from pyspark.sql import SparkSession

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(name)s %(message)s")
logging.getLogger("py4j").setLevel(logging.WARNING)
modules, master, folder, at_a_time, *names = sys.argv[1:]
all_scenarios = [import_module(each) for each in modules.split(",")]
os.environ["PYSPARK_PYTHON"] = sys.executable
spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", ""))  # executors start soon, too
    .getOrCreate()
)  # fmt: skip
spark.sparkContext.setLogLevel("OFF")
if (cluster := re.match(r"local-cluster\[(\d+),", master)) is not None:
    # A query waits for its executors for some seconds only, and each is a Java that has to start.
    deadline = time.monotonic() + 120
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1 < int(cluster[1]):
        assert time.monotonic() < deadline, "executors do not come"
        time.sleep(0.1)


def run(name: str) -> str:
    began = time.monotonic()
    scenarios = next(each for each in all_scenarios if hasattr(each, name))
    try:
        getattr(scenarios, name)(spark, Path(folder) / name)
    except BaseException:
        return traceback.format_exc()
    finally:
        scenarios.stop_what_is_left(Path(folder) / name)
        logging.info("%s took %.1f s", name, time.monotonic() - began)
    return ""


with ThreadPoolExecutor(int(at_a_time)) as pool:
    print(json.dumps(dict(zip(names, pool.map(run, names)))))
spark.stop()
