"""Who gets which rows: repartition, broadcast and partitionBy, and how many rows of what each slot then has.

python examples/continuous_exchanges.py
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import headgate

ROWS, SLOTS = 10_000, 3
SEEN = pa.schema({"n": pa.int64(), "slot": pa.int64()})


def seen_by(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Say of each row whose it is: every slot is a process."""
    for batch in batches:
        slot = pa.array([os.getpid()] * batch.num_rows, pa.int64())
        yield pa.RecordBatch.from_arrays([batch.column("n"), slot], schema=SEEN)


def by_thousand(batch: pa.RecordBatch, subtasks: int) -> pa.Array:
    """Return the number of each row's subtask: a thousand rows here, the next thousand there."""
    thousands = pc.divide(batch.column("n"), 1000)
    return pc.subtract(thousands, pc.multiply(pc.divide(thousands, subtasks), subtasks))


def rows_of_slots(stream: Any) -> list[list[int]]:
    """Run a stream to its end, and return the rows that each slot has seen."""
    query = stream.mapInArrow(seen_by, SEEN).writeStream.format("memory").trigger(continuous="1 second").start()
    query.awaitTermination()
    rows: dict[int, list[int]] = {}
    for row in query.table().to_pylist():
        rows.setdefault(row["slot"], []).append(row["n"])
    return list(rows.values())


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
    spark = SparkSession.builder.master(f"local[{SLOTS}]").appName("continuous-exchanges").getOrCreate()
    numbers = (
        headgate.continuous(spark, parallelism=SLOTS)
        .read.format("headgate.datagen")
        .option("numRows", ROWS)
        .option("numPartitions", 1)  # one split, which one slot reads: the others would have nothing to do
        .schema("n long")
        .option("fields.n.kind", "sequence")
        .load()
    )
    streams = {
        "as it is": numbers,
        "repartition": numbers.repartition(),
        "broadcast": numbers.broadcast(),
        "partitionBy": numbers.partitionBy(by_thousand),
    }
    for name, stream in streams.items():
        slots = rows_of_slots(stream)
        thousands = sorted(sorted({n // 1000 for n in rows}) for rows in slots)
        print(f"{name}: {sorted(len(rows) for rows in slots)} rows, of the thousands {thousands}")
    spark.stop()
