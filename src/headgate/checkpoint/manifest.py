"""The manifest: everything that a completed checkpoint holds, or where it lies; and its bytes.

Never: hold a reference to a file that is not durable when the manifest is written.

Durable: version 4, which added rows in flight of splits; version 3, in which the state of many channels is in one file
(`headgate.checkpoint.stored_channels`), version 2, which added exchanges, keyed state and channel state, and version 1
are read. Golden bytes of all in ``tests/golden``. A first line in which all the rest is checked, then JSON:

    headgate-manifest v=4 run=3 bytes=000000001234 crc32=0badcafe
    {"checkpoint_id":17,"epoch":9,...}

Bytes of others (splits, enumerators' states, operators' items and keyed state, committables) that are a JSON object
are in it as they are, so that a person can read them (``tail -n +2 _metadata | jq .``); others are in it as text in
base64.
"""

from __future__ import annotations

import base64
import itertools
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

import msgspec

from headgate.checkpoint.channel_assignment import ExchangePlan
from headgate.checkpoint.stored_channels import StoredChannels, from_stored_channels, to_stored_channels
from headgate.errors import CorruptStateError, InternalError, UnsupportedVersionError
from headgate.protocol.messages import CheckpointKind
from headgate.protocol.state import (
    ChannelState,
    ChunkState,
    FileState,
    FinishedSplit,
    InFlightRows,
    InlineState,
    KeyedState,
    OperatorState,
    ReaderState,
    SplitState,
    StateHandle,
    SubtaskState,
)
from headgate.protocol.state_schema import StateSchema

VERSION = 4
_READABLE = (1, 2, 3, 4)
HEADER_BYTES = 256
"""The first line is not longer than this."""


Committables = dict[str, tuple[bytes, ...]]
"""What sinks publish once a checkpoint is complete, by their uid."""


class PlannedSource(Protocol):
    """A source of the query that takes or restores a checkpoint."""

    @property
    def name(self) -> str:
        """The format's name."""

    @property
    def fixed(self) -> Mapping[str, object]:
        """The options that may not change, with their values."""


class QueryPlan(Protocol):
    """What checkpoints have to know of the query; the parameters of `Manifest` say what it is."""

    @property
    def sources(self) -> Mapping[str, PlannedSource]:
        """Its sources, by uid."""

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """Its operators' uids, by stage."""

    @property
    def exchanges(self) -> Mapping[str, ExchangePlan]:
        """The exchanges between its stages, by uid."""

    @property
    def signatures(self) -> Mapping[str, str]:
        """What keyed state, and rows on their way by key, are of."""

    @property
    def state_schemas(self) -> Mapping[str, StateSchema]:
        """Which columns keyed state, and rows on their way by key, have, where they may change."""

    @property
    def named(self) -> Collection[str]:
        """The uids that the user chose."""

    @property
    def parallelism(self) -> int:
        """How many subtasks each stage has."""

    @property
    def max_parallelism(self) -> int:
        """How many it may ever have."""

    @property
    def query_id(self) -> str:
        """Names the query across its runs."""

    @property
    def run(self) -> int:
        """Counts its runs."""


class SourceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One source in a checkpoint.

    Parameters
    ----------
    name
        The format's name.
    enumerator
        The enumerator's state, as its ``state_serializer`` wrote it.
    fixed
        The options that may not change, with their values.
    unassigned
        Of the splits that the enumerator has, those with rows in flight or read to their ends, which its own state does
        not say.
    """

    name: str
    enumerator: StateHandle
    fixed: dict[str, object] = {}
    unassigned: tuple[SplitState, ...] = ()


class UncommittedEpoch(msgspec.Struct, frozen=True):
    """A completed epoch that is not known to be committed.

    Parameters
    ----------
    epoch
        Its number.
    committables
        By sink uid, as they were or will be given to the sinks.
    """

    epoch: int
    committables: Committables


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A completed checkpoint.

    Parameters
    ----------
    checkpoint_id
        Counts the checkpoints at a location, across runs and failed ones.
    epoch
        Counts the completed checkpoints at a location, without a gap: the number that sinks see.
    kind
        What it is.
    query_id
        The query it belongs to.
    run
        The run that took it.
    created_ms
        When, in milliseconds since 1970-01-01 UTC.
    parallelism, max_parallelism
        Of the query.
    sources
        By uid.
    stages
        The operators' uids of each stage, in the order of the data.
    subtasks
        By stage, in the order of the subtasks.
    commits
        By sink uid: what is to be committed as this ``epoch`` when this checkpoint is restored, because it may not
        have been.
    uncommitted
        Older epochs that may not be committed either, oldest first: to be committed before it, each under its number.
    exchanges
        By uid, as they were when it was taken.
    signatures
        By the uid of an operator or an exchange: by what it is keyed, and what its state is of, as text. State of
        another signature is not taken on, unless its schema is one that the query takes on.
    state_schemas
        By the uid of an operator or an exchange: which columns that has, where it may change.
    channels
        The rows that its barriers passed. Those of ``subtasks`` are empty: they stand here.
    channels_parallelism
        The parallelism that ``channels`` are numbered by, which a restored query may not have.
    """

    checkpoint_id: int
    epoch: int
    kind: CheckpointKind
    query_id: str
    run: int
    created_ms: int
    parallelism: int
    max_parallelism: int
    sources: dict[str, SourceEntry]
    stages: tuple[tuple[str, ...], ...]
    subtasks: tuple[tuple[SubtaskState, ...], ...]
    commits: Committables = {}
    uncommitted: tuple[UncommittedEpoch, ...] = ()
    exchanges: dict[str, ExchangePlan] = {}
    signatures: dict[str, str] = {}
    state_schemas: dict[str, StateSchema] = {}
    channels: tuple[ChannelState, ...] = ()
    channels_parallelism: int = 0

    @property
    def in_flight(self) -> Iterator[ChannelState | InFlightRows]:
        """All rows in flight: of channels, and of splits."""
        yield from self.channels
        readers = (reader for stage in self.subtasks for state in stage for reader in state.readers.values())
        splits = itertools.chain(
            *(reader.splits for reader in readers), *(entry.unassigned for entry in self.sources.values())
        )
        yield from (split.in_flight for split in splits if split.in_flight is not None)


