"""What a partition's ledgers say: where it ends, how much there is after a position, whether messages were lost.

Never: ask a broker: what there is, is an argument.

Pulsar gives messages up in whole ledgers, the oldest first, when their retention is over and every subscription has
acknowledged them; a reader is then moved on without a word. Ledgers' ids rise, over a whole cluster: those of a topic
that was deleted and made again are others. So nothing was lost while the ledger that was read last, or an older one, is
still there, and otherwise only if it is known to have been read to its end and the next message is of the ledger that
followed it. Ledgers without entries are discarded whenever a topic is loaded anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.connectors.pulsar.position import Position


class Ledger(msgspec.Struct, frozen=True):
    """A ledger: its id, and how many entries and bytes it has so far."""

    id: int
    entries: int
    bytes: int


class Ledgers(msgspec.Struct, frozen=True):
    """The ledgers of a partition that are still there, in order; the last one is written to."""

    ledgers: tuple[Ledger, ...]

    def __contains__(self, ledger_id: object) -> bool:
        return any(each.id == ledger_id for each in self.ledgers)

    @property
    def end(self) -> Position | None:
        """The position after the last entry that is there; None: there is none."""
        there = [each for each in self.ledgers if each.entries]
        return Position(there[-1].id, there[-1].entries - 1) if there else None

    @property
    def beginning(self) -> Position | None:
        """The position before the first entry that is there; None: there is none.

        Never in a ledger without entries: Pulsar discards these when a topic is loaded anew.
        """
        return next((Position(each.id, -1) for each in self.ledgers if each.entries), None)

    @property
    def entry_bytes(self) -> int:
        """About how many bytes an entry has; a kilobyte if there is none."""
        entries = sum(each.entries for each in self.ledgers)
        return max(1, sum(each.bytes for each in self.ledgers) // entries) if entries else 1024

    def before_entry(self, number: int) -> Position:
        """Return the position before an entry, by its number among all that are there; past the last one: the end.

        Raises
        ------
        ValueError
            There are no entries.
        """
        left = number
        for each in self.ledgers:
            if left < each.entries:
                return Position(each.id, left - 1)
            left -= each.entries
        if self.end is None:
            raise ValueError("there are no entries")
        return self.end

    def has_entries_after(self, position: Position | None) -> bool:
        """Return whether anything can be read from a position on (None: the beginning)."""
        return self.entries_after(position) > 0

    def entries_after(self, position: Position | None) -> int:
        """Return how many entries follow a position, one that is read in part included."""
        return sum(_after(each, position) for each in self.ledgers)

    def bytes_after(self, position: Position | None) -> int:
        """Return about how many bytes follow a position: entries of a ledger are taken to be of one size."""
        return round(sum(_size(each) * _after(each, position) for each in self.ledgers))

    def bytes_between(self, position: Position | None, end: Position) -> int:
        """Return about how many bytes are between two positions: at least one, as there is an entry."""
        return max(1, self.bytes_after(position) - self.bytes_after(end))

    def advance(self, position: Position | None, most_bytes: int) -> Position | None:
        """Return the last position with about so many bytes before it at most: one entry further at least.

        None: there is nothing after ``position``.
        """
        left: float = most_bytes
        reached = None
        for ledger in self.ledgers:
            there = _after(ledger, position)
            if not there:
                continue
            size = _size(ledger)
            taken = min(there, int(left // size) if size else there)
            if reached is None:
                taken = max(1, taken)
            if taken:
                reached = Position(ledger.id, ledger.entries - there + taken - 1)
            if taken < there:
                break
            left = max(0, left - taken * size)  # the first entry is taken, however large
        return reached

    def last_entry(self, end: Position) -> Position | None:
        """Return the position after the last entry that is there up to ``end``; None: there is none."""
        for each in reversed(self.ledgers):
            if each.id == end.ledger and min(each.entries, end.entry + 1) > 0:
                return end if end.entry < each.entries else Position(each.id, each.entries - 1)
            if each.id < end.ledger and each.entries:
                return Position(each.id, each.entries - 1)
        return None


def is_lost(last: Position, following: Position | None, known: Ledgers, now: Ledgers) -> bool:
    """Return whether messages between two positions were lost, or may have been.

    Parameters
    ----------
    last
        The position after the last message read.
    following
        The next message, if there is one.
    known
        The ledgers when they were last looked at.
    now
        The ledgers after ``following`` came.
    """
    if following is not None and following.ledger == last.ledger:
        return False
    if any(each.id <= last.ledger for each in now.ledgers):
        return False
    ids: Sequence[int] = [each.id for each in known.ledgers]
    if last.ledger not in ids[:-1]:
        return True  # it was written to when it was seen last: how far, nobody knows any longer
    place = ids.index(last.ledger)
    was_read = last.entries_read >= known.ledgers[place].entries
    # Ledgers without entries may be discarded; of the last one it is not known whether it stayed so.
    full = next((number for number, each in enumerate(known.ledgers[place + 1 : -1], place + 1) if each.entries), None)
    successors = ids[place + 1 : None if full is None else full + 1]
    next_there = following.ledger if following is not None else (now.ledgers[0].id if now.ledgers else None)
    return not (was_read and next_there in successors)


def remembered(known: Ledgers, now: Ledgers, position: Position | None) -> Ledgers:
    """Return what is to be known later, when `is_lost` is asked again for the same position.

    That is what is there now, and ledgers from the position's on that are gone, of which it is known how long they
    were: an idle partition may have nothing left but a ledger without entries.
    """
    if position is None or not known.ledgers or known.ledgers[-1].id not in now:
        return now  # what was between is not known
    gone = (each for each in known.ledgers if position.ledger <= each.id < now.ledgers[0].id)
    return Ledgers((*gone, *now.ledgers))


def _after(ledger: Ledger, position: Position | None) -> int:
    """Return how many entries of a ledger are after a position."""
    if position is None or ledger.id > position.ledger:
        return ledger.entries
    if ledger.id < position.ledger:
        return 0
    return max(0, ledger.entries - position.entries_read)


def _size(ledger: Ledger) -> float:
    return ledger.bytes / ledger.entries if ledger.entries else 0.0
