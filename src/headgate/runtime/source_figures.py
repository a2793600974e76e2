"""What a subtask reports of its sources, beside rows: where splits are, and what connectors measure.

Never: look more often than once in `POSITIONS_PERIOD_MS`, which takes the subtask's thread's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.protocol.state import SplitState
from headgate.runtime.source_input import MOST_POSITIONS, SourceInput, positions_of

POSITIONS_PERIOD_MS = 1000
"""How often positions of splits are looked at for progress, in milliseconds."""


class SourceFigures:
    """Looks at the sources of one execution.

    Parameters
    ----------
    inputs
        By uid.
    """

    def __init__(self, inputs: Mapping[str, SourceInput]) -> None:
        self._inputs = inputs
        self._measured_ms: int | None = None  # when the connectors' metrics were
        self.looked_ms: int | None = None
        """When positions were reported last."""

    def report(self, now_ms: int, splits: Mapping[str, tuple[SplitState, ...]] | None) -> dict[str, Any]:
        """Return fields of `headgate.protocol.messages.SubtaskProgress`.

        ``splits`` is where a snapshot found them, if nothing newer was reported since.
        """
        known: dict[str, tuple[int, dict[str, bytes]]] = {}
        if splits is not None:
            known = {uid: positions_of(of_source) for uid, of_source in splits.items()}
        elif self.looked_ms is None or now_ms - self.looked_ms >= POSITIONS_PERIOD_MS:
            known = {uid: each.positions() for uid, each in self._inputs.items()}
        event_times = {}
        if known:
            self.looked_ms = now_ms
            of_sources = {uid: each.output.event_times() for uid, each in self._inputs.items()}
            event_times = {uid: found for uid, found in of_sources.items() if 0 < len(found) <= MOST_POSITIONS}
        queued = [size for each in self._inputs.values() if (size := each.queued()) is not None]
        return {
            "splits": {uid: count for uid, (count, _) in known.items()},
            "positions": {uid: positions for uid, (_, positions) in known.items()},
            "event_times": event_times,
            "troubles": {uid: troubles for uid, each in self._inputs.items() if (troubles := each.troubles())},
            "queue_batches": sum(batches for batches, _ in queued) if queued else None,
            "queue_bytes": sum(size for _, size in queued) if queued else None,
            **self._measured(now_ms),
        }

    def _measured(self, now_ms: int) -> dict[str, Any]:
        """Return what connectors measure, and the rows that splits have left; nothing, if it was looked for lately."""
        if self._measured_ms is not None and now_ms - self._measured_ms < POSITIONS_PERIOD_MS:
            return {}
        self._measured_ms = now_ms
        found = {uid: each.measured() for uid, each in self._inputs.items()}
        return {
            "metrics": {uid: each.metrics for uid, each in found.items() if each.metrics},
            "pending_records": {uid: each.pending_records for uid, each in found.items() if each.pending_records},
        }
