"""Knows where the splits of a source are, and which of them go back to its enumerator when a reader fails.

A reader's machine (`reader_machine`) asks it once the enumerator has forgotten the reader. `enumerator_runner` hands
what goes back to the enumerator (`SplitEnumerator.add_splits_back`).

Never: have a split in two places.

    place      meaning
    ---------  -----------------------------------------------------------------------------------------------------
    assigned   given to a reader since the last completed checkpoint (`SplitAssignmentTracker`)
    swallowed  a restored enumerator has it though a reader does: its next assignment of it is not carried out
    parked     a failed reader had it and the enumerator may not give it to another one: it waits for that reader

Follows FLIP-27, "Where to run the enumerator" (option 3); FLIP-537.
"""

from __future__ import annotations

from collections.abc import Collection

from headgate.coordinator.sources.enumerator_recovery import Recovered
from headgate.coordinator.sources.source_state import SourceState, encode_source_state
from headgate.coordinator.sources.split_assignment_tracker import SplitAssignmentTracker
from headgate.protocol.state import SplitState


class SplitsBack:
    """Where the splits of one source are.

    Parameters
    ----------
    checkpoint_id
        The checkpoint that everything goes on from; 0: none.
    swallowed
        Splits that a restored enumerator has though readers do.
    """

    def __init__(self, checkpoint_id: int, swallowed: Collection[str] = ()) -> None:
        self.tracker = SplitAssignmentTracker(checkpoint_id)
        self.swallowed: dict[str, int | None] = dict.fromkeys(swallowed)  # see `enumerator_recovery`
        self.parked: dict[int, dict[str, SplitState]] = {}

    def adopt(self, recovered: Recovered, completed: int) -> None:
        """Take over what a log says; ``completed`` is the last completed checkpoint."""
        self.tracker, self.swallowed = recovered.tracker, recovered.swallowed
        self.tracker.complete(completed)
        for subtask, split in recovered.parked.values():
            self.parked.setdefault(subtask, {})[split.split_id] = split

    def take_back(self, subtask: int, checkpoint_id: int, *, keeps_subtask: bool) -> tuple[SplitState, ...]:
        """Remove what a reader was given since a checkpoint, park what waits for it, and return the rest."""
        back = []
        parked = self.parked.get(subtask, {})
        for split in self.tracker.take_back(subtask, checkpoint_id):
            if keeps_subtask or split.split_id in self.swallowed:
                parked[split.split_id] = split
            else:
                back.append(split)
        if parked:
            self.parked[subtask] = parked
        return tuple(back)

    def unpark(self, subtask: int, splits: Collection[SplitState]) -> list[SplitState]:
        """Return which of these waited for a reader: they do not any longer."""
        parked = self.parked.get(subtask, {})
        taken = [split for split in splits if parked.pop(split.split_id, None) is not None]
        if not parked:
            self.parked.pop(subtask, None)
        return taken

    def not_reassigned(self, reported: tuple[SplitState, ...]) -> tuple[SplitState, ...]:
        """Return of what a reader reported what no reader was given since: otherwise that counts."""
        if self.tracker.is_empty:
            return reported
        return tuple(
            split
            for split in reported
            if self.tracker.holder(split.split_id) is None or split.split_id in self.swallowed
        )

    def heard_of(self, splits: Collection[SplitState]) -> None:
        """Note that the enumerator knows now that these are with readers."""
        for split in splits:
            self.swallowed.pop(split.split_id, None)

    def encode(self, enumerator: bytes) -> bytes:
        """Return the source's state, of the enumerator's."""
        parked = {subtask: tuple(splits.values()) for subtask, splits in self.parked.items()}
        return encode_source_state(SourceState(enumerator, tuple(self.swallowed), parked))

    def check(self) -> None:
        """Assert that a split is in one place."""
        places = [split.split_id for _, split in self.tracker]
        for parked in self.parked.values():
            places += parked
        assert len(places) == len(set(places)), f"a split is in two places: {sorted(places)}"
