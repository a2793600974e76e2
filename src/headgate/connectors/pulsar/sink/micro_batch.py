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

A user may rewind a query, by deleting Spark's files of its last batches. A batch that was published under the same
number is then another one, with other rows, and nothing of it would be written: neither by the manifest nor by brokers,
which know its sequence ids. That is an error.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa

from headgate.connectors.pulsar.client import NAME
from headgate.connectors.pulsar.sink.options import PulsarSink
from headgate.connectors.pulsar.sink.producer import MessageWriter
from headgate.connectors.pulsar.sink.publisher import MARK_SERIALIZER, PublishedMark, first_sequence_id
from headgate.connectors.pulsar.sink.rows import ROWS_SCHEMA
from headgate.errors import SinkError
from headgate.sink.staging import InlineRows, PieceWriter, RowsFile, StagingFolder, folder_of, staging_folder
from headgate.source.serialization import VersionedSerializer


class StagedTask(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one attempt of a task staged.

    Parameters
    ----------
    task
        The task's number in its batch.
    files
        In the order of their rows.
    topics
        The partitions that the rows go to.
    """

    task: int
    files: tuple[InlineRows | RowsFile, ...]
    topics: tuple[str, ...] = ()


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a micro-batch publishes.

    Parameters
    ----------
    tasks
        What its tasks staged, in the order of those.
    offsets_crc32
        Of the file in which Spark has noted what the batch reads: a replay goes by the same. None: it is not known.
    """

    tasks: tuple[StagedTask, ...]
    offsets_crc32: int | None = None


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
    topics: set[str] = set()
    with MessageWriter(sink) as lookups:
        for batch in batches:
            if batch.num_rows:
                rows = lookups.router.route(batch)
                topics.update(rows.column("topic").unique().to_pylist())
                pieces.add(rows)
    return StagedTask(task, tuple(piece.rows for piece in pieces.take(epoch)), tuple(sorted(topics)))


def publish_batch(sink: PulsarSink, query: str, epoch: int, staged: Sequence[StagedTask]) -> None:
    """Publish a micro-batch, or what an earlier attempt to commit it began to publish. On the driver.

    Raises
    ------
    SinkError
        Not all rows were written; another attempt writes the rest of them, and none twice. Or none will be: the query
        was rewound.
    StoredStateError
        What was staged is gone or damaged.
    """
    folder = staging_of(sink)
    path, mark = (f"{_path(query, epoch)}/{name}.json" for name in ("manifest", "published"))
    stored, offsets = folder.read_bytes(path), folder.read_bytes(f"offsets/{epoch}")
    manifest = Manifest(
        tuple(sorted(staged, key=lambda each: each.task)), None if offsets is None else zlib.crc32(offsets)
    )
    if stored is not None:
        now_crc32, manifest = manifest.offsets_crc32, MANIFEST_SERIALIZER.deserialize(stored)
        if None not in (now_crc32, manifest.offsets_crc32) and now_crc32 != manifest.offsets_crc32:
            raise _rewound(epoch)
    files = [file for each in manifest.tasks for file in each.files]
    if files and (stored is None or folder.read_bytes(mark) is None):
        sequence_id = first_sequence_id(epoch)
        with MessageWriter(sink, name_of(query)) as writer:
            if stored is None:  # so nothing of this batch was sent
                topics = sorted({topic for each in manifest.tasks for topic in each.topics})
                if any(writer.last_sequence_id(topic) >= sequence_id for topic in topics):
                    raise _rewound(epoch)
                folder.write(path, MANIFEST_SERIALIZER.serialize(manifest))
            for file in files:
                for batch in folder.read(file):
                    writer.write(batch, sequence_id)
                    sequence_id += batch.num_rows
            writer.flush()
        folder.write(mark, MARK_SERIALIZER.serialize(PublishedMark(epoch)))
    elif stored is None:
        folder.write(path, MANIFEST_SERIALIZER.serialize(manifest))
    if epoch > 0:
        folder.delete_tree(_path(query, epoch - 1))


def _rewound(epoch: int) -> SinkError:
    return SinkError(
        f"{NAME}: the query published a micro-batch {epoch} before, which was another one: the checkpoint was rewound, "
        "or restored from an older copy. With guarantee exactly-once rows under its number would be taken for "
        "repetitions, and dropped. Start a new query, with a new checkpointLocation, where it is to begin; or let this "
        "one pass its old batches with guarantee at-least-once.",
        sink=NAME, epoch=epoch,
    )  # fmt: skip


def name_of(query: str) -> str:
    """Return the name of a query's producers."""
    return f"headgate-{query}"


def _path(query: str, epoch: int) -> str:
    return f"{folder_of(name_of(query))}/{epoch}"


def staging_of(sink: PulsarSink) -> StagingFolder:
    """Return where micro-batches are staged. Raises `OptionError` if there is no ``checkpointLocation``."""
    return staging_folder({"checkpointLocation": sink.checkpoint_location or ""}, NAME)
