"""Decides the sink's watermark from those of the sources: their minimum wherever rows come together.

Never: read a clock or look at a row. Nothing of it is stored.

An idle source has no vote. An operator that makes watermarks itself replaces those that come to it, save the final one.

Follows FLIP-27, "Per Split Event Time"; lessons, "Watermarks and alignment".
"""

from __future__ import annotations

from collections.abc import Mapping

from headgate.operators.operator import Operator
from headgate.operators.stage_graph import StageGraph
from headgate.operators.with_watermark import WithWatermark
from headgate.task.watermarks import MAX_WATERMARK_MS


class WatermarkFlow:
    """The watermarks of one subtask's stage.

    Parameters
    ----------
    graph
        The stage.
    operators
        The subtask's operators by uid.
    """

    def __init__(self, graph: StageGraph, operators: Mapping[str, Operator]) -> None:
        self._graph = graph
        self._inputs = {node.uid: node.inputs for node in graph.operators}
        self._makers = {uid: each for uid, each in operators.items() if isinstance(each, WithWatermark)}
        self._sources: dict[str, int | None] = {each.uid: None for each in graph.sources}
        self._idle = {each.uid for each in graph.sources}  # no split, no vote

    @property
    def watermark_ms(self) -> int | None:
        """The sink's watermark, in milliseconds; None while one that is waited for has none."""
        votes = self._votes(self._graph.output)
        known = [vote for vote in votes if vote is not None]
        return min(known) if known and len(known) == len(votes) else None

    def on_watermark(self, source: str, timestamp_ms: int) -> None:
        """Take a source's watermark, in milliseconds."""
        self._sources[source] = timestamp_ms
        if timestamp_ms == MAX_WATERMARK_MS:
            self._idle.discard(source)

    def on_idle(self, source: str) -> None:
        """Wait no longer for a source."""
        self._idle.add(source)

    def on_active(self, source: str) -> None:
        """Wait for a source again."""
        self._idle.discard(source)

    def release_split(self, source: str, split_id: str) -> None:
        """Forget a split of a source that is finished."""
        reached = {source}
        for node in self._graph.operators:
            if reached.intersection(node.inputs):
                reached.add(node.uid)
                if node.uid in self._makers:
                    self._makers[node.uid].release_split(split_id)

    def _votes(self, uid: str) -> list[int | None]:
        """Return the watermarks that are waited for there; None for one that is not known yet."""
        if uid in self._sources:
            return [] if uid in self._idle else [self._sources[uid]]
        votes = [vote for each in self._inputs[uid] for vote in self._votes(each)]
        ended = all(vote == MAX_WATERMARK_MS for vote in votes)  # and so without votes
        return votes if ended or uid not in self._makers else [self._makers[uid].watermark_ms]
