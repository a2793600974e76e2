"""Rows that travel to the driver inside the checkpoint, for the sinks ``memory`` and ``console``.

Never: carry more than the sink asks for: everything here is stored in manifests.

Durable: version 1, a line of JSON before Arrow's IPC stream.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from concurrent.futures import Future

import msgspec
import pyarrow as pa

from headgate.errors import CorruptStateError, UnsupportedVersionError
from headgate.futures import done_with
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state import OperatorState
from headgate.sink import SinkWriter

_VERSION = 1


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """What precedes the rows."""

    version: int = _VERSION
    writer: str
    number: int
    total: int


_heads = msgspec.json.Decoder(_Head)


class CarriedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one writer and checkpoint: a committable.

    Parameters
    ----------
    writer
        Names one writer: no other ever has that name.
    number
        Counts the committables of that writer, from 1.
    total
        How many rows there were; more than are carried if those were too many.
    table
        The rows.
    """

    writer: str
    number: int
    total: int
    table: pa.Table

    def encode(self) -> bytes:
        """Return the committable."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.table.schema) as stream:
            stream.write_table(self.table)
        head = msgspec.json.encode(_Head(writer=self.writer, number=self.number, total=self.total))
        return head + b"\n" + bytes(sink.getvalue())


def decode_rows(committable: bytes) -> CarriedRows:
    """Return what a committable holds.

    Raises
    ------
    CorruptStateError, UnsupportedVersionError
        It is not ours, or of another version.
    """
    line, _, data = committable.partition(b"\n")
    try:
        head = _heads.decode(line)
        table = pa.ipc.open_stream(data).read_all() if head.version == _VERSION else None
    except (msgspec.DecodeError, pa.ArrowException, OSError) as error:
        raise CorruptStateError(
            f"A checkpoint holds a committable of a memory or console sink that cannot be read: {error}.",
            what="committable of a memory or console sink", expected="a line of JSON and an Arrow stream",
            found=committable[:80],
        ) from error  # fmt: skip
    if table is None:
        raise UnsupportedVersionError(
            f"A checkpoint holds a committable of a memory or console sink of version {head.version}; this Headgate "
            f"knows {_VERSION}.",
            what="committable of a memory or console sink", expected=_VERSION, found=head.version,
        )  # fmt: skip
    return CarriedRows(writer=head.writer, number=head.number, total=head.total, table=table)


class CarryingWriter(SinkWriter):
    """Carries rows to the committer.

    Parameters
    ----------
    context
        Who writes.
    schema
        The rows' columns.
    most_rows
        How many of a checkpoint's rows are carried; None: all.
    always
        Whether it is carried, too, that there were none.
    """

    def __init__(
        self, context: OperatorContext, schema: pa.Schema, most_rows: int | None, *, always: bool = False
    ) -> None:
        self._name = f"{context.execution_name}-{secrets.token_hex(4)}"
        self._schema = schema
        self._most_rows = most_rows
        self._always = always
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self._total = 0
        self._count = 0
        self._carried: dict[int, bytes] = {}  # by checkpoint

    def write(self, batch: pa.RecordBatch) -> None:
        """See `SinkWriter.write`."""
        self._total += batch.num_rows
        wanted = batch if self._most_rows is None else batch.slice(0, self._most_rows - self._held_rows)
        if wanted.num_rows:
            self._held.append(wanted)
            self._held_rows += wanted.num_rows

    def discard_rows(self) -> None:
        """See `SinkWriter.discard_rows`."""
        self._held, self._held_rows, self._total = [], 0, 0

    def prepare_commit(self, checkpoint_id: int, *, final: bool) -> Future[OperatorState]:
        """See `SinkWriter.prepare_commit`."""
        if self._total or self._always:
            self._count += 1
            table = pa.Table.from_batches(self._held, self._schema)
            rows = CarriedRows(writer=self._name, number=self._count, total=self._total, table=table)
            self._carried[checkpoint_id] = rows.encode()
            self.discard_rows()
        return done_with(OperatorState(committables=tuple(self._carried.values())))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """See `SinkWriter.notify_checkpoint_complete`."""
        self._carried = {each: data for each, data in self._carried.items() if each > checkpoint_id}


class CommittedNumbers:
    """Knows what was committed in this process: the highest number of each writer, whose checkpoints end in order."""

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}

    def take_new(self, committables: Iterable[bytes]) -> list[CarriedRows]:
        """Return what was not taken before, in the order of each writer, and take it."""
        rows = sorted(map(decode_rows, committables), key=lambda each: (each.writer, each.number))
        new = []
        for each in rows:
            if each.number > self._highest.get(each.writer, 0):
                self._highest[each.writer] = each.number
                new.append(each)
        return new
