"""Says in words what limits a query now, the most limiting first.

Never: read a clock; say that something is slow which waits for something else that is; stay silent: a query that
nothing limits waits for data.

    what                                       when
    -----------------------------------------  -----------------------------------------------------------------------
    it does not run                            it starts, restarts, ends or has failed
    it restarts over and over                  `REPEATED` restarts within `REPEATED_MS`
    recovery, restore                          rows in flight or keyed state are still taken on
    sources wait                               their enumerator or a reader reports why
    checkpoints                                the last one failed; it is too old, or takes long
    sinks                                      rows stay unpublished, or commits take half of the time
    an operator is busy                        `BUSY` of the time or more, at its busiest subtask
    back pressure                              stages wait for room, down to the one that causes it
    a split holds its alignment group back     others are paused
    nothing                                    none of these
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headgate.monitor.growing_lag import BUSY_PERCENT, growing_lag
from headgate.monitor.late_publications import late_publications
from headgate.monitor.snapshot import About, OperatorView, Snapshot, SourceView, StageView, SubtaskView, Why

BUSY = BUSY_PERCENT / 100
"""From this share of the time on an operator limits what it gets."""
BACK_PRESSURED = 0.5
"""From this share of the time on a stage waits for another."""
SKEWED = 0.5
"""A subtask is much busier than the others when these are busy at most this part of its share, in the middle."""
COMMITTING = 0.5
"""From this share of the time on commits limit the query."""
REPEATED, REPEATED_MS = 3, 600_000
"""So many restarts in so many milliseconds are more than an accident."""
MOST = 10
"""How many reasons are given."""


def why(snapshot: Snapshot, progresses: Sequence[dict[str, Any]] = ()) -> list[Why]:
    """Return what limits a query, the most limiting first; never nothing.

    Parameters
    ----------
    snapshot
        How it is.
    progresses
        Its last progresses, the newest last: whether it keeps up is known from several.
    """
    if snapshot.state in ("ended", "failed"):
        return [_why("info", f"The query has {snapshot.state}.", "none")]
    found = [
        *_not_running(snapshot),
        *_restarts(snapshot),
        *_recovery(snapshot),
        *_troubles(snapshot),
        *_checkpoints(snapshot),
        *_sinks(snapshot),
    ]
    if snapshot.state not in ("restarting", "failing"):  # the figures are those of subtasks that are gone
        found += [*_busy(snapshot, progresses), *_alignment(snapshot)]
    if not found:
        found = [_why("info", "The query waits for data: nothing limits it.", "none")]
    return found[:MOST]


def span(ms: float) -> str:
    """Return a length of time in words, in the largest unit of which it has two, or in milliseconds.

    Examples
    --------
    >>> span(7_200_000), span(4_000), span(350)
    ('2 h', '4 s', '350 ms')
    """
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        count = ms / unit_ms
        if count >= (1 if unit == "s" else 2):
            return f"{count:.0f} {unit}" if count >= 10 else f"{count:.1f}".removesuffix(".0") + f" {unit}"
    return f"{ms:.0f} ms"


def _not_running(snapshot: Snapshot) -> Iterator[Why]:
    missing = [each.slot for each in snapshot.slots if each.state != "registered"]
    awaited = f"slots that have not come: {_numbers(missing)}" if missing else "its subtasks to open"
    slot = missing[0] if missing else None
    match snapshot.state:
        case "created" | "starting":
            yield _why("info", f"The query starts and waits for {awaited}.", "slot", slot=slot)
        case "restarting":
            last = snapshot.restarts.recent[-1] if snapshot.restarts.recent else None
            cause = "" if last is None or last.kind == "rescale" else f" The cause: {last.cause}"
            yield _why("critical", f"The query restarts and waits for {awaited}.{cause}", "recovery", slot=slot)
        case "ending":
            yield _why("info", "The query ends: it reads nothing more.", "none")
        case "failing":
            yield _why("critical", "The query has failed, and its slots end.", "none")


def _restarts(snapshot: Snapshot) -> Iterator[Why]:
    recent = [each for each in snapshot.restarts.recent if each.kind != "rescale"]
    recent = [each for each in recent if each.at_ms > snapshot.now_ms - REPEATED_MS]
    if len(recent) < REPEATED:
        return
    last = recent[-1]
    took_ms = max(1000, snapshot.now_ms - recent[0].at_ms)
    where = "" if last.subtask is None else f" in subtask {last.subtask} of stage {last.stage}"
    text = f"{len(recent)} restarts in the last {span(took_ms)}; the last one{where}: {last.cause}"
    yield _why("critical", text, "recovery", stage=last.stage, subtask=last.subtask, slot=last.slot)


def _recovery(snapshot: Snapshot) -> Iterator[Why]:
    for restored in snapshot.restore:
        if restored.subtasks:
            left = restored.bytes_left / restored.bytes_to_read if restored.bytes_to_read else 0.0
            text = (
                f"stage {restored.stage} takes on its keyed state: {_percent(left)} % of "
                f"{restored.bytes_to_read:,} bytes are left in {_counted(restored.subtasks, 'subtask')}"
            )
            yield _why("warning", text, "recovery", stage=restored.stage)
    for each in snapshot.recovery:
        text = (
            f"stage {each.stage} recovers rows that were in flight ({each.phase}): {each.rows_left:,} are left in "
            f"{_counted(each.subtasks, 'subtask')}"
        )
        yield _why("warning", text, "recovery", stage=each.stage)


def _troubles(snapshot: Snapshot) -> Iterator[Why]:
    for source in snapshot.sources:
        for trouble in source.troubles[:3]:
            yield _why("warning", f"the source {source.uid}: {trouble}", "source", uid=source.uid)


def _checkpoints(snapshot: Snapshot) -> Iterator[Why]:
    checkpoints = snapshot.checkpoints
    last = checkpoints.last
    failed = []
    for each in reversed(checkpoints.recent):
        if each.status != "failed":
            break
        failed.append(each)
    since = "" if last is None else f"; the last complete one is {span(last.age_ms)} old"
    if failed:
        count = "checkpoint" if len(failed) == 1 else f"the last {len(failed)} checkpoints, at last"
        text = f"{count} {failed[0].id} failed: {failed[0].reason}{since}"
        severity = "warning" if len(failed) == 1 else "critical"
        yield _why(severity, text, "checkpoint", checkpoint=failed[0].id)
    pending = checkpoints.pending
    took_ms = 0
    if pending is not None and pending.started_ms is not None:
        took_ms = snapshot.now_ms - pending.started_ms
    if pending is not None and took_ms >= max(10_000, 3 * checkpoints.interval_ms):
        text = f"checkpoint {pending.id} has been under way for {span(took_ms)}{since}"
        yield _why("warning", text, "checkpoint", checkpoint=pending.id)
    elif last is not None and last.duration_ms >= max(10_000, checkpoints.interval_ms):
        text = f"a checkpoint takes {span(last.duration_ms)}, and one is due each {span(checkpoints.interval_ms)}"
        yield _why("warning", text, "checkpoint", checkpoint=last.id)
    elif last is not None and not failed and last.age_ms >= max(60_000, 10 * checkpoints.interval_ms):
        text = f"the last checkpoint is {span(last.age_ms)} old: that much is read again after a failure"
        yield _why("warning", text, "checkpoint", checkpoint=last.id)


def _sinks(snapshot: Snapshot) -> Iterator[Why]:
    waits = {each.uid: each.unpublished_ms for each in snapshot.sinks if each.unpublished_ms is not None}
    for uid, text in late_publications(waits, snapshot.checkpoints.interval_ms, {}).items():
        yield _why("critical", text, "sink", uid=uid)
    for sink in snapshot.sinks[:1]:  # all are committed together
        share, took_ms = sink.commit_share, sink.last_commit_ms
        if share is not None and took_ms is not None and share >= COMMITTING:
            text = f"the sink's commit takes {span(took_ms)} of each {span(took_ms / share)}"
            yield _why("warning", text, "sink", uid=sink.uid)


def _busy(snapshot: Snapshot, progresses: Sequence[dict[str, Any]]) -> Iterator[Why]:
    growing = growing_lag(progresses)
    if growing is not None:
        busiest = snapshot.operators[0] if snapshot.operators else None
        if busiest is None:
            yield _why("critical", growing, "operator")
        else:
            yield _why(
                "critical", growing, "operator", uid=busiest.uid, stage=busiest.stage, subtask=busiest.subtask,
                slot=busiest.subtask,
            )  # fmt: skip
    busy = [each for each in snapshot.operators if each.busy >= BUSY]
    for operator in busy:
        text = f"slot {operator.subtask} is busy {_percent(operator.busy)} % in `{operator.name}`"
        text += _skew(snapshot, operator) + _who_waits(snapshot, operator)
        yield _why(
            "warning", text, "operator", uid=operator.uid, stage=operator.stage, subtask=operator.subtask,
            slot=operator.subtask,
        )  # fmt: skip
    if not busy:
        yield from _full_subtasks(snapshot)
    yield from _back_pressure(snapshot)


def _full_subtasks(snapshot: Snapshot) -> Iterator[Why]:
    """Yield subtasks whose operators together take all of their time, though none alone does."""
    full = [each for each in snapshot.subtasks if each.busy is not None and each.busy >= BUSY]
    full.sort(key=lambda each: -(each.busy or 0))
    for each in full[:1]:
        share = _percent(each.busy or 0)
        top = sorted(each.operators.items(), key=lambda item: -item[1])[:3]
        names = _names(snapshot)
        most = ", ".join(f"`{names[uid]}` {_percent(part)} %" for uid, part in top)
        text = f"slot {each.slot} is busy {share} % in stage {each.stage}" + (f": {most}" if most else "")
        yield _why("warning", text, "slot", stage=each.stage, subtask=each.subtask, slot=each.slot)


def _names(snapshot: Snapshot) -> dict[str, str]:
    """Return what to call each operator, by uid."""
    return {each.uid: each.name for each in snapshot.operators}


def _skew(snapshot: Snapshot, operator: OperatorView) -> str:
    """Return how busy the other subtasks are, if that is much less: keys or splits are uneven."""
    others = [
        each.operators.get(operator.uid, 0.0)
        for each in snapshot.subtasks
        if each.stage == operator.stage and each.subtask != operator.subtask and each.busy is not None
    ]
    if not others:
        return ""
    middle = sorted(others)[len(others) // 2]
    if middle > SKEWED * operator.busy:
        return ""
    reads = any(each.stage == operator.stage and each.sources for each in snapshot.stages)
    uneven = "its splits have more rows than others" if reads else "its keys have more rows than others"
    return f", the other subtasks {_percent(middle)} %: {uneven}"


def _who_waits(snapshot: Snapshot, operator: OperatorView) -> str:
    """Return how many splits are read no faster than the operator takes their rows."""
    stage = next((each for each in snapshot.stages if each.stage == operator.stage), None)
    if stage is None:
        return ""
    if not stage.sources:
        waiting = sum(each.num_splits for each in snapshot.sources)
    else:
        waiting = sum(
            split.subtask == operator.subtask
            for source in snapshot.sources
            if source.uid in stage.sources
            for split in source.splits
        )
    return f"; {_counted(waiting, 'split')} {'waits' if waiting == 1 else 'wait'} for it" if waiting else ""


def _back_pressure(snapshot: Snapshot) -> Iterator[Why]:
    """Yield the chain of stages that wait for room, down to the stage that they wait for."""
    stages = {each.stage: each for each in snapshot.stages}
    pressed = [each.stage for each in snapshot.stages if (each.back_pressured or 0.0) >= BACK_PRESSURED]
    after = {stage: [each.stage for each in snapshot.stages if stage in each.inputs] for stage in stages}
    for first in pressed:
        if any(stage in pressed for stage in stages[first].inputs):
            continue  # part of the chain of that one
        chain = [first]
        while following := [stage for stage in after[chain[-1]] if stage in pressed]:
            chain.append(following[0])
        causes = [stages[stage] for stage in after[chain[-1]]]
        sinks = stages[chain[-1]].sinks
        share = _percent(stages[first].back_pressured or 0.0)
        way = " and ".join(f"stage {stage}" for stage in chain)
        text = f"{way} {'waits' if len(chain) == 1 else 'wait'} {share} % of the time for"
        if causes:
            cause = max(causes, key=lambda each: each.busy or 0.0)
            yield _slow_stage(snapshot, f"{text} stage {cause.stage}", cause)
        elif sinks:
            yield _why("warning", f"{text} the sink {sinks[0]}", "sink", uid=sinks[0], stage=chain[-1])


def _slow_stage(snapshot: Snapshot, text: str, stage: StageView) -> Why:
    """Return that others wait for a stage: its busiest subtask, and the operator that takes most of its time."""
    own = [each for each in snapshot.subtasks if each.stage == stage.stage and each.busy is not None]
    busiest: SubtaskView | None = max(own, key=lambda each: each.busy or 0.0, default=None)
    if busiest is None:
        return _why("warning", text, "operator", stage=stage.stage)
    text += f", where slot {busiest.slot} is busy {_percent(busiest.busy or 0.0)} %"
    uid = max(busiest.operators, key=lambda each: busiest.operators[each], default=None)
    if uid is not None and busiest.operators[uid] >= 0.5 * (busiest.busy or 0.0):
        text += f", most of it in `{_names(snapshot)[uid]}`"
    else:
        uid = None
    return _why("warning", text, "operator", uid=uid, stage=stage.stage, subtask=busiest.subtask, slot=busiest.slot)


def _alignment(snapshot: Snapshot) -> Iterator[Why]:
    sources = {each.uid: each for each in snapshot.sources}
    for group in snapshot.alignment_groups:
        if not group.paused_splits or group.slowest is None:
            continue
        if group.paused_splits >= group.num_splits:  # the slowest here waits, too
            text = f"all splits of the alignment group {group.group} wait for another query of the group"
            yield _why("warning", text, "split", group=group.group)
            continue
        others = f"{'another' if group.paused_splits == 1 else group.paused_splits} {_back(group.paused_splits)}"
        split, source = group.slowest.split, group.slowest.source
        name = f"split {split}" if len(sources) < 2 else f"split {split} of {source}"
        if group.watermark_ms is None:
            text = f"{name} has no watermark yet and holds {others}"
        elif group.drift_ms is None:
            text = f"{name} holds {others}"
        else:
            text = f"{name} lags by {span(group.drift_ms)} and holds {others}"
        text += _empty(sources.get(source), split)
        yield _why("warning", text, "split", source=source, split=split, group=group.group)


def _back(count: int) -> str:
    return "back" if count == 1 else "others back"


def _empty(source: SourceView | None, split: str) -> str:
    """Return that a split has nothing more to read, which only an idle time-out helps."""
    lag = next((each.lag for each in source.splits if each.id == split), None) if source is not None else None
    return ": it has no rows left to read; scan.watermark.idle-timeout would let the others go on" if lag == 0 else ""


def _why(severity: str, text: str, kind: str, **about: Any) -> Why:
    return Why(severity=severity, text=text, about=About(kind=kind, **about))


def _percent(share: float) -> int:
    return round(100 * share)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:10]))
    return shown + (f" and {len(numbers) - 10} more" if len(numbers) > 10 else "")
