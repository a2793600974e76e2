"""A program whose slots note how their processes began, one file each, in the folder that is its argument."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import headgate

FOLDER = Path(sys.argv[1])


def noted(folder: Path) -> list[Path]:
    """Return the files."""
    return [each for each in folder.glob("[0-9]*") if not each.suffix]


if __name__ == "__main__":
    folder = str(FOLDER)

    def note(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the file of this process, once."""
        import numpy
        import pyspark

        at = Path(folder) / str(os.getpid())
        if not at.exists():
            of_daemon = Path(f"/proc/{os.getppid()}")
            facts = {
                "pyspark": pyspark.__file__,
                "draws": numpy.random.randint(0, 2**31, 4).tolist(),
                "arrow in the daemon": "libarrow" in (of_daemon / "maps").read_text(),
                "threads of the daemon": len(list((of_daemon / "task").iterdir())),
                "path": os.environ.get("PYTHONPATH", ""),
            }
            at.with_suffix(".new").write_text(json.dumps(facts))
            at.with_suffix(".new").rename(at)
        yield from batches

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    rows = spark.readStream.format("headgate.datagen").options(rowsPerSecond=200, numPartitions=4)
    program = rows.schema("value long").load().mapInArrow(note, "value long")
    query = (
        headgate.continuous(program, parallelism=2).writeStream.format("noop")
        .option("checkpointLocation", f"{folder}/checkpoint").start()
    )  # fmt: skip
    while len(noted(FOLDER)) < 2 and query.isActive:
        time.sleep(0.05)
    query.stop()
    spark.stop()
