"""Output mode update: what a window holds so far, with every checkpoint. Rows that are too late are kept, elsewhere.

python examples/continuous_updates.py
"""

import os
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.functions import count, sum, window

import headgate

PAGES, PAGE_RIDES = 60, 100
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Rides(headgate.SimpleSource):
    """Pages of ten seconds of rides; of the last page, some rides are of the first minutes."""

    name = "rides"
    schema = "user string, amount long, at timestamp"

    def splits(self):
        return ["city"]

    def read(self, split_id, position):
        for page in range(position or 0, PAGES):
            seconds = [page * 10 + ride / 10 for ride in range(PAGE_RIDES)]
            if page == PAGES - 1:  # a phone that was out of reach
                seconds[:12] = range(0, 120, 10)
            rides = [
                {"user": f"user-{ride % 3}", "amount": ride, "at": BEGIN + timedelta(seconds=second)}
                for ride, second in enumerate(seconds)
            ]
            time.sleep(0.02)  # it is a slow service
            yield pa.RecordBatch.from_pylist(rides), page + 1


def rides_of_groups(updates: pa.Table) -> list[int]:
    """Return the rides of each group by its last update: those of a group come in their order."""
    newest = {(row["window"]["start"], row["user"]): row["rides"] for row in updates.to_pylist()}
    return list(newest.values())


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
    spark = SparkSession.builder.master("local[2]").appName("continuous-updates").getOrCreate()
    headgate.register(spark, Rides)

    totals = (
        spark.readStream.format("rides")
        .load()
        .withWatermark("at", "5 seconds")
        .groupBy(window("at", "1 minute"), "user")
        .agg(sum("amount").alias("total"), count("*").alias("rides"))
    )

    with tempfile.TemporaryDirectory() as folder:
        query = (
            headgate.continuous(totals, parallelism=1)
            .writeStream.format("memory")
            .outputMode("update")
            .option("lateRows", "parquet")
            .option("lateRows.path", f"{folder}/late")
            .trigger(continuous="200 milliseconds")
            .start()
        )
        while query.status["rowsIn"] < PAGES * PAGE_RIDES and not query.awaitTermination(0.1):
            pass
        query.stop(drain=True)  # the input ends here: all windows are over
        updates = query.table()
        rides = rides_of_groups(updates)
        print(f"{updates.num_rows} updates of {len(rides)} groups, which have {pc.sum(rides)} rides")
        late = spark.read.parquet(f"{folder}/late")
        late.groupBy("user").count().orderBy("user").show()
    spark.stop()
