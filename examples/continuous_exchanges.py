"""Who gets which rows: repartition, by turns and by key, and repartitionById, and how many rows each slot then has.

python examples/continuous_exchanges.py
"""

import os
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import headgate

ROWS, SLOTS = 10_000, 3


def seen_by(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Say of each row whose it is: every slot is a process."""
    for batch in batches:
        slot = pa.array([os.getpid()] * batch.num_rows, pa.int64())
        yield pa.RecordBatch.from_arrays([batch.column("n"), slot], names=["n", "slot"])


def rows_of_slots(frame: DataFrame) -> list[list[int]]:
    """Run a program to its end, and return the rows that each slot has seen."""
    program = headgate.continuous(frame.mapInArrow(seen_by, "n long, slot long"), parallelism=SLOTS)
    query = program.writeStream.format("memory").trigger(continuous="1 second").start()
    query.awaitTermination()
    rows: dict[int, list[int]] = {}
    for row in query.table().to_pylist():
        rows.setdefault(row["slot"], []).append(row["n"])
    return list(rows.values())


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
    spark = SparkSession.builder.master(f"local[{SLOTS}]").appName("continuous-exchanges").getOrCreate()
    numbers = (
        spark.read.format("headgate.datagen")
        .option("numRows", ROWS)
        .option("numPartitions", 1)  # one split, which one slot reads: the others would have nothing to do
        .schema("n long")
        .option("fields.n.kind", "sequence")
        .load()
        .selectExpr("n", "n div 1000 AS thousand")
    )
    frames = {
        "as it is": numbers,
        "repartition": numbers.repartition(SLOTS),
        "by key": numbers.repartition("thousand"),
        "by id": numbers.repartitionById(SLOTS, numbers.thousand.cast("int")),
    }
    for name, frame in frames.items():
        slots = rows_of_slots(frame)
        thousands = sorted(sorted({n // 1000 for n in rows}) for rows in slots)
        print(f"{name}: {sorted(len(rows) for rows in slots)} rows, of the thousands {thousands}")
    spark.stop()
