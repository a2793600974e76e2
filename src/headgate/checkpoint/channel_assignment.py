"""Decides which subtask of a restored query takes on which channel state: from metadata only (FLIP-547, 4.2).

Never: read a buffer. Where a buffer ends up, by subtask and channel, is the same whether output is recovered downstream
or upstream.

    exchange    state of the old channel (i, j) goes to                           into the channel of producer
    ----------  ----------------------------------------------------------------  ---------------------------
    any         at unchanged parallelism: j, not filtered                         i
    hash        every subtask whose key groups overlap those of old j, filtered   i % P'
    rebalance   j % min(targets, P'), not filtered                                i % P'
    broadcast   every k with k % P == j, not filtered                             i % P'
    custom      every subtask, filtered                                           i % P'
    forward     has none

Of one old pair (i, j) input comes before output. With ``on_downstream`` false the output state of (i, j) is given to the
producer i % P' instead, for the same consumers: `RecoveredChannel.channel` is then the consumer.

Follows FLIP-547, section 4.2; Flink's StateAssignmentOperation and SubtaskStateMapper; trap 31; lessons FLINK-31963,
-35351, -38483.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headgate.protocol.messages import SubtaskId
from headgate.protocol.state import ChannelState, RecoveredChannel


class ExchangePlan(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange of the query.

    Parameters
    ----------
    kind
        ``hash``, ``rebalance``, ``broadcast``, ``custom`` or ``forward``: `headgate.operators.exchange`.
    producer_stage, consumer_stage
        The stages that it connects.
    targets
        With ``rebalance``: how many subtasks get rows at most; None: all.
    """

    kind: str
    producer_stage: int
    consumer_stage: int
    targets: int | None = None


def assign_channels(
    channels: Sequence[ChannelState],
    exchanges: Mapping[str, ExchangePlan],
    *,
    old_parallelism: int,
    parallelism: int,
    max_parallelism: int,
    on_downstream: bool,
) -> dict[SubtaskId, tuple[RecoveredChannel, ...]]:
    """Return what each subtask takes on, in the order in which it does.

    Parameters
    ----------
    channels
        All that a checkpoint holds.
    exchanges
        The query's, by uid.
    old_parallelism, parallelism, max_parallelism
        Of the checkpoint, of the query, and the most there may be.
    on_downstream
        ``recover-output-on-downstream``.
    """
    raise NotImplementedError
