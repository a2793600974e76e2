"""Decides a stage's watermark from those of what feeds it, sources or exchanges: their minimum, without the idle ones.

Never: read a clock or look at a row. Nothing of it is stored.

Each source has one watermark in a subtask, made where the source is read, also if its event times are found after an
operator (`headgate.operators.with_watermark`); an exchange has that of its slowest producer. An input that nothing was
heard of holds the stage's. The final watermark passes no input that has it not, idle or not: what fired by it would
take no row of one that is heard of again. So the stage is idle when all inputs that are not at their end are.

An input without event time, a source that has no watermark in a query in which another has one, is waited for only when
its end is: it holds no watermark but the final one. A stage with nothing else to wait for is idle.

An exchange that broadcasts its watermark does not stay idle alone, since somewhere a source is not: it is waited for
while another input is not idle, or has ended where it is broadcast.

Follows FLIP-27, "Per Split Event Time".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headgate.source.watermark import MAX_WATERMARK_MS


class WatermarkFlow:
    """The watermarks of one subtask.

    Parameters
    ----------
    inputs
        The uids of its sources, or of the exchanges that it consumes.
    broadcast
        Those of them of which `headgate.graph.stage_graph.StageGraph.is_broadcast` holds.
    timeless
        Those without event time, if there are others: until one is heard of, nobody waits for its watermark.
    """

    def __init__(self, inputs: Iterable[str], *, broadcast: Iterable[str] = (), timeless: Iterable[str] = ()) -> None:
        self._inputs: dict[str, int | None] = dict.fromkeys(inputs)
        self._broadcast = frozenset(broadcast)
        self._timeless = frozenset(timeless)
        self._idle: set[str] = set()

    @property
    def watermark_ms(self) -> int | None:
        """The stage's watermark, in milliseconds; None while one that is waited for has none, or all are idle."""
        left = self._left()
        if not left:
            return MAX_WATERMARK_MS
        votes = [self._inputs[uid] for uid in self._voting(left) if not self._is_timeless(uid)]
        known = [vote for vote in votes if vote is not None]
        return min(known) if known and len(known) == len(votes) else None

    @property
    def is_idle(self) -> bool:
        """Whether nobody should wait for it: all inputs that have not ended are idle, or have no event time."""
        left = self._left()
        return bool(left) and all(map(self._is_timeless, self._voting(left)))

    def _is_timeless(self, uid: str) -> bool:
        return uid in self._timeless and self._inputs[uid] is None

    def _left(self) -> list[str]:
        return [uid for uid, watermark_ms in self._inputs.items() if watermark_ms != MAX_WATERMARK_MS]

    def _voting(self, left: Sequence[str]) -> list[str]:
        awake = [uid for uid in left if uid not in self._idle]
        if awake or not self._broadcast.issubset(left):
            return [uid for uid in left if uid not in self._idle or uid in self._broadcast]
        return awake

    def on_watermark(self, uid: str, timestamp_ms: int) -> None:
        """Take an input's watermark, in milliseconds."""
        self._inputs[uid] = timestamp_ms

    def on_idle(self, uid: str) -> None:
        """Wait no longer for an input."""
        self._idle.add(uid)

    def on_active(self, uid: str) -> None:
        """Wait for an input again."""
        self._idle.discard(uid)
