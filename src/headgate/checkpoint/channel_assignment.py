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

P and P' are the parallelism of the checkpoint and of the query. Of one old pair (i, j) input comes before output. With
``on_downstream`` false the output state of (i, j) is given to the producer i % P' instead, for the same consumers:
`RecoveredChannel.channel` is then the consumer, and ``filtered`` says whether that one filters.

A broadcast that has fewer consumers than before leaves out the copies of those that are gone: each consumer had its own
of every row.

Follows FLIP-547, section 4.2; Flink's StateAssignmentOperation and SubtaskStateMapper; trap 31; lessons FLINK-31963,
-35351, -38483.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headgate.errors import InternalError
from headgate.protocol.key_groups import key_group_range
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
    assigned: dict[SubtaskId, list[RecoveredChannel]] = {}
    for state in sorted(channels, key=lambda each: (each.exchange, each.producer, each.consumer, each.output)):
        exchange = exchanges[state.exchange]
        producer, filtered = state.producer, False
        consumers: Sequence[int] = (state.consumer,)
        if old_parallelism != parallelism:
            producer, filtered = state.producer % parallelism, exchange.kind in ("hash", "custom")
            consumers = _consumers(exchange, state.consumer, old_parallelism, parallelism, max_parallelism)
        for consumer in consumers:
            if state.output and not on_downstream:
                owner, channel = SubtaskId(exchange.producer_stage, producer), consumer
            else:
                owner, channel = SubtaskId(exchange.consumer_stage, consumer), producer
            assigned.setdefault(owner, []).append(RecoveredChannel(state=state, channel=channel, filtered=filtered))
    return {subtask: tuple(recovered) for subtask, recovered in assigned.items()}


def _consumers(exchange: ExchangePlan, old: int, before: int, now: int, max_parallelism: int) -> Sequence[int]:
    """Return who takes on, of ``now`` subtasks, what was on its way to subtask ``old`` of ``before``."""
    match exchange.kind:
        case "hash":
            keys = key_group_range(old, before, max_parallelism)
            return [each for each in range(now) if key_group_range(each, now, max_parallelism).overlaps(keys)]
        case "rebalance":
            return (old % min(exchange.targets or now, now),)
        case "broadcast":
            return [each for each in range(now) if each % before == old]
        case "custom":
            return range(now)
    raise InternalError(f"An exchange of the kind {exchange.kind!r} has channel state, which it never may.")
