"""Where each row is in a complete checkpoint: published, about to be, in flight, held by a function, or not read yet.

Checked: invariant 2: exactly one of them.

Never: look into anything but what is durable.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from headgate.checkpoint.channel_bytes import read_channel, read_split
from headgate.checkpoint.manifest import Manifest
from headgate.protocol.channels import ChannelId
from headgate.simulation.durable import Row, decode_committable
from headgate.simulation.scripted_functions import HELD, Held
from headgate.simulation.world import World

Split = tuple[str, str]
"""The uid of its source, and its id."""


def check_rows(cluster: World, manifest: Manifest, positions: dict[Split, int], begins: dict[Split, int]) -> None:
    """Check that all rows that were read are there, once.

    Parameters
    ----------
    cluster
        Whose.
    manifest
        The checkpoint.
    positions
        Up to where splits are read.
    begins
        From where on, where that is not the first row.
    """
    about, table = f"checkpoint {manifest.checkpoint_id}", cluster.table
    pending: dict[Split, list[int]] = {}
    for row in _unpublished(cluster, manifest):
        assert row not in table.rows, f"{about} holds {row}, which is published: it would be published twice"
        pending.setdefault(row[:2], []).append(row[2])
    for split, position in positions.items():
        left, published = pending.pop(split, []), table.offsets.get(split, set())
        there = {*left, *published}
        assert len(there) == len(left) + len(published), f"{about} holds rows of {split[1]} twice: {sorted(left)}"
        first = min(there, default=position)
        if not cluster.topics[split[0]].script.latest:
            first = 0
        missing = position - min(first, begins.get(split, first)) - len(there)
        assert max(there, default=-1) < position and not missing, (
            f"{about}: {missing} rows of {split[1]} are missing, which is read on from {position}: {sorted(there)}"
        )
    assert not pending, f"{about} holds rows of {sorted(pending)}, which were never read"


def _unpublished(cluster: World, manifest: Manifest) -> Iterator[Row]:
    """Yield all rows that are in a checkpoint and not published."""
    names: set[str] = set()
    for by_sink in (manifest.commits, *(each.committables for each in manifest.uncommitted)):
        for data in (data for committables in by_sink.values() for data in committables):
            committable = decode_committable(data)
            if committable.name not in cluster.table.published and committable.name not in names:
                names.add(committable.name)
                yield from committable.rows
    kinds = {uid: exchange.exchange_kind for uid, exchange in cluster.definition.graph.exchanges.items()}
    files = cluster.storage.files
    for state in manifest.channels:
        if kinds[state.exchange] != "broadcast" or state.consumer == 0:  # only that one lets rows through
            channel = ChannelId(state.exchange, state.producer, state.consumer)
            for batch in read_channel(pa.BufferReader(files.written(state.handle)), channel, output=state.output):
                for split_id, offset in zip(batch.column(1).to_pylist(), batch.column(2).to_pylist()):
                    yield cluster.uid_of[split_id], split_id, offset
    readers = (each for stage in manifest.subtasks for state in stage for each in state.readers.items())
    held = [(uid, split) for uid, reader in readers for split in reader.splits]
    held += [(uid, split) for uid, entry in manifest.sources.items() for split in entry.unassigned]
    for uid, split in held:
        if split.in_flight is not None:
            data = pa.BufferReader(files.written(split.in_flight.handle))
            for batch in read_split(data, uid, split.split_id):
                yield from ((uid, split.split_id, offset) for offset in batch.column(2).to_pylist())
    for subtask in (each for stage in manifest.subtasks for each in stage if HELD in each.keyed):
        for chunk in subtask.keyed[HELD].chunks:
            for row in Held.state.decode(files.written(chunk.handle))[0]:
                yield cluster.uid_of[row.split_id], row.split_id, row.offset
