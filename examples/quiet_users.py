"""applyInPandasWithState: what each user paid in a visit, one row when there was no ride for ten seconds of event time.

python examples/quiet_users.py
"""

import os
import sys
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import headgate

GAP_MS = 10_000


def visits(key: tuple, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Add rides to a user's visit; a time-out ends it. It runs under Spark as it stands."""
    if state.hasTimedOut:
        rides, amount, _ = state.get
        yield pd.DataFrame({"user": [key[0]], "rides": [rides], "amount": [amount]})
        state.remove()
        return
    rides, amount, last_ms = state.getOption or (0, 0, 0)
    for frame in frames:
        rides, amount = rides + len(frame), amount + int(frame["amount"].sum())
        last_ms = max(last_ms, int(frame["at"].max().timestamp() * 1000))
    state.update((rides, amount, last_ms))
    state.setTimeoutTimestamp(last_ms + GAP_MS)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
    spark = SparkSession.builder.master("local[2]").appName("quiet-users").getOrCreate()
    rides = (
        spark.readStream.format("headgate.datagen")
        .option("numRows", 4_000)
        .option("rowsPerSecond", 1000)
        .option("fields.user.cardinality", 100)
        .option("fields.amount.cardinality", 100)
        .schema("user string, amount long, at timestamp")
        .load()
        .withWatermark("at", "2 seconds")
    )
    ended = rides.groupBy("user").applyInPandasWithState(
        visits,
        "user string, rides long, amount long",
        "rides long, amount long, lastMs long",
        "append",
        GroupStateTimeout.EventTimeTimeout,
    )
    query = headgate.continuous(ended, parallelism=2).writeStream.format("memory").start()
    query.awaitTermination()
    found = query.table()
    print(f"{found.num_rows} visits of {len(set(found['user'].to_pylist()))} users, ", end="")
    print(f"{sum(found['rides'].to_pylist())} rides in all")
    spark.stop()
