"""What a subtask keeps in memory: rows in queues within their bounds, recovered rows within their share, few parts.

Checked: invariant 7, for buffers and snapshots under way, and that a queued buffer is no small slice of a large batch,
all of which it would keep. Not checked: what of a message stays with the columns that were read from it.

Never: decide what may be kept: the bounds are production's.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from headgate.protocol.channels import Buffer
from headgate.runtime.execution import Execution
from headgate.runtime.output_exchange import MAX_QUEUED_BUFFERS

_MOST_SNAPSHOTS = 3
"""Under way at a time: an older one ends when the next begins, or is given up."""
_ROUNDING_BYTES = 32
"""What a few rows take more by themselves than as a part of many."""


def check_memory(execution: Execution, recovery_bytes: int) -> None:
    """Check what an execution keeps; ``recovery_bytes``: how much of what is recovered may wait in memory."""
    # Before a barrier all that an aligned channel holds is processed: the checkpoint stores what becomes of it.
    is_bounded = all(each.supports_unaligned for each in execution.context.stage.inputs.values())
    for uid, output in execution._outputs.items():
        partition, consumers = output._partition, len(output._links)
        partition.check()
        most = (MAX_QUEUED_BUFFERS + 2) * consumers  # a slice more for each when the room is gone, and the barrier's
        recovers = bool(output._without_credit)  # until all have granted credit it holds what it recovers
        assert not is_bounded or recovers or partition.queued_buffers <= most, (
            f"memory: {partition.queued_buffers} buffers wait in {uid}, which has room for {most}"
        )
        for queue in partition._queues.values():
            _check_pinned(uid, queue._elements)
    inputs = execution._gate
    if inputs is not None:
        inputs._gate.check()
        for channel in inputs._gate._channels.values():
            for held in (channel.sent, channel.recovered):  # the first may be the rest of what is being processed
                _check_pinned(channel.exchange.uid, islice(held, 1, None))
        waiting = [size_bytes for held in inputs._in_memory.values() for _, size_bytes in held]
        most = max(recovery_bytes, *waiting, 0)  # one buffer is always let through
        assert sum(waiting) <= inputs._pool.used_bytes <= most, (
            f"memory: recovered buffers take {inputs._pool.used_bytes} bytes, of which {sum(waiting)} wait, of {most}"
        )
    assert execution._snapshots is not None
    parts = sorted(execution._snapshots._parts)
    assert len(parts) <= _MOST_SNAPSHOTS, f"memory: the snapshots {parts} are under way"


def _check_pinned(exchange: str, elements: Iterable[Any]) -> None:
    for batch in (each.rows for each in elements if isinstance(each, Buffer)):
        kept = batch.get_total_buffer_size()
        assert kept <= 2 * batch.nbytes + _ROUNDING_BYTES, (
            f"memory: a buffer of {exchange} with {batch.nbytes} bytes keeps {kept} bytes of what it is a slice of"
        )
