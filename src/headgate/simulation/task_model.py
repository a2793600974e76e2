"""What a subtask works with in the simulator: readers that keep positions, and a sink writer in two phases.

Never: emit a row of a split before its position or behind its end, or forget rows that were staged and not confirmed.
"""

from __future__ import annotations

import random

import msgspec

from headgate.protocol.state import OperatorState, SplitState
from headgate.simulation.durable import Committable, Row, encode_committable
from headgate.simulation.scripted_source import SPLITS, ScriptedSplit, Topic


class ModelReader:
    """The reader of one source."""

    def __init__(self, uid: str, topic: Topic) -> None:
        self.uid = uid
        self._topic = topic
        self.splits: dict[str, ScriptedSplit] = {}
        self.no_more = False
        self.asking = False

    def add(self, splits: tuple[SplitState, ...]) -> None:
        """Take splits to read."""
        self.asking = False
        for state in splits:
            assert state.split_id not in self.splits, f"a reader was given {state.split_id} twice"
            self.splits[state.split_id] = SPLITS.deserialize(state.data)

    def read(self, choose: random.Random) -> tuple[list[Row], str | None]:
        """Return some rows of one split, and the split if it ended with them."""
        ready = [
            each
            for each in self.splits.values()
            if each.position < self._topic.rows(each.split_id) or each.stop == each.position
        ]
        if not ready:
            return [], None
        split = choose.choice(ready)
        end = min(self._topic.rows(split.split_id), split.position + choose.randint(1, 8))
        rows = [(self.uid, split.split_id, offset) for offset in range(split.position, end)]
        if end == split.stop:
            del self.splits[split.split_id]
            return rows, split.split_id
        self.splits[split.split_id] = msgspec.structs.replace(split, position=end)
        return rows, None

    def wants_split(self) -> bool:
        """Return whether it is time to ask for a split."""
        return self._topic.script.pulled and not self.splits and not self.no_more and not self.asking

    def ended(self) -> bool:
        """Return whether nothing will ever come."""
        return self.no_more and not self.splits

    def snapshot(self) -> tuple[SplitState, ...]:
        """Return the splits at their positions."""
        return tuple(SplitState(split.split_id, SPLITS.serialize(split)) for split in self.splits.values())


class ModelWriter:
    """One subtask's end of the sink."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rows: list[Row] = []
        self._staged: list[tuple[int, bytes]] = []  # by the checkpoint they were staged for
        self._count = 0

    def write(self, rows: list[Row]) -> None:
        """Take rows."""
        self._rows += rows

    def prepare(self, checkpoint_id: int) -> OperatorState:
        """Stage what was written; what was staged before and is not confirmed stands there again."""
        if self._rows:
            self._count += 1
            committable = Committable(f"{self._name}-{self._count}", tuple(self._rows))
            self._staged.append((checkpoint_id, encode_committable(committable)))
            self._rows = []
        return OperatorState(committables=tuple(data for _, data in self._staged))

    def confirm(self, checkpoint_id: int) -> None:
        """Forget what is in a completed checkpoint."""
        self._staged = [(staged, data) for staged, data in self._staged if staged > checkpoint_id]
