"""Fixes what each micro-batch of Structured Streaming reads, and writes it into offsets.

Never: let anything but an offset decide what a batch reads. A plan that is not in an offset has not happened; one that
is can be replayed by any process at any time with the same rows.

A split's way: assigned by the enumerator -> in progress -> planned in ranges, batch by batch -> finished. All of it
is in each end offset, so that a restart from any of them continues exactly there (FLIP-27: a split is either part
of the enumerator's state or of a reader's; here the planner is the reader).

`Trigger.AvailableNow` freezes discovery and gives every split in progress a stop; `SplitInProgress.then` remembers how
it continues after that stop, for a later run.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from headgate.errors import ConnectorContractError, CorruptStateError, OptionError, UnsupportedOperationError
from headgate.microbatch.alignment.planning import AlignedPlan, AlignedPlans
from headgate.microbatch.offsets import INITIAL, Offset, SplitInProgress, offset_serializer
from headgate.microbatch.planner import VIRTUAL_READER, PlannerContext, check_supported
from headgate.microbatch.state_store import StateStore
from headgate.source import (
    Boundedness,
    PlanLimits,
    PlannedRange,
    Source,
    Split,
    SplitEnumerator,
    SupportsBoundedPlans,
    SupportsLag,
    SupportsSplitReassignmentOnRecovery,
    VersionedSerializer,
)

logger = logging.getLogger(__name__)

LARGEST_OFFSET_BYTES = 1_000_000
"""An offset above this size is an error that names ``stateLocation``."""
PLAN_BYTES = 400_000
"""Splits that are pulled for a batch have this size in the offset at most, where there are limits at all."""
FILES_PER_BATCH = 1000
"""Files in a micro-batch at most, where neither a limit nor ``stateLocation`` is set."""
READ_AHEAD_MS = 1000
"""How long a source without known end positions may read ahead per split while a batch is planned."""


Group = Callable[[Sequence[Split], Mapping[str, Any]], Sequence[Sequence[Split]]]


def _one_each(splits: Sequence[Split], grouping: Mapping[str, Any]) -> list[list[Split]]:
    return [[split] for split in splits]


@dataclass
class _InProgress:
    split: Split
    then: Split | None = None


class StreamPlanner:
    """Plans the micro-batches of one query in one process.

    Parameters
    ----------
    source
        What is read. Must support bounded plans.
    schema
        The columns that are read.
    group
        Says which ranges share a task, and may cut them. The default is a task for each range.
    grouping
        What ``group`` needs to know beside the ranges, as JSON; kept in offsets, and given back by them.
    alignment
        Plans the ranges of a source that belongs to an alignment group.
    """

    def __init__(
        self,
        source: Source[Any, Any],
        schema: pa.Schema,
        group: Group = _one_each,
        grouping: Mapping[str, Any] | None = None,
        alignment: AlignedPlans | None = None,
    ) -> None:
        check_supported(source, Boundedness.CONTINUOUS_UNBOUNDED, "spark.readStream")
        if not isinstance(source, SupportsBoundedPlans):
            raise UnsupportedOperationError(
                f"{source.name} cannot be read by spark.readStream: it does not implement plan_ranges "
                "(SupportsBoundedPlans), which fixes what a micro-batch reads.",
                source=source.name,
                operation="spark.readStream",
            )
        self._source = source
        self._plans: SupportsBoundedPlans[Any] = source
        self._schema = schema
        self._group = group
        self._grouping = dict(grouping or {})
        self._alignment = alignment
        self._location: str | None = source.options["stateLocation"]
        self._freezing = False
        self._context: PlannerContext | None = None
        self._enumerator: SplitEnumerator[Any, Any] | None = None
        self._store: StateStore | None = None
        self._state_id: str | None = None
        self._in_progress: dict[str, _InProgress] = {}
        self._at_target: set[str] = set()
        self._second_targets: dict[str, _InProgress] = {}
        self._after_stops: dict[str, Split] = {}
        self._number = 0
        self._planned_ms: int | None = None
        self._state_at_start: Any = None
        self._last: dict[str, Any] | None = None
        self._recent: list[dict[str, Any]] = []

    def freeze(self) -> None:
        """Read what is there now and nothing that comes later, from the next call on (``AvailableNow``)."""
        self._freezing = True

    def plan(self, start: Mapping[str, Any], limits: PlanLimits, now_ms: int) -> dict[str, Any]:
        """Return the offset after the next micro-batch, or ``start`` itself when there is nothing to read.

        Parameters
        ----------
        start
            The offset after the previous batch, or `INITIAL`.
        limits
            How much the batch may hold.
        now_ms
            The time, in milliseconds.

        Raises
        ------
        OptionError
            An option may not have changed since ``start`` was written, or the offset would grow too large.
        """
        start = dict(start)
        if self._last != start:
            self._restore(start, now_ms)
        _, enumerator = self._running()
        self._discover(now_ms)
        self._pull(limits, now_ms)
        plan = self._plan_batch(limits, now_ms)
        ranges = plan.ranges
        first = start == INITIAL and self._discovered()
        is_enough = bool(ranges) and (plan.is_cut or not self._waits_for_more(ranges, limits, now_ms))
        if not (first or plan.must_go_on or is_enough):
            return start
        finished = [planned.split.split_id for planned in ranges if self._advance(planned)]
        if finished:
            enumerator.notify_splits_finished(finished)
        if self._alignment is not None:
            self._alignment.planned(self._unfinished(), ranges, now_ms, frozen=self._freezing)
        self._number += 1
        self._planned_ms = now_ms
        offset = Offset(
            source=self._source.name,
            options=msgspec.to_builtins(self._source.options.fixed),
            number=self._number,
            enumerator=self._enumerator_state(),
            splits=[
                SplitInProgress(
                    split=self._write(each.split), then=None if each.then is None else self._write(each.then)
                )
                for each in self._in_progress.values()
            ],
            plan=[self._write(planned.split) for planned in ranges],
            grouping=self._grouping,
            state_id=self._state_id,
            after_stops=[self._write(split) for split in self._after_stops.values()] or msgspec.UNSET,
            event_times=(self._alignment.event_times() if self._alignment is not None else {}) or msgspec.UNSET,
        )
        end = self._encode(offset)
        self._last = end
        self._recent.append(end)
        return end

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any], now_ms: int) -> list[list[Split]]:
        """Return what each task of the micro-batch between two offsets reads, the same however often it is asked."""
        if dict(start) == dict(end):
            return []
        if self._freezing and self._context is None:
            # AvailableNow replays a batch first: what arrives meanwhile is not part of this run.
            self._restore(dict(end), now_ms)
            self._discover(now_ms)
        if dict(end) not in self._recent:
            self._recent.append(dict(end))
        offset = self._decode(dict(end))
        plan = [self._read(each) for each in offset.plan]
        grouping = self._grouping if isinstance(offset.grouping, msgspec.UnsetType) else offset.grouping
        return [list(task) for task in self._group(plan, grouping)]

    def committed(self, end: Mapping[str, Any]) -> None:
        """Note that Spark will not go back before ``end``: delete files that only older offsets named."""
        end = dict(end)
        if end == INITIAL:
            return
        if end in self._recent:
            del self._recent[: self._recent.index(end)]
        if self._store is not None:
            self._store.prune([end, *self._recent])
        if self._enumerator is not None:
            self._enumerator.notify_checkpoint_complete(self._decode(end).number)

    def lag(self, now_ms: int) -> dict[str, Any] | None:
        """Return the query's lag in the source's own figures; None before the first plan."""
        if self._enumerator is None:
            return None
        figures: dict[str, Any] = {}
        if isinstance(self._source, SupportsLag):
            figures.update(self._source.lag([each.split for each in self._in_progress.values()], now_ms))
        backlog = getattr(self._enumerator, "backlog", None)
        if backlog is not None:
            for name, value in backlog().items():
                figures[name] = figures.get(name, 0) + value
        if self._alignment is not None:
            figures["alignment"] = self._alignment.figures(now_ms, frozen=self._freezing)
        return figures

    @property
    def learns(self) -> bool:
        """Whether later plans are shaped by what tasks say of the event times that they read."""
        return self._alignment is not None and self._alignment.learns

    def close(self) -> None:
        """Close the enumerator."""
        if self._enumerator is not None:
            self._enumerator.close()
            self._enumerator = None

    # -- restoring ------------------------------------------------------------------------------------------------

    def _restore(self, start: dict[str, Any], now_ms: int) -> None:
        """Begin afresh, or continue from ``start``."""
        self.close()
        context = PlannerContext(self._source.name, Boundedness.CONTINUOUS_UNBOUNDED, self._schema, now_ms)
        self._in_progress, self._at_target, self._number, self._state_id = {}, set(), 0, None
        self._after_stops, self._second_targets = {}, {}
        reported: list[Split] = []
        event_times: Mapping[str, int] = {}
        if start == INITIAL:
            self._open_store(None)
            enumerator = self._source.create_enumerator(context)
        else:
            offset = self._decode(start)
            self._number, self._state_id = offset.number, offset.state_id
            self._open_store(offset.state_id)
            for each in offset.splits:
                split = self._read(each.split)
                then = None if each.then is None else self._read(each.then)
                self._in_progress[split.split_id] = _InProgress(split, then)
            event_times = offset.event_times or {}
            for data in offset.after_stops or ():
                split = self._read(data)
                self._after_stops[split.split_id] = split
            state = self._source.state_serializer.from_json(offset.enumerator)
            enumerator = self._source.restore_enumerator(context, state)
            if isinstance(self._source, SupportsSplitReassignmentOnRecovery):
                reported = [each.split for each in self._in_progress.values()]
        self._context, self._enumerator = context, enumerator
        enumerator.start()
        self._state_at_start = self._enumerator_state() if start == INITIAL else None
        if reported:
            self._reassign(reported)
        else:
            context.register_reader()
            enumerator.add_reader(VIRTUAL_READER)
        self._forget_dropped()
        if self._alignment is not None:
            self._alignment.restore(event_times)
        self._last = start

    def _reassign(self, reported: Sequence[Split]) -> None:
        """Let the enumerator decide which of the restored splits are read on (FLIP-537)."""
        context, enumerator = self._running()
        before, self._in_progress = self._in_progress, {}
        # The enumerator may assign a split again later; what follows its stop must not be forgotten until then.
        self._after_stops.update((name, each.then) for name, each in before.items() if each.then is not None)
        context.register_reader(reported)
        enumerator.add_reader(VIRTUAL_READER)
        self._take_assigned()
        waiting = sorted(before.keys() - self._in_progress.keys())
        if waiting:
            logger.warning("%s has not assigned these splits again yet: %s", self._source.name, ", ".join(waiting))

    def _forget_dropped(self) -> None:
        """Keep what follows a stop only for splits that the enumerator may assign: its state names those.

        Should another split have the id of a dropped one later, a topic that is named again, it has no such stop.
        """
        if self._after_stops:
            named = set(_texts(self._enumerator_state()))
            self._after_stops = {name: split for name, split in self._after_stops.items() if name in named}

    def _open_store(self, state_id: str | None) -> None:
        if self._location is not None:
            self._state_id = state_id or uuid.uuid4().hex
            self._store = StateStore(self._location, self._state_id)
        elif state_id is not None:
            raise OptionError(
                f"{self._source.name}: this query was started with the option 'stateLocation' and keeps files "
                "there. Set it to the same folder again.",
                option="stateLocation",
                value=None,
            )

    def _running(self) -> tuple[PlannerContext, SplitEnumerator[Any, Any]]:
        assert self._context is not None and self._enumerator is not None, "not restored"
        return self._context, self._enumerator

    def _enumerator_state(self) -> Any:
        _, enumerator = self._running()
        return self._source.state_serializer.to_json(enumerator.snapshot_state(self._number))

    # -- planning -------------------------------------------------------------------------------------------------

    def _discover(self, now_ms: int) -> None:
        context, _ = self._running()
        context.run_due(now_ms, periodic_too_soon=self._freezing and not context.frozen)
        self._take_assigned()
        if self._freezing and not context.frozen:
            context.frozen = True
            self._set_targets(list(self._in_progress), now_ms)

    def _take_assigned(self) -> list[str]:
        context, _ = self._running()
        new = []
        for split in context.assigned:
            if split.split_id in self._in_progress:
                raise ConnectorContractError(
                    f"The enumerator of {self._source.name} assigned the split {split.split_id!r} although it is "
                    "being read.",
                    connector=self._source.name,
                    method="assign_splits",
                    split=split.split_id,
                )
            self._in_progress[split.split_id] = _InProgress(split, self._after_stops.pop(split.split_id, None))
            new.append(split.split_id)
        context.assigned.clear()
        return new

    def _pull(self, limits: PlanLimits, now_ms: int) -> None:
        """Ask the enumerator for splits until there is enough work for a batch."""
        context, enumerator = self._running()
        limited = limits != PlanLimits() and self._store is None
        budget = _Budget(limits, self._source.split_serializer if limited else None)
        for each in self._in_progress.values():
            budget.add(each.split)
        pulled: list[str] = []
        while not budget.spent or self._has_earlier_unassigned(now_ms):
            enumerator.handle_split_request(VIRTUAL_READER, None)
            context.run_due(now_ms)
            new = self._take_assigned()
            if not new:
                break
            pulled += new
            for split_id in new:
                budget.add(self._in_progress[split_id].split)
        if context.frozen and pulled:
            self._set_targets(pulled, now_ms)

    def _has_earlier_unassigned(self, now_ms: int) -> bool:
        """Whether what is not assigned yet holds back all that is: it is pulled, whatever there is to read besides."""
        _, enumerator = self._running()
        unassigned_ms = None if self._alignment is None else enumerator.unassigned_event_time_ms()
        if self._alignment is None or unassigned_ms is None:
            return False
        return self._alignment.is_earliest(unassigned_ms, self._unfinished(), now_ms)

    def _unfinished(self) -> list[Split]:
        """Return the splits in progress that are not at their target: what this run may still read."""
        return [each.split for name, each in self._in_progress.items() if name not in self._at_target]

    def _set_targets(self, split_ids: Sequence[str], now_ms: int) -> None:
        """Give each split a stop where its data ends now.

        One that has the stop of an earlier run, which ended before it was there, gets its stop after that one.
        """
        chosen = [self._in_progress[name] for name in split_ids]
        splits = [each.split for each in chosen if each.then is None]
        self._at_target.update(split.split_id for split in splits)
        for planned in self._plans.plan_ranges(splits, PlanLimits(), now_ms) if splits else ():
            split_id = planned.split.split_id
            self._at_target.discard(split_id)
            if planned.rest is not None:
                self._in_progress[split_id] = _InProgress(planned.split, planned.rest)
        continued = [each.then for each in chosen if each.then is not None]
        for planned in self._plans.plan_ranges(continued, PlanLimits(), now_ms) if continued else ():
            self._second_targets[planned.split.split_id] = _InProgress(planned.split, planned.rest)

    def _discovered(self) -> bool:
        """Whether something was found, be it that there is nothing, that a restart must not resolve once more."""
        return bool(self._in_progress) or self._enumerator_state() != self._state_at_start

    def _waits_for_more(self, ranges: Sequence[PlannedRange[Split]], limits: PlanLimits, now_ms: int) -> bool:
        """Whether a plan is too small yet. Nothing waits for ever under `Trigger.AvailableNow`."""
        if limits.min_rows is None or self._freezing or self._planned_ms is None:
            return False
        if limits.max_delay_ms is not None and now_ms - self._planned_ms >= limits.max_delay_ms:
            return False
        rows = [planned.split.remaining().rows for planned in ranges]
        return None not in rows and sum(each or 0 for each in rows) < limits.min_rows

    def _plan_batch(self, limits: PlanLimits, now_ms: int) -> AlignedPlan:
        frozen = self._running()[0].frozen
        if not frozen:
            limits = msgspec.structs.replace(limits, max_planning_ms=READ_AHEAD_MS)
        splits = self._unfinished()

        def plan_ranges(splits: Sequence[Split], limits: PlanLimits) -> Sequence[PlannedRange[Split]]:
            return self._plan_ranges(splits, limits, now_ms)

        if self._alignment is None:
            return AlignedPlan(plan_ranges(splits, limits))
        return self._alignment.plan(splits, limits, plan_ranges, now_ms, frozen=frozen)

    def _plan_ranges(self, splits: Sequence[Split], limits: PlanLimits, now_ms: int) -> Sequence[PlannedRange[Split]]:
        ranges = self._plans.plan_ranges(splits, limits, now_ms) if splits else ()
        ids = [planned.split.split_id for planned in ranges]
        if len(set(ids)) != len(ids) or not {split.split_id for split in splits} >= set(ids):
            raise ConnectorContractError(
                f"{self._source.name}.plan_ranges planned a split twice, or one it was not given: {ids}.",
                connector=self._source.name,
                method="plan_ranges",
            )
        return ranges

    def _advance(self, planned: PlannedRange[Split]) -> bool:
        """Move a split past what was planned of it; return whether it is finished."""
        split_id = planned.split.split_id
        each = self._in_progress[split_id]
        if planned.rest is not None:
            each.split = planned.rest
        elif split_id in self._second_targets:
            self._in_progress[split_id] = self._second_targets.pop(split_id)
        elif each.then is not None:
            self._in_progress[split_id] = _InProgress(each.then)
            if self._running()[0].frozen:
                self._at_target.add(split_id)
        else:
            del self._in_progress[split_id]
            return True
        return False

    # -- offsets --------------------------------------------------------------------------------------------------

    def _write(self, split: Split) -> dict[str, Any]:
        return self._source.split_serializer.to_json(split)

    def _read(self, data: Any) -> Split:
        split: Split = self._source.split_serializer.from_json(data)
        return split

    def _encode(self, offset: Offset) -> dict[str, Any]:
        data = offset_serializer.to_json(offset)
        if self._store is not None:
            data = self._store.move_out(data)
        text = json.dumps(data, sort_keys=True)
        if len(text) > LARGEST_OFFSET_BYTES:
            raise OptionError(
                f"{self._source.name}: the offset of this micro-batch would have {len(text):,} bytes, more than "
                f"Spark's offset log should hold ({LARGEST_OFFSET_BYTES:,}). Set the option 'stateLocation' to a "
                "folder that the driver can write and restart; it may be added to a running query's checkpoint.",
                option="stateLocation",
                value=None,
            )
        encoded: dict[str, Any] = json.loads(text)
        return encoded

    def _decode(self, data: dict[str, Any]) -> Offset:
        state_id = data.get("state_id")
        if self._store is None and state_id is not None:
            self._open_store(state_id)
        if self._store is not None:
            data = self._store.bring_in(data)
        offset = offset_serializer.from_json(data)
        if offset.source != self._source.name:
            raise CorruptStateError(
                f"The checkpoint belongs to the source {offset.source}, not to {self._source.name}. Use another "
                "'checkpointLocation'.",
                what="an offset",
                expected=self._source.name,
                found=offset.source,
            )
        now = msgspec.to_builtins(self._source.options.fixed)
        for name in sorted(now.keys() | offset.options.keys()):
            if now.get(name) != offset.options.get(name):
                raise OptionError(
                    f"{self._source.name}: the option {name!r} was {offset.options.get(name)!r} when this query "
                    f"started and may not change; now it is {now.get(name)!r}. Set it back, or start with a new "
                    "'checkpointLocation'.",
                    option=name,
                    value=now.get(name),
                )
        return offset


def _texts(data: Any) -> Iterator[str]:
    """Yield all texts in a JSON value, names of fields included."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for name, value in data.items():
            yield name
            yield from _texts(value)
    elif isinstance(data, Sequence):
        for value in data:
            yield from _texts(value)


class _Budget:
    """How much work is at hand for a batch, against its limits."""

    def __init__(self, limits: PlanLimits, serializer: VersionedSerializer[Any] | None) -> None:
        self._limits = limits
        self._serializer = serializer
        self._rows = self._bytes = self._plan_bytes = 0
        self._files: set[str] = set()

    def add(self, split: Split) -> None:
        if self._serializer is not None:
            self._plan_bytes += len(self._serializer.serialize(split))
        left = split.remaining()
        self._rows += left.rows or 0
        self._bytes += left.bytes or 0
        if left.file is not None:
            self._files.add(left.file)

    @property
    def spent(self) -> bool:
        limits = self._limits
        return (
            self._plan_bytes >= PLAN_BYTES
            or (limits.max_rows is not None and self._rows >= limits.max_rows)
            or (limits.max_bytes is not None and self._bytes >= limits.max_bytes)
            # One file more than allowed, so that all splits of the last one are seen.
            or (limits.max_files is not None and len(self._files) > limits.max_files)
        )
