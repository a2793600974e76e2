"""Draws what the sources of a seed are like: which connector's, and what there is to read.

Never: draw what a connector cannot have: a partition of Kafka has no end in an unbounded read, a shard has records
before it is closed, and a file has rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec

from headgate.connectors.files.split import split_id_of
from headgate.simulation.topic import PIECE_ROWS, Kind, SourceScript, TopicSplit

PHASE_MS = 3500
"""How long faults come, in milliseconds of virtual time."""
_KINDS: tuple[Kind, ...] = ("kafka", "kafka", "kafka", "kinesis", "kinesis", "files", "files", "simple", "datagen")
_HAS_ENDS: tuple[Kind, ...] = ("kinesis", "simple")
"""Whose splits may end in an unbounded read, those of files apart, which always do."""


def draw_source(draw: random.Random, uid: str, bounded: bool) -> SourceScript:
    """Return a source without event time."""
    kind = draw.choice(_KINDS)
    latest = kind in ("kafka", "kinesis") and not bounded and draw.random() < 0.3
    splits: list[TopicSplit] = []
    for number in range(draw.randint(1, 7)):
        late_ms = draw.randrange(PHASE_MS) if draw.random() < 0.3 and not bounded and kind != "datagen" else 0
        has_end = bounded or kind == "files" or (kind in _HAS_ENDS and not latest and draw.random() < 0.4)
        least = 1 if kind in ("files", "kinesis") else 0
        stop = draw.randint(least, 60) if has_end else None
        splits.append(TopicSplit(split_id=f"{uid}-{number}", appears_ms=late_ms, stop=stop))
    if kind == "kinesis" and not bounded:
        splits += _children(draw, splits)
    return SourceScript(
        uid=uid,
        kind=kind,
        splits=tuple(_pieces(splits)) if kind == "files" else tuple(splits),
        bounded=bounded,
        latest=latest,
        assigner=draw.choice(("hash", "round-robin")) if kind == "kafka" else "round-robin",
        row_ms=draw.choice((15, 40, 100)),
    )


def draw_families(draw: random.Random, uid: str) -> Iterator[TopicSplit]:
    """Yield shards that are closed, what these were split into, and one that stays open."""
    parents = [
        TopicSplit(split_id=f"{uid}-{number}", appears_ms=0, stop=draw.randint(10, 60))
        for number in range(draw.randint(2, 5))
    ]
    yield from parents
    yield from _children(draw, parents)
    yield TopicSplit(split_id=f"{uid}-{len(parents)}", appears_ms=0, stop=None)


def _children(draw: random.Random, shards: Sequence[TopicSplit]) -> Iterator[TopicSplit]:
    """Yield what closed shards were split into, or merged with the one before."""
    closed = [each for each in shards if each.stop is not None]
    for number, shard in enumerate(closed):
        parents = [shard]
        if number and draw.random() < 0.3:
            parents.append(closed[number - 1])
        for child in range(draw.choice((0, 1, 1, 2))):
            yield TopicSplit(
                split_id=f"{shard.split_id}-child-{child}",
                appears_ms=max(each.appears_ms for each in parents),
                stop=draw.choice((None, draw.randint(1, 40))),
                parents=tuple(each.split_id for each in parents),
            )


def _pieces(files: Sequence[TopicSplit]) -> Iterator[TopicSplit]:
    """Yield the pieces into which files are cut, each of which is a split."""
    for file in files:
        rows, path = file.stop or 0, file.split_id
        for start in range(0, rows, PIECE_ROWS):
            yield msgspec.structs.replace(
                file,
                split_id=split_id_of(path, start),
                stop=min(PIECE_ROWS, rows - start),
                path=path,
                start=start,
                first_ms=file.first_ms + start * file.step_ms,
            )


def draw_splits_in_time(
    draw: random.Random, uids: Sequence[str], bounded: bool, pauses: bool
) -> dict[str, tuple[Kind, tuple[TopicSplit, ...]]]:
    """Return sources whose rows need never be late: kinds and splits, which are there from the beginning and end.

    Parameters
    ----------
    draw
        Decides.
    uids
        The sources.
    bounded
        Whether they end.
    pauses
        Whether one split has nothing to read for a while.
    """
    kinds: tuple[Kind, ...] = ("kafka", "datagen", "datagen", "simple") if bounded else _HAS_ENDS
    drawn = {uid: draw.choice(kinds) for uid in uids}
    splits = {uid: _splits_in_time(draw, uid) for uid in uids}
    if pauses:
        _pause_one(draw, splits)
    return {uid: (drawn[uid], tuple(splits[uid])) for uid in uids}


def _splits_in_time(draw: random.Random, uid: str) -> list[TopicSplit]:
    return [
        TopicSplit(
            split_id=f"{uid}-{number}",
            appears_ms=0,
            stop=draw.randint(1, 60),
            first_ms=draw.choice((0, 0, 250)),
            step_ms=draw.choice((1, 5, 20)),
        )
        for number in range(draw.randint(1, 5))
    ]


def _pause_one(draw: random.Random, splits: dict[str, list[TopicSplit]]) -> None:
    """Let one of all splits have nothing to read for a while; what follows is later than all rows of the others."""
    of_source = draw.choice(list(splits.values()))
    number = draw.randrange(len(of_source))
    split = of_source[number]
    assert split.stop is not None
    pause_at = draw.randrange(split.stop)
    others = [each for of_another in splits.values() for each in of_another if each is not split]
    latest_ms = max((each.first_ms + (each.stop or 0) * each.step_ms for each in others), default=0)
    of_source[number] = msgspec.structs.replace(
        split,
        pause_at=pause_at,
        resumes_ms=draw.randrange(500, 3000),
        gap_at=pause_at,
        gap_ms=max(0, latest_ms - split.first_ms - pause_at * split.step_ms),
    )
