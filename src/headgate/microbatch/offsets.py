"""The offset of a streaming query: everything that a restart needs, as readable canonical JSON.

Never: put a clock or anything else into an offset that changes without new data: Spark compares offsets as text, and a
difference is a new batch. Nor a secret.

An offset stands for the moment after a micro-batch was planned. It holds what that batch reads (``plan``), where
reading continues (``splits``), and what the enumerator knows (``enumerator``); so a batch is replayed from its
end offset alone, and always reads the same rows.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.source import VersionedSerializer

INITIAL: dict[str, Any] = {"v": 1}
"""Where a new query starts. A constant, because Spark asks for it again and again and stores it nowhere."""


class SplitInProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A split that later batches read on, as JSON objects of the source's own versioned format.

    Parameters
    ----------
    split
        The split at its position.
    then
        Where ``split`` has a stop that `Trigger.AvailableNow` set: the split as it continues after that stop.
    """

    split: dict[str, Any]
    then: dict[str, Any] | None = None


class Offset(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a streaming query after one of its micro-batches.

    Parameters
    ----------
    source
        The format's name: an offset of another source is refused.
    options
        The options that may not change on restart, with their values.
    number
        Counts the plans of the query, from 1. The checkpoint id that the enumerator sees.
    enumerator
        The enumerator's state, in the source's own versioned format.
    splits
        The splits in progress.
    plan
        The ranges that this micro-batch reads, as splits with a stop.
    grouping
        What decides, beside the plan, which task reads what: a replay on a machine with other cores or with other
        options must cut the batch as before, for sinks that know rows by their task. Left out in offsets of 0.1.0.
    state_id
        Names the query's folder under ``stateLocation``; None without that option.
    after_stops
        How splits continue after a stop that `Trigger.AvailableNow` set, for those that were reported to the enumerator
        after a restart and are not assigned again yet. Left out where there are none.
    event_times
        In an aligned query what was known of the splits' event times, in milliseconds: of the next row, or the highest
        read. A hint, so that a restart does not begin without alignment. Left out in other queries.
    """

    source: str
    options: dict[str, Any]
    number: int
    enumerator: dict[str, Any]
    splits: list[SplitInProgress]
    plan: list[dict[str, Any]]
    grouping: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    state_id: str | None = None
    after_stops: list[dict[str, Any]] | msgspec.UnsetType = msgspec.field(name="behind_stops", default=msgspec.UNSET)
    event_times: dict[str, int] | msgspec.UnsetType = msgspec.UNSET


offset_serializer: VersionedSerializer[Offset] = VersionedSerializer(
    Offset, version=1, what="an offset of a Headgate streaming query"
)
