"""Sessions by a StatefulProcessor: a user's rides with no gap of ten seconds, one row when the session is over.

python examples/sessions_with_state.py
"""

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import headgate

GAP_MS = 10_000
SESSION = "user string, rides long, amount long, ended timestamp"


class Sessions(StatefulProcessor):
    """Counts the rides of a session; a timer after its last ride ends it. It runs under Spark as it stands."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state of a user."""
        self.handle = handle
        self.session = handle.getValueState("session", "rides long, amount long, last long")

    def handleInputRows(self, key, rows, timerValues) -> Iterator[Row]:
        """Add rides to the session, and put its end off; a gap among them ends it at once."""
        rides, amount, last = self.session.get() or (0, 0, None)
        if last is not None:
            self.handle.deleteTimer(last + GAP_MS)
        for row in sorted(rows, key=lambda row: row.at):
            at = int(row.at.timestamp() * 1000)
            if last is not None and at > last + GAP_MS:
                yield self.ended(key, rides, amount, last)
                rides, amount, last = 0, 0, None
            rides, amount = rides + 1, amount + row.amount
            last = at if last is None else max(last, at)
        self.session.update((rides, amount, last))
        self.handle.registerTimer(last + GAP_MS)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo) -> Iterator[Row]:
        """End the session."""
        yield self.ended(key, *self.session.get())
        self.session.clear()

    def ended(self, key, rides: int, amount: int, last: int) -> Row:
        """Return the row of a session."""
        return Row(user=key[0], rides=rides, amount=amount, ended=datetime.fromtimestamp(last / 1000, UTC))


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
    spark = SparkSession.builder.master("local[2]").appName("sessions-with-state").getOrCreate()
    rides = (
        spark.read.format("headgate.datagen")
        .option("numRows", 20_000)
        .option("rowsPerSecond", 100)  # of event time: they are made as fast as can be
        .option("fields.user.cardinality", 500)
        .option("fields.user.skew", 1.1)
        .option("fields.amount.cardinality", 100)
        .option("eventTimeColumn", "at")  # a stream would say withWatermark("at", ...)
        .schema("user string, amount long, at timestamp")
        .load()
    )
    sessions = rides.groupBy("user").transformWithState(Sessions(), SESSION, "append", "EventTime")
    query = (
        headgate.continuous(sessions, parallelism=2).writeStream.format("memory").trigger(continuous="1 second").start()
    )
    query.awaitTermination()
    table = query.table()
    users = len(set(table.column("user").to_pylist()))
    print(f"{table.num_rows} sessions of {users} users, {sum(table.column('rides').to_pylist())} rides in all")
    spark.stop()
