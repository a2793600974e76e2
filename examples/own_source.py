"""A source of one's own in twenty lines, read as a batch and as a stream.

    python examples/own_source.py

`pages` stands for the client of some system that hands out its data page by page.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

import headgate

PAGES, PAGE_ROWS = 20, 500


class Page(NamedTuple):
    rows: list[dict[str, Any]]
    token: str

    def to_record_batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(self.rows)


def pages(symbol: str, after: str | None) -> Iterator[Page]:
    """Return the pages after a token, as some web service might."""
    first = 0 if after is None else int(after.removeprefix("page-")) + 1
    opening = datetime(2026, 1, 2, 14, 30, tzinfo=UTC)
    for number in range(first, PAGES):
        seconds = range(number * PAGE_ROWS, (number + 1) * PAGE_ROWS)
        rows = [
            {"symbol": symbol, "price": 100 + second % 7 / 4, "at": opening + timedelta(seconds=second)}
            for second in seconds
        ]
        yield Page(rows, f"page-{number}")


class Ticks(headgate.SimpleSource):
    name = "ticks"  # spark.read.format("ticks") after headgate.register(spark, Ticks)
    schema = "symbol string, price double, at timestamp"

    def splits(self):  # called again to discover more, when the read is unbounded
        return ["AAPL", "MSFT"]

    def read(self, split_id, position):  # position: what was yielded last, None at the beginning
        for page in pages(split_id, after=position):
            yield page.to_record_batch(), page.token  # batch, position to resume after it (anything JSON can hold)


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    headgate.register(spark, Ticks)

    ticks = spark.read.format("ticks").load()
    batch = {row["symbol"]: row["count"] for row in ticks.groupBy("symbol").count().collect()}
    print("batch: ", batch)

    with tempfile.TemporaryDirectory() as folder:
        query = (
            spark.readStream.format("ticks").option("maxRowsPerTrigger", 6000).load()
            .writeStream.format("parquet").option("path", f"{folder}/ticks")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        written = spark.read.parquet(f"{folder}/ticks")
        stream = {row["symbol"]: row["count"] for row in written.groupBy("symbol").count().collect()}
        distinct = written.distinct().count()
    print("stream:", stream, "in", len(query.recentProgress), "micro-batches")
    spark.stop()

    expected = {"AAPL": PAGES * PAGE_ROWS, "MSFT": PAGES * PAGE_ROWS}
    if not batch == stream == expected or distinct != sum(expected.values()):
        sys.exit(f"expected {expected}, all rows distinct, but {distinct} are")


if __name__ == "__main__":
    main()
