"""What the autoscaler looks at: a few figures of a query, taken from its snapshot.

Never: ask anybody: what a snapshot does not know is None here, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec


class SubtaskBusy(msgspec.Struct, frozen=True):
    """How busy a subtask is.

    Parameters
    ----------
    stage
        What to call its stage, or those with which it shares a thread.
    subtask
        Its number in it.
    share
        For which share of the time it is busy, from 0 to 1.
    """

    stage: str
    subtask: int
    share: float


class FiguresObserved(msgspec.Struct, frozen=True, kw_only=True):
    """How the query is. An event: it comes at a steady pace, and the time passes with it.

    Parameters
    ----------
    parallelism
        How many slots it has.
    is_settled
        Whether it runs, and has recovered all that it had to.
    restarts
        How often something was restarted after a failure so far.
    rows_read
        By all sources since the start.
    lag_rows
        How many rows there are that were not read, in the sources that know it; None: no source does.
    busy
        Of each subtask; one of which it is not known is left out.
    is_paused
        Whether splits wait for others, by alignment: then what is read is no measure of what could be.
    num_splits
        How many readers have something to read at most; None: there may be more, or more slots help all the same.
    most_slots
        How many slots the session has room for; None: that is unknown, or it grows.
    """

    parallelism: int
    is_settled: bool
    restarts: int = 0
    rows_read: int = 0
    lag_rows: int | None = None
    busy: tuple[SubtaskBusy, ...] = ()
    is_paused: bool = False
    num_splits: int | None = None
    most_slots: int | None = None


def figures_of(
    snapshot: Mapping[str, Any],
    *,
    bounded_by_splits: Collection[str],
    most_slots: int | None,
    threads: Sequence[Sequence[int]],
) -> FiguresObserved:
    """Return the figures in a query's snapshot (`headgate.monitor.snapshot`).

    Parameters
    ----------
    snapshot
        The document.
    bounded_by_splits
        The sources whose readers have all splits that there are, so that a slot more than splits reads nothing; empty
        where slots do more than read.
    most_slots
        As in `FiguresObserved`.
    threads
        Which stages share one (`headgate.graph.stage_graph.StageGraph.threads`): together they are as busy as it is.
    """
    sources, names = snapshot["sources"], {stage["stage"]: stage["name"] for stage in snapshot["stages"]}
    lags = [lag for lag in map(_lag_rows, sources) if lag is not None]
    splits = [source["numSplits"] for source in sources]
    is_bounded = all(source["uid"] in bounded_by_splits for source in sources) and None not in splits
    return FiguresObserved(
        parallelism=snapshot["parallelism"],
        is_settled=snapshot["state"] == "running" and not any(_unfinished(snapshot)),
        restarts=snapshot["restarts"]["count"],
        rows_read=sum(source["rowsRead"] or 0 for source in sources),
        lag_rows=sum(lags) if lags else None,
        busy=busy_of_threads(
            ((each["stage"], each["subtask"], each["busy"]) for each in snapshot["subtasks"]),
            [(stages, ", ".join(names[stage] for stage in stages if stage in names)) for stages in threads],
        ),
        is_paused=any(source["pausedSplits"] for source in sources),
        num_splits=sum(splits) if is_bounded and splits else None,
        most_slots=most_slots,
    )


def busy_of_threads(
    busy: Iterable[tuple[int, int, float | None]], threads: Sequence[tuple[Sequence[int], str]]
) -> tuple[SubtaskBusy, ...]:
    """Return how busy threads are, of stages, subtasks and their shares; ``threads`` are their stages and names.

    A thread of which a share is None, as that is not known, is left out.

    Examples
    --------
    >>> busy_of_threads([(0, 7, 0.25), (1, 7, 0.5)], [((0, 1), "read, count")])
    (SubtaskBusy(stage='read, count', subtask=7, share=0.75),)
    """
    name_of = {stage: name for stages, name in threads for stage in stages}
    shares: dict[tuple[str, int], list[float | None]] = {}
    for stage, subtask, share in busy:
        shares.setdefault((name_of[stage], subtask), []).append(share)
    known = ((key, [each for each in of if each is not None], len(of)) for key, of in shares.items())
    return tuple(SubtaskBusy(*key, min(1.0, sum(of))) for key, of, count in known if len(of) == count)


def _unfinished(snapshot: Mapping[str, Any]) -> Iterator[int]:
    """Yield of each stage how many subtasks recover rows or take on keyed state."""
    for stage in (*snapshot["recovery"], *snapshot["restore"]):
        yield stage["subtasks"]


def _lag_rows(source: Mapping[str, Any]) -> int | None:
    """Return the lag of a source in rows: what it says itself, else its splits' sum, else of the time that it lags."""
    lag = source["lag"] or {}
    if "rowsBehind" in lag:
        return int(lag["rowsBehind"])
    of_splits = [split["lag"] for split in source["splits"]]
    if of_splits and None not in of_splits and not source.get("splitsLeftOut"):
        return int(sum(of_splits))
    if "millisBehindLatest" in lag and source["rowsPerSecond"] is not None:
        return int(lag["millisBehindLatest"] * source["rowsPerSecond"] / 1000)
    return None
