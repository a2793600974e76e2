"""The snapshots of one execution that are under way, from the barrier until all of their parts are safe.

Never: block; decide when a snapshot is taken (`headgate.task.task_loop` does).

A snapshot has parts: positions of splits, operators' state, keyed state, and what its barrier passed at the gate and in
each exchange. They become safe on other threads, in any order; what comes of it is done on the subtask's.

Follows FLIP-547, section 2.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from headgate.futures import gathered, mapped
from headgate.operators.exchange import Exchange
from headgate.protocol.channels import Barrier, Buffer, ChannelId
from headgate.protocol.state import ChannelState, KeyedState, OperatorState, SplitState
from headgate.runtime.execution_context import ExecutionContext
from headgate.runtime.mailbox import Mail
from headgate.runtime.snapshot_parts import INLINE_BYTES, SnapshotParts, StoredRows, store_channels
from headgate.state.chunks import KeyedChunk

_SPLITS, _OPERATORS, _KEYED, _GATE = "/splits", "/operators", "/keyed", "/gate"
"""Parts of a snapshot; the others are called after their exchange."""


class SafeSnapshot(msgspec.Struct, frozen=True):
    """A snapshot of which all parts are safe.

    Parameters
    ----------
    splits, operators, keyed, channels
        Its parts.
    looked_ms
        When positions had been reported last when it was taken.
    """

    checkpoint_id: int
    splits: dict[str, tuple[SplitState, ...]]
    operators: dict[str, OperatorState]
    keyed: dict[str, KeyedState]
    channels: tuple[ChannelState, ...]
    looked_ms: int | None


class Snapshots:
    """The snapshots of one execution.

    Parameters
    ----------
    context
        The execution's.
    has_gate, has_keyed_state
        Which parts there are beside splits, operators, and those of the exchanges that are produced.
    on_safe
        Takes a snapshot when it is safe, or the number of one that failed, and why; on the subtask's thread.
    """

    def __init__(
        self,
        context: ExecutionContext,
        *,
        has_gate: bool,
        has_keyed_state: bool,
        on_safe: Callable[[int, SafeSnapshot | BaseException], None],
    ) -> None:
        self._context = context
        self._outputs = tuple(context.stage.outputs)
        optional = (_GATE,) * has_gate + (_KEYED,) * has_keyed_state
        self._names = {_SPLITS, _OPERATORS, *self._outputs, *optional}
        rows_in_flight = has_gate + len(self._outputs) + len(context.stage.sources)
        self.inline_bytes = INLINE_BYTES // max(1, rows_in_flight)
        """How much of the rows in flight of each part may be in the manifest, in bytes."""
        self._on_safe = on_safe
        self._parts: dict[int, SnapshotParts] = {}
        self.barriers: dict[int, Barrier] = {}
        """The barriers of the snapshots that are due, by checkpoint."""

    def give_up(self, checkpoint_id: int) -> None:
        """Forget a checkpoint that will not complete."""
        self._parts.pop(checkpoint_id, None)
        self.barriers.pop(checkpoint_id, None)

    def take(
        self,
        checkpoint_id: int,
        splits: Mapping[str, Future[tuple[SplitState, ...]]],
        looked_ms: int | None,
        operators: Future[dict[str, OperatorState]],
        keyed: Mapping[str, Sequence[KeyedChunk]],
    ) -> Barrier | None:
        """Begin to make a snapshot safe, and return the barrier that goes to the exchanges."""
        barrier = self.barriers.pop(checkpoint_id, None)
        parts = self._parts_of(checkpoint_id)
        found = gathered([*splits.values()])
        parts.add(_SPLITS, mapped(found, lambda states: (dict(zip(splits, states)), looked_ms)))
        parts.add(_OPERATORS, operators)
        if keyed:
            lost = b"" if barrier is None else barrier.lost
            stored = [self._context.uploader.store_keyed(uid, chunks, lost) for uid, chunks in keyed.items()]
            parts.add(_KEYED, mapped(gathered(stored), lambda states: dict(zip(keyed, states))))
        return barrier

    def store_input(
        self, checkpoint_id: int, channels: Mapping[ChannelId, Sequence[StoredRows]], relocated: frozenset[str]
    ) -> None:
        """Make safe what a barrier passed at the gate; ``relocated`` as in `ChannelState`, by exchange."""
        self._store(_GATE, "input", checkpoint_id, self._context.stage.inputs, channels, relocated, output=False)

    def store_output(self, uid: str, checkpoint_id: int, channels: Mapping[ChannelId, Sequence[Buffer]]) -> None:
        """Make safe what a barrier passed in an exchange that is produced."""
        rows = {
            channel: [StoredRows(buffer.num_rows, partial(_rows_of, buffer)) for buffer in held]
            for channel, held in channels.items()
        }
        name = f"output-{self._outputs.index(uid)}"
        self._store(uid, name, checkpoint_id, self._context.stage.outputs, rows, frozenset(), output=True)

    def _store(
        self,
        part: str,
        name: str,
        checkpoint_id: int,
        exchanges: Mapping[str, Exchange],
        channels: Mapping[ChannelId, Sequence[StoredRows]],
        relocated: frozenset[str],
        *,
        output: bool,
    ) -> None:
        context = self._context
        schemas = {uid: exchange.schema for uid, exchange in exchanges.items()}
        stored = store_channels(
            context.uploader,
            checkpoint_id,
            self.file_name(name),
            schemas,
            channels,
            relocated,
            output=output,
            inline_bytes=self.inline_bytes,
        )
        self._parts_of(checkpoint_id).add(part, stored)

    def file_name(self, part: str) -> str:
        """Return the name of the file of a part's rows in flight."""
        return f"{self._context.deployed.stage}-{self._context.number}-{part}"

    def _parts_of(self, checkpoint_id: int) -> SnapshotParts:
        parts = self._parts.get(checkpoint_id)
        if parts is None:

            def done(results: dict[str, Any] | None, error: BaseException | None) -> None:
                self._context.mailbox.post(Mail(lambda: self._all_done(checkpoint_id, results, error)))

            parts = self._parts[checkpoint_id] = SnapshotParts(self._names, done)
        return parts

    def _all_done(self, checkpoint_id: int, results: dict[str, Any] | None, error: BaseException | None) -> None:
        if self._parts.pop(checkpoint_id, None) is None:
            return
        if results is None:
            assert error is not None
            self._on_safe(checkpoint_id, error)
            return
        splits, looked_ms = results[_SPLITS]
        channels = [state for uid in (_GATE, *self._outputs) for state in results.get(uid, ())]
        made = SafeSnapshot(
            checkpoint_id, splits, results[_OPERATORS], results.get(_KEYED, {}), tuple(channels), looked_ms
        )
        self._on_safe(checkpoint_id, made)


def _rows_of(buffer: Buffer) -> pa.RecordBatch:
    return buffer.rows
