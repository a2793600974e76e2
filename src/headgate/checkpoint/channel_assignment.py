"""Decides which subtask of a restored query takes on which channel state: from metadata only (FLIP-547, 4.2).

Never: read a buffer. Which subtask a buffer ends up in is the same whether output is recovered downstream or upstream.

    exchange    state of the old channel (i, j) goes to
    ----------  ----------------------------------------------------------------
    any         at unchanged parallelism: j, not filtered
    hash        every subtask whose key groups overlap those of old j, filtered
    rebalance   j % min(targets, P'), not filtered
    broadcast   every k with k % P == j, not filtered
    custom      every subtask, filtered
    forward     has none

P and P' are the parallelism of the checkpoint and of the query. It lands in one of two ways:

- *In its place*: the channel of producer i, of one old pair (i, j) input before output. What producer i sends next
  comes through the same channel, so that rows of a key stay in their order by themselves.
- *Relocated*, if the parallelism changed, if sources reassign splits on recovery, or if the checkpoint holds rows that
  were relocated before and not processed since: then the split that a row is of, or the key that an operator sent it
  for, may be with another producer now. All
  of the exchange lands in the channel of producer 0 (FLIP-547, 4.5.3), input before output, and the consumer reads
  nothing that producers send before it is processed (`input_gate`). So what a later checkpoint stores of
  it meanwhile is in that one channel, in its order, and older than all that producers hold as output.

With ``on_downstream`` false the output state of (i, j) is given to the producer i % P' instead, for the same consumers,
and comes through that one's channel: `RecoveredChannel.channel` is then the consumer, and ``filtered`` says whether
that one filters.

A broadcast that has fewer consumers than before leaves out the copies of those that are gone: each consumer had its own
of every row.

Time and space are those of the result, of which what is sent to the consumers of one channel is the same object.

Follows FLIP-547, section 4.2; Flink's StateAssignmentOperation and SubtaskStateMapper; FLINK-31963, -35351, -38483.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

import msgspec

from headgate.errors import InternalError
from headgate.protocol.key_groups import key_group_range, subtask_of
from headgate.protocol.messages import SubtaskId
from headgate.protocol.state import ChannelState, RecoveredChannel

_ByConsumer = dict[int, tuple[list[ChannelState], list[ChannelState]]]
"""The state of an exchange by its consumer, input and output."""
_BY_PAIR, _BY_PRODUCER = attrgetter("producer", "output"), attrgetter("producer")


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


def relocated_exchanges(
    channels: Sequence[ChannelState], *, old_parallelism: int, parallelism: int, moving: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Return the exchanges whose channel state is relocated.

    Parameters
    ----------
    channels
        All that a checkpoint holds.
    old_parallelism, parallelism
        Of the checkpoint, and of the query.
    moving
        The exchanges whose rows may come from another producer after any restart.
    """
    if old_parallelism != parallelism:
        return frozenset({each.exchange for each in channels})
    return frozenset({each.exchange for each in channels if each.relocated or each.exchange in moving})


def assign_channels(
    channels: Sequence[ChannelState],
    exchanges: Mapping[str, ExchangePlan],
    *,
    old_parallelism: int,
    parallelism: int,
    max_parallelism: int,
    on_downstream: bool,
    relocated: Collection[str],
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
    relocated
        What `relocated_exchanges` returned for these channels.
    """
    stored: dict[str, _ByConsumer] = defaultdict(lambda: defaultdict(lambda: ([], [])))
    for state in channels:
        stored[state.exchange][state.consumer][state.output].append(state)
    assigned: dict[SubtaskId, list[RecoveredChannel]] = {}

    def assign(stage: int, subtask: int, recovered: Iterable[RecoveredChannel]) -> None:
        assigned.setdefault(SubtaskId(stage, subtask), []).extend(recovered)

    for uid, by_consumer in sorted(stored.items()):
        plan, is_relocated = exchanges[uid], uid in relocated
        filtered = old_parallelism != parallelism and plan.kind in ("hash", "custom")
        for old, taken in _in_order(by_consumer, is_relocated=is_relocated):
            consumers: Sequence[int] = (old,)
            if old_parallelism != parallelism:
                consumers = _consumers(plan, old, old_parallelism, parallelism, max_parallelism)
            if not on_downstream:
                for each in taken:
                    if each.output:
                        upstream = [RecoveredChannel(state=each, channel=k, filtered=filtered) for k in consumers]
                        assign(plan.producer_stage, each.producer % parallelism, upstream)
                taken = [each for each in taken if not each.output]
            downstream = [
                RecoveredChannel(state=each, channel=0 if is_relocated else each.producer, filtered=filtered)
                for each in taken
            ]
            for consumer in consumers if downstream else ():
                assign(plan.consumer_stage, consumer, downstream)
    return {subtask: tuple(recovered) for subtask, recovered in assigned.items() if recovered}


def _in_order(by_consumer: _ByConsumer, *, is_relocated: bool) -> Iterator[tuple[int, list[ChannelState]]]:
    """Yield the state of an exchange by consumer: in its place, input before output by pair; relocated, all of it."""
    ordered = sorted(by_consumer.items())
    if not is_relocated:
        for consumer, (inputs, outputs) in ordered:
            yield consumer, sorted([*inputs, *outputs], key=_BY_PAIR)
        return
    for side in (0, 1):
        for consumer, sides in ordered:
            yield consumer, sorted(sides[side], key=_BY_PRODUCER)


def _consumers(exchange: ExchangePlan, old: int, before: int, now: int, max_parallelism: int) -> Sequence[int]:
    """Return who takes on, of ``now`` subtasks, what was on its way to subtask ``old`` of ``before``."""
    match exchange.kind:
        case "hash":
            keys = key_group_range(old, before, max_parallelism)
            return range(subtask_of(keys.first, now, max_parallelism), subtask_of(keys.last, now, max_parallelism) + 1)
        case "rebalance":
            return (old % min(exchange.targets or now, now),)
        case "broadcast":
            return range(old, now, before)
        case "custom":
            return range(now)
    raise InternalError(f"An exchange of the kind {exchange.kind!r} has channel state, which it never may.")
