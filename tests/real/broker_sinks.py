"""What the tests of sinks of brokers share: writers of a continuous query without Spark, and a stream of Spark's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state import InlineState
from headgate.sink import Sink, SinkWriter

VALUES = pa.schema({"value": pa.string()})


def rows(*texts: str) -> pa.RecordBatch:
    return pa.record_batch({"value": list(texts)}, VALUES)


class Writers:
    """Makes the writers of one query, run after run, and closes them."""

    def __init__(
        self, make_sink: Callable[[Mapping[str, str], pa.Schema], Sink], settings: Mapping[str, str], folder: Path
    ) -> None:
        self.topic, self.folder = settings["topic"], folder
        self.run = 0
        self._make_sink = make_sink
        self._settings = settings
        self._writers: list[SinkWriter] = []

    def start(
        self, parallelism: int, items: Sequence[bytes] = (), schema: pa.Schema = VALUES, **options: str | None
    ) -> list[SinkWriter]:
        """Start a run; items are dealt out from the last subtask on, as no order is promised."""
        self.run += 1
        settings = {"guarantee": "exactly-once"} | self._settings | options
        sink = self._make_sink({name: value for name, value in settings.items() if value is not None}, schema)
        made = []
        for subtask in range(parallelism):
            context = OperatorContext(
                uid="sink", subtask=subtask, parallelism=parallelism, run=self.run, execution=1,
                query_id=self.topic.rpartition("/")[2], options={"checkpointLocation": str(self.folder)},
            )  # fmt: skip
            made.append(sink.create_writer(context, schema, list(items)[::-1][subtask::parallelism]))
        self._writers += made
        return made

    def close_one(self, writer: SinkWriter) -> None:
        """Close a writer before the others."""
        self._writers.remove(writer)
        writer.close()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


def snapshot(writers: Sequence[SinkWriter], checkpoint_id: int, *, final: bool = False) -> list[bytes]:
    """Return the items of all writers, when they are safe."""
    states = [each.prepare_commit(checkpoint_id, final=final) for each in writers]
    handles = [handle for state in states for handle in state.result(60).items]
    assert all(isinstance(handle, InlineState) for handle in handles)
    return [handle.data for handle in handles if isinstance(handle, InlineState)]


def complete(writers: Sequence[SinkWriter], checkpoint_id: int) -> None:
    """Notify all writers, and wait until they have published."""
    for each in writers:
        each.notify_checkpoint_complete(checkpoint_id)
    published(writers)


def published(writers: Sequence[SinkWriter]) -> None:
    for each in writers:
        done = each.finish()
        assert done is not None
        done.result(120)


class Stream:
    """A query of Spark's from a folder of text files, one file a micro-batch, into a topic."""

    def __init__(self, spark: SparkSession, format_name: str, folder: Path, options: Mapping[str, str]) -> None:
        self.spark, self.format_name, self.folder, self.topic = spark, format_name, folder, options["topic"]
        self.options = {"checkpointLocation": str(folder / "checkpoint")} | options
        (folder / "in").mkdir(parents=True)
        self._files = 0

    def add(self, *lines: str) -> None:
        self._files += 1
        part = self.folder / f"{self._files}.txt"
        part.write_text("".join(f"{each}\n" for each in lines))
        os.utime(part, (self._files, self._files))
        os.replace(part, self.folder / "in" / part.name)

    def run(self, failing: str = "false", tasks: int = 2) -> StreamingQuery:
        """Run all that is there; rows for which ``failing`` is true break their task."""
        frame = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder / "in"))
        frame = frame.repartition(2, "value").coalesce(tasks)
        frame = frame.selectExpr(f"IF({failing}, raise_error('broken'), value) AS value")
        query = frame.writeStream.format(self.format_name).options(**self.options).trigger(availableNow=True).start()
        assert query.awaitTermination(120), "the query did not end"
        return query

    def forget_commit(self, batch: int) -> None:
        """Make it as if Spark had been killed after the sink's commit and before its own."""
        (self.folder / "checkpoint" / "commits" / str(batch)).unlink()
        (self.folder / "checkpoint" / "commits" / f".{batch}.crc").unlink(missing_ok=True)
