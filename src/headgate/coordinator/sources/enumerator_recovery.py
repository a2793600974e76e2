"""Finds out from a source's log what an enumerator and its readers have, after the enumerator failed.

Never: ask anybody: the records are all there is. What readers say is reconciled by `source_coordinator`.

The enumerator goes on from the latest state in the log. What became of splits after that state it does not know:

    since the latest state                                  the new enumerator
    ------------------------------------------------------  ------------------------------------------------------
    assigned                                                takes note of it, if it can; otherwise it will assign it
                                                            again: that is swallowed
    assigned, given back                                    likewise; what was logged waits for the reader it was with
    given back (and assigned before)                        is given it back again
    given back (and assigned before), assigned              knows it as assigned: nothing to do
    given back (and read to its end before), assigned       knows its end: is given it back, and then as if assigned
    given again (the state is of a restored enumerator      is given it back again, unless it was assigned since
    that had not been given it yet)

Follows FLIP-27, "Where to run the enumerator" (write-ahead log).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.coordinator.sources.log_records import (
    AssignedRecord,
    FinishedRecord,
    GivenAgainRecord,
    GivenBackRecord,
    LogRecord,
    NoMoreSplitsRecord,
    RegisteredRecord,
    SourceEventRecord,
    StateRecord,
)
from headgate.coordinator.sources.source_state import SourceState, decode_source_state
from headgate.coordinator.sources.split_assignment_tracker import SplitAssignmentTracker
from headgate.protocol.state import SplitState


class Recovered:
    """What the records of a log add up to.

    Parameters
    ----------
    checkpoint_id
        The last completed checkpoint, with whose segment the records begin.
    keeps_subtask
        Whether what a reader gives back waits for that reader.

    Attributes
    ----------
    state
        The latest state; None: start afresh.
    tracker
        What readers were given.
    swallowed
        Splits that the enumerator will assign though a reader has them: by id, that reader; None: in its state.
    parked
        Splits that wait for their reader, by id, and for which.
    given_back
        Splits that the enumerator is to get back, by id, and of which reader.
    returned
        Splits whose end it knows: it is to get them back before it hears that readers have them again; likewise.
    finished
        Ends that it is to be notified of, by reader. Those of a reader that failed since are not among them: it goes on
        from a checkpoint, and reports them from there, or reads to them again.
    promised
        Readers that were promised that nothing follows.
    logged
        Assignments that may not have arrived, by reader.
    registered
        Registrations that it may not know of, by reader.
    events
        Events of readers that it may not know of, by reader.
    """

    def __init__(self, checkpoint_id: int, *, keeps_subtask: bool) -> None:
        self.state: SourceState | None = None
        self.tracker = SplitAssignmentTracker(checkpoint_id)
        self.swallowed: dict[str, int | None] = {}
        self.parked: dict[str, tuple[int, SplitState]] = {}
        self.given_back: dict[str, tuple[int, SplitState]] = {}
        self.returned: dict[str, tuple[int, SplitState]] = {}
        self.finished: dict[int, list[str]] = {}
        self.promised: set[int] = set()
        self.logged: dict[int, list[AssignedRecord]] = {}
        self.registered: dict[int, RegisteredRecord] = {}
        self.events: dict[int, list[bytes]] = {}
        self._keeps_subtask = keeps_subtask
        self._ended: set[str] = set()  # as far as the state knows

    def replay(self, records: Sequence[LogRecord]) -> None:
        """Take note of all records, in order."""
        latest = max(number for number, record in enumerate(records) if isinstance(record, StateRecord))
        for number, record in enumerate(records):
            is_known = number < latest  # to the enumerator, by its state
            match record:
                case StateRecord(checkpoint_id=checkpoint_id):
                    if checkpoint_id is not None:
                        self.tracker.begin(checkpoint_id)
                    if number == latest and record.state is not None:
                        self._load(decode_source_state(record.state))
                case RegisteredRecord():
                    if not is_known:
                        self.registered[record.subtask] = record
                case AssignedRecord():
                    self._assigned(record, is_known)
                case GivenBackRecord():
                    self._given_back(record, is_known)
                case GivenAgainRecord(subtask=subtask, splits=splits):
                    if not is_known:
                        self.given_back.update((split.split_id, (subtask, split)) for split in splits)
                case FinishedRecord(subtask=subtask):
                    ends = [each.split_id for each in record.finished]
                    if is_known:
                        self._ended.update(ends)
                    else:
                        self.finished.setdefault(subtask, []).extend(ends)
                case NoMoreSplitsRecord():
                    self.promised.add(record.subtask)
                case SourceEventRecord():
                    if not is_known:
                        self.events.setdefault(record.subtask, []).append(record.payload)
        for split_id in self.parked:
            self.tracker.discard(split_id)  # the enumerator failed before the record that it gave it back

    def assigned_since(self) -> dict[int, tuple[SplitState, ...]]:
        """Return by reader which splits, as they were assigned, the latest state holds although a reader had them."""
        held = [*self.tracker, *self.parked.values()]
        assigned: dict[int, list[SplitState]] = {}
        for subtask, split in held:
            if self.swallowed.get(split.split_id) == subtask:
                assigned.setdefault(subtask, []).append(split)
        return {subtask: tuple(splits) for subtask, splits in assigned.items()}

    def _load(self, state: SourceState) -> None:
        self.state = state
        self.swallowed = {split_id: self.tracker.holder(split_id) for split_id in state.assigned}
        for subtask, splits in state.parked.items():
            self.parked.update((split.split_id, (subtask, split)) for split in splits)

    def _assigned(self, record: AssignedRecord, is_known: bool) -> None:
        subtask = record.subtask
        for split in record.splits:
            split_id = split.split_id
            # One that gave it back may have it; the record of that follows.
            is_held = self.tracker.holder(split_id) is not None
            was_parked = self.parked.pop(split_id, None) is not None
            given_back = self.given_back.pop(split_id, None)
            if given_back is not None and split_id in self._ended:
                self.returned[split_id] = given_back
                self.swallowed[split_id] = subtask
            elif split_id in self.swallowed or not (is_known or was_parked or given_back is not None or is_held):
                self.swallowed[split_id] = subtask
        self.tracker.assign(subtask, record.splits)
        self.logged.setdefault(subtask, []).append(record)

    def _given_back(self, record: GivenBackRecord, is_known: bool) -> None:
        subtask = record.subtask
        self.promised.discard(subtask)
        self.logged.pop(subtask, None)
        self.registered.pop(subtask, None)
        self.finished.pop(subtask, None)
        for split in self.tracker.take_back(subtask, record.checkpoint_id):
            split_id = split.split_id
            if self.returned.pop(split_id, None) is not None:
                self.swallowed.pop(split_id)
            if is_known:
                self._ended.discard(split_id)
            if is_known or split_id in self.parked:
                continue  # the state has it
            if self._keeps_subtask or split_id in self.swallowed:
                self.parked[split_id] = subtask, split
            else:
                self.given_back[split_id] = (subtask, split)


def by_reader(splits: Mapping[str, tuple[int, SplitState]]) -> dict[int, tuple[SplitState, ...]]:
    """Return splits by the reader that each is to go to, or was with."""
    found: dict[int, list[SplitState]] = {}
    for subtask, split in splits.values():
        found.setdefault(subtask, []).append(split)
    return {subtask: tuple(of_reader) for subtask, of_reader in found.items()}
