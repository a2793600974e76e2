"""Messages between an enumerator and its readers, beyond the assignment of splits.

Never: carry splits (assignments do, and they are tracked), or anything that cannot be written as JSON.

Follows FLIP-27, "Where to run the enumerator" (payloads both ways).
"""

from __future__ import annotations

import msgspec


class SourceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Base of a connector's own messages; subclass it as a frozen struct.

    Delivered in order with assignments. To a reader at most once: an event on its way when the reader or the enumerator
    fails is lost. To the enumerator at least once as long as readers read on: one that is restarted from its log
    receives again what the state that it goes on from does not know of, once the reader is registered. A restart of
    everything goes back to the last checkpoint: what must survive that belongs into a split or the enumerator's state.
    """


class ReaderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an enumerator may know of a registered reader.

    Parameters
    ----------
    subtask
        The number of the reader, from 0.
    host
        The host it runs on, for assignments by locality; None when unknown.
    reported_splits_on_registration
        The splits that the reader held in the state it was restored from, for sources that declare
        `SupportsSplitReassignmentOnRecovery`; otherwise empty (FLIP-537, "ReaderInfo").
    held_split_ids
        The ids of the splits that the reader has as it registers, beside those: it was restored with them, or reads on
        while the enumerator alone was restarted. They count for balance. In a restarted enumerator's state some may
        still be unassigned.
    """

    subtask: int
    host: str | None = None
    reported_splits_on_registration: tuple[object, ...] = ()
    held_split_ids: tuple[str, ...] = ()
