"""Messages between an enumerator and its readers, beyond the assignment of splits.

Never: carry splits (assignments do, and they are tracked), or anything that cannot be written as JSON.

Follows FLIP-27, "Where to run the enumerator" (payloads both ways).
"""

from __future__ import annotations

import msgspec


class SourceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Base of a connector's own messages; subclass it as a frozen struct.

    Delivered in order with assignments, at most once: an event under way when a reader or the enumerator fails is
    lost. What must survive belongs into a split or the enumerator's state.
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
    """

    subtask: int
    host: str | None = None
    reported_splits_on_registration: tuple[object, ...] = ()