def serialize(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest."""
    body = msgspec.json.encode(_to_stored(manifest))
    header = f"headgate-manifest v={VERSION} run={manifest.run} bytes={len(body):012d} crc32={zlib.crc32(body):08x}\n"
    return header.encode() + body


def deserialize(data: bytes, path: str) -> Manifest:
    """Return the manifest of bytes that `serialize` made. ``path`` is for errors.

    Raises
    ------
    CorruptStateError
        They are not a manifest, or not all of it, or they were changed.
    UnsupportedVersionError
        Another version wrote them.
    """
    header, _, body = data.partition(b"\n")
    expected = _header(header + b"\n", path)
    found = (len(body), f"{zlib.crc32(body):08x}")
    wanted = (int(expected["bytes"]), expected["crc32"])
    if found != wanted:
        raise CorruptStateError(
            f"The manifest {path} is damaged: its first line promises {wanted[0]} bytes with the CRC-32 {wanted[1]}, "
            f"there are {found[0]} with {found[1]}. Restore the file, or start from an older checkpoint.",
            what="a manifest", path=path, expected=wanted, found=found,
        )  # fmt: skip
    try:
        return _from_stored(_decoder.decode(body))
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptStateError(
            f"The manifest {path} cannot be read: {error}.", what="a manifest", path=path
        ) from error


def run_of(head: bytes, path: str) -> int:
    """Return the run that wrote a manifest, of its first `HEADER_BYTES`; raises like `deserialize`."""
    return int(_header(head, path)["run"])


_HEADER = re.compile(rb"headgate-manifest v=(\d+) run=(\d+) bytes=(\d+) crc32=([0-9a-f]{8})\n")


def _header(head: bytes, path: str) -> dict[str, str]:
    version = re.match(rb"headgate-manifest v=(\d+) ", head)
    if version is not None and int(version[1]) not in _READABLE:
        raise UnsupportedVersionError(
            f"The manifest {path} has version {int(version[1])}, this Headgate reads versions up to {VERSION}. Restart "
            "with the Headgate version that wrote it, or a newer one.",
            what="a manifest", path=path, expected=VERSION, found=int(version[1]),
        )  # fmt: skip
    match = _HEADER.match(head)
    if match is None:
        raise CorruptStateError(
            f"The file {path} is not a manifest of a checkpoint: it begins with {head[:60]!r}.",
            what="a manifest", path=path, found=head[:60],
        )  # fmt: skip
    return dict(zip(("version", "run", "bytes", "crc32"), (group.decode() for group in match.groups())))


# How it is stored: as above, with JSON in the place of bytes.


class _StoredInline(msgspec.Struct, frozen=True, tag="inline"):
    data: msgspec.Raw


_StoredHandle = _StoredInline | FileState


class _StoredRows(msgspec.Struct, frozen=True):
    buffers: int
    rows: int
    size_bytes: int
    handle: _StoredHandle


class _StoredReader(msgspec.Struct, frozen=True, omit_defaults=True):
    splits: dict[str, msgspec.Raw] = {}
    finished: tuple[FinishedSplit, ...] = ()
    # Since version 4.
    in_flight: dict[str, _StoredRows] = {}
    ended: tuple[str, ...] = ()


class _StoredOperator(msgspec.Struct, frozen=True, omit_defaults=True):
    items: tuple[_StoredHandle, ...] = ()
    committables: tuple[msgspec.Raw, ...] = ()


class _StoredChunk(msgspec.Struct, frozen=True):
    id: str
    key_groups: tuple[int, int]
    handle: _StoredHandle


class _StoredSubtask(msgspec.Struct, frozen=True, omit_defaults=True):
    readers: dict[str, _StoredReader] = {}
    operators: dict[str, _StoredOperator] = {}
    input_ended: bool = False
    keyed: dict[str, tuple[_StoredChunk, ...]] = {}


class _StoredChannel(msgspec.Struct, frozen=True, omit_defaults=True):
    exchange: str
    producer: int
    consumer: int
    output: bool
    buffers: int
    rows: int
    size_bytes: int
    handle: _StoredHandle
    relocated: bool = False


class _StoredSource(msgspec.Struct, frozen=True):
    name: str
    enumerator: _StoredHandle
    fixed: dict[str, object]
    # Since version 4.
    unassigned: _StoredReader | msgspec.UnsetType = msgspec.UNSET


class _StoredEpoch(msgspec.Struct, frozen=True):
    epoch: int
    committables: dict[str, tuple[msgspec.Raw, ...]]


class _StoredManifest(msgspec.Struct, frozen=True):
    checkpoint_id: int
    epoch: int
    kind: CheckpointKind
    query_id: str
    run: int
    created_ms: int
    parallelism: int
    max_parallelism: int
    stages: tuple[tuple[str, ...], ...]
    sources: dict[str, _StoredSource]
    commits: dict[str, tuple[msgspec.Raw, ...]]
    uncommitted: tuple[_StoredEpoch, ...]
    subtasks: tuple[tuple[_StoredSubtask, ...], ...]
    # Since version 2.
    exchanges: dict[str, ExchangePlan] = {}
    signatures: dict[str, str] = {}
    channels_parallelism: int = 0
    channels: tuple[_StoredChannel, ...] | msgspec.UnsetType = msgspec.UNSET  # of version 2 only
    state_schemas: dict[str, StateSchema] | msgspec.UnsetType = msgspec.UNSET
    # Since version 3.
    channel_files: tuple[StoredChannels, ...] = ()


_decoder = msgspec.json.Decoder(_StoredManifest)
_check_json = msgspec.json.Decoder(msgspec.Raw).decode


def _to_json(data: bytes) -> msgspec.Raw:
    """Return bytes as JSON: a JSON object as it is, to the byte."""
    if data[:1] == b"{" and data[-1:] == b"}":
        try:
            _check_json(data)
            if not data.isascii():
                data.decode()
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        else:
            return msgspec.Raw(data)
    return msgspec.Raw(b'"' + base64.b64encode(data) + b'"')


def _from_json(raw: msgspec.Raw) -> bytes:
    data = bytes(raw)
    if data[:1] == b"{":
        return data
    if data[:1] != b'"':
        raise ValueError(f"expected a JSON object or text in base64, found {data[:20]!r}")
    return base64.b64decode(data[1:-1], validate=True)


def _to_handle(handle: StateHandle) -> _StoredHandle:
    return _StoredInline(_to_json(handle.data)) if isinstance(handle, InlineState) else handle


def _from_handle(handle: _StoredHandle) -> StateHandle:
    return InlineState(_from_json(handle.data)) if isinstance(handle, _StoredInline) else handle


def _to_committables(by_sink: Committables) -> dict[str, tuple[msgspec.Raw, ...]]:
    return {uid: tuple(map(_to_json, each)) for uid, each in by_sink.items()}


def _from_committables(by_sink: dict[str, tuple[msgspec.Raw, ...]]) -> Committables:
    return {uid: tuple(map(_from_json, each)) for uid, each in by_sink.items()}


def _to_reader(uid: str, reader: ReaderState) -> _StoredReader:
    splits = {split.split_id: _to_json(split.data) for split in reader.splits}
    if len(splits) != len(reader.splits):
        raise InternalError(f"A reader of source {uid!r} holds a split twice, of {len(reader.splits)} splits.")
    in_flight = {split.split_id: _to_rows(split.in_flight) for split in reader.splits if split.in_flight is not None}
    return _StoredReader(
        splits, reader.finished, in_flight, tuple(split.split_id for split in reader.splits if split.ended)
    )


def _from_reader(reader: _StoredReader) -> ReaderState:
    ended = frozenset(reader.ended)
    splits = (
        SplitState(split_id, _from_json(raw), _from_rows(reader.in_flight.get(split_id)), split_id in ended)
        for split_id, raw in reader.splits.items()
    )
    return ReaderState(splits=tuple(splits), finished=reader.finished)


def _to_rows(rows: InFlightRows) -> _StoredRows:
    return _StoredRows(rows.buffers, rows.rows, rows.size_bytes, _to_handle(rows.handle))


def _from_rows(rows: _StoredRows | None) -> InFlightRows | None:
    if rows is None:
        return None
    return InFlightRows(
        handle=_from_handle(rows.handle), buffers=rows.buffers, rows=rows.rows, size_bytes=rows.size_bytes
    )


def _to_chunk(chunk: ChunkState) -> _StoredChunk:
    return _StoredChunk(chunk.chunk_id, (chunk.first_key_group, chunk.last_key_group), _to_handle(chunk.handle))


def _from_chunk(chunk: _StoredChunk) -> ChunkState:
    first, last = chunk.key_groups
    return ChunkState(chunk_id=chunk.id, handle=_from_handle(chunk.handle), first_key_group=first, last_key_group=last)


def _from_channel(state: _StoredChannel) -> ChannelState:
    return ChannelState(
        exchange=state.exchange,
        producer=state.producer,
        consumer=state.consumer,
        output=state.output,
        handle=_from_handle(state.handle),
        buffers=state.buffers,
        rows=state.rows,
        size_bytes=state.size_bytes,
        relocated=state.relocated,
    )


def _to_subtask(state: SubtaskState) -> _StoredSubtask:
    return _StoredSubtask(
        {uid: _to_reader(uid, reader) for uid, reader in state.readers.items()},
        {
            uid: _StoredOperator(tuple(map(_to_handle, each.items)), tuple(map(_to_json, each.committables)))
            for uid, each in state.operators.items()
        },
        state.input_ended,
        {uid: tuple(map(_to_chunk, each.chunks)) for uid, each in state.keyed.items()},
    )


def _from_subtask(state: _StoredSubtask) -> SubtaskState:
    return SubtaskState(
        readers={uid: _from_reader(reader) for uid, reader in state.readers.items()},
        operators={
            uid: OperatorState(
                items=tuple(map(_from_handle, each.items)), committables=tuple(map(_from_json, each.committables))
            )
            for uid, each in state.operators.items()
        },
        keyed={uid: KeyedState(chunks=tuple(map(_from_chunk, each))) for uid, each in state.keyed.items()},
        input_ended=state.input_ended,
    )


def _to_stored(manifest: Manifest) -> _StoredManifest:
    return _StoredManifest(
        checkpoint_id=manifest.checkpoint_id,
        epoch=manifest.epoch,
        kind=manifest.kind,
        query_id=manifest.query_id,
        run=manifest.run,
        created_ms=manifest.created_ms,
        parallelism=manifest.parallelism,
        max_parallelism=manifest.max_parallelism,
        stages=manifest.stages,
        sources={
            uid: _StoredSource(
                entry.name,
                _to_handle(entry.enumerator),
                entry.fixed,
                _to_reader(uid, ReaderState(splits=entry.unassigned)) if entry.unassigned else msgspec.UNSET,
            )
            for uid, entry in manifest.sources.items()
        },
        commits=_to_committables(manifest.commits),
        uncommitted=tuple(
            _StoredEpoch(each.epoch, _to_committables(each.committables)) for each in manifest.uncommitted
        ),
        subtasks=tuple(tuple(map(_to_subtask, stage)) for stage in manifest.subtasks),
        exchanges=manifest.exchanges,
        signatures=manifest.signatures,
        state_schemas=manifest.state_schemas or msgspec.UNSET,
        channels_parallelism=manifest.channels_parallelism,
        channel_files=to_stored_channels(manifest.channels),
    )


def _from_stored(stored: _StoredManifest) -> Manifest:
    return Manifest(
        checkpoint_id=stored.checkpoint_id,
        epoch=stored.epoch,
        kind=stored.kind,
        query_id=stored.query_id,
        run=stored.run,
        created_ms=stored.created_ms,
        parallelism=stored.parallelism,
        max_parallelism=stored.max_parallelism,
        stages=stored.stages,
        sources={
            uid: SourceEntry(
                name=entry.name,
                enumerator=_from_handle(entry.enumerator),
                fixed=entry.fixed,
                unassigned=() if entry.unassigned is msgspec.UNSET else _from_reader(entry.unassigned).splits,
            )
            for uid, entry in stored.sources.items()
        },
        commits=_from_committables(stored.commits),
        uncommitted=tuple(
            UncommittedEpoch(each.epoch, _from_committables(each.committables)) for each in stored.uncommitted
        ),
        subtasks=tuple(tuple(map(_from_subtask, stage)) for stage in stored.subtasks),
        exchanges=stored.exchanges,
        signatures=stored.signatures,
        state_schemas={} if isinstance(stored.state_schemas, msgspec.UnsetType) else stored.state_schemas,
        channels=(
            from_stored_channels(stored.channel_files)
            if isinstance(stored.channels, msgspec.UnsetType)
            else tuple(map(_from_channel, stored.channels))
        ),
        channels_parallelism=stored.channels_parallelism,
    )
