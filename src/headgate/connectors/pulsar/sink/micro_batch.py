"""Writes the rows of Spark's batches and micro-batches: at least once in the tasks; exactly once from the driver.

Never: import pyspark, or report rows as written that the brokers have not acknowledged.

Exactly once, the life of a micro-batch:

1. Its tasks stage their rows beside the checkpoint, each attempt in files of its own.
2. Spark commits it with the files of one attempt of each task. A manifest that names them is written, once: a replay
   of the batch, whatever its tasks or the order of their rows, finds that one, and goes by it.
3. What the manifest names is sent by producers that have the query's name, with sequence ids that follow from the
   number of the batch. Whoever does so again sends the same, which brokers drop, as long as they know the name.
4. A mark says that all is sent. Whoever finds it sends nothing.
5. The next batch deletes it all: Spark begins that one only when this one is committed for good.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa

from headgate.connectors.pulsar.client import NAME
from headgate.connectors.pulsar.sink.options import PulsarSink
from headgate.connectors.pulsar.sink.producer import MessageWriter
from headgate.connectors.pulsar.sink.publisher import MARK_SERIALIZER, PublishedMark, first_sequence_id
from headgate.connectors.pulsar.sink.rows import ROWS_SCHEMA
from headgate.sink.staging import InlineRows, PieceWriter, RowsFile, StagingFolder, folder_of, staging_folder
from headgate.source.serialization import VersionedSerializer


class StagedTask(msgspec.Struct, frozen=True):
    """What one attempt of a task staged.

    Parameters
    ----------
    task
        The task's number in its batch.
    files
        In the order of their rows.
    """

    task: int
    files: tuple[InlineRows | RowsFile, ...]


class Manifest(msgspec.Struct, frozen=True):
    """What a micro-batch publishes: the files of its tasks, in the order of those."""

    tasks: tuple[StagedTask, ...]


MANIFEST_SERIALIZER: VersionedSerializer[Manifest] = VersionedSerializer(
    Manifest, version=1, what="the manifest of a micro-batch of headgate.pulsar's sink"
)


def write_batches(sink: PulsarSink, batches: Iterable[pa.RecordBatch]) -> None:
    """Write all rows of a task, at least once.

    Raises
    ------
    SinkError
        Not all rows were written; some may be.
    """
    writer: MessageWriter | None = None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if writer is None:
                writer = MessageWriter(sink)
            writer.write(writer.router.route(batch))
        if writer is not None:
            writer.flush()
    finally:
        if writer is not None:
            writer.abandon()


def stage_batches(sink: PulsarSink, query: str, epoch: int, task: int, batches: Iterable[pa.RecordBatch]) -> StagedTask:
    """Stage all rows of an attempt of a task, which are durable when this returns.

    Raises
    ------
    SinkError
        A row cannot be written to Pulsar.
    """
    prefix = f"{_path(query, epoch)}/{task}-{uuid.uuid4().hex}-"
    pieces = PieceWriter(staging_of(sink), prefix, ROWS_SCHEMA)
    with MessageWriter(sink) as lookups:
        for batch in batches:
            if batch.num_rows:
                pieces.add(lookups.router.route(batch))
    return StagedTask(task, tuple(piece.rows for piece in pieces.take(epoch)))


def publish_batch(sink: PulsarSink, query: str, epoch: int, staged: Sequence[StagedTask]) -> None:
    """Publish a micro-batch, or what an earlier attempt to commit it began to publish. On the driver.

    Raises
    ------
    SinkError
        Not all rows were written; another attempt writes the rest of them, and none twice.
    StoredStateError
        What was staged is gone or damaged.
    """
    folder = staging_of(sink)
    path, mark = (f"{_path(query, epoch)}/{name}.json" for name in ("manifest", "published"))
    stored = folder.read_bytes(path)
    if stored is None:
        manifest = Manifest(tuple(sorted(staged, key=lambda each: each.task)))
        folder.write(path, MANIFEST_SERIALIZER.serialize(manifest))
    else:
        manifest = MANIFEST_SERIALIZER.deserialize(stored)
    files = [file for each in manifest.tasks for file in each.files]
    if files and folder.read_bytes(mark) is None:
        sequence_id = first_sequence_id(epoch)
        with MessageWriter(sink, name_of(query)) as writer:
            for file in files:
                for batch in folder.read(file):
                    writer.write(batch, sequence_id)
                    sequence_id += batch.num_rows
            writer.flush()
        folder.write(mark, MARK_SERIALIZER.serialize(PublishedMark(epoch)))
    if epoch > 0:
        folder.delete_tree(_path(query, epoch - 1))


def name_of(query: str) -> str:
    """Return the name of a query's producers."""
    return f"headgate-{query}"


def _path(query: str, epoch: int) -> str:
    return f"{folder_of(name_of(query))}/{epoch}"


def staging_of(sink: PulsarSink) -> StagingFolder:
    """Return where micro-batches are staged. Raises `OptionError` if there is no ``checkpointLocation``."""
    return staging_folder({"checkpointLocation": sink.checkpoint_location or ""}, NAME)
