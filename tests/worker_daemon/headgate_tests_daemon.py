"""Spark's daemon of Python workers, which has imported what they need: else each of its forks imports it again.

Named by ``spark.python.daemon.module``. The folder of this file is on the path of workers.

Each fork collects garbage behind each task: what the daemon has is none. It looks for modules in its first task, which
reads jars on the path again: they are off it.

Never: fork with threads about; those of the libraries are off before these are imported.
"""

import contextlib
import gc
import importlib
import os
import sys
from pathlib import Path

from pyspark.daemon import manager

for jar in [path for path in sys.path if path.endswith(".jar")]:
    sys.path.remove(jar)
    sys.path_importer_cache.pop(jar, None)
os.environ.update({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
for name in (
    "numpy",
    "pandas",
    "pyarrow.parquet",
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "headgate.spark.continuous.slot",
    "headgate.operators.map_in_arrow",
    "headgate.operators.sinks.memory",
    "headgate.operators.windows.operator",
    "headgate.connectors.datagen.source",
    "headgate.connectors.simple.split_reader",
    "headgate.connectors.files.source",
    "headgate.connectors.kafka.source",
):
    with contextlib.suppress(ImportError):  # of a client that is not installed
        importlib.import_module(name)
threads = Path("/proc/self/task")
assert not threads.exists() or len(list(threads.iterdir())) == 1, "a module started a thread, which forks do not have"
gc.freeze()
manager()
