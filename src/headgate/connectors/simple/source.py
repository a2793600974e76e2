"""Makes a `Source` of a `SimpleSource` class: its enumerator, its reader, and its stops for micro-batches.

Never: keep the class anywhere but in the adapter itself: one that is defined in a notebook travels with it.

A stop is always a position that was seen: what the author's ``latest`` returned, or where a read-ahead in the planner
came to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from headgate.connectors.simple.enumerator import SimpleEnumerator
from headgate.connectors.simple.split import SPLIT_SERIALIZER, STATE_SERIALIZER, SimpleSplit, SimpleState
from headgate.connectors.simple.split_reader import SimpleSplitReader, monotonic_ms
from headgate.connectors.simple.user_code import SimpleOptions, UserSource
from headgate.errors import ConnectorContractError
from headgate.readers import MultiplexedReader
from headgate.source.enumerator import SplitEnumerator, SplitEnumeratorContext
from headgate.source.options import Options, OptionSpec, duration_ms, text
from headgate.source.reader import SourceReader, SourceReaderContext
from headgate.source.serialization import VersionedSerializer
from headgate.source.simple import SimpleSource
from headgate.source.source import PlanLimits, PlannedRange, Source

SIMPLE_OPTIONS = (
    OptionSpec("pollInterval", duration_ms, 1000, "time until an exhausted split is read again"),
    OptionSpec("discovery.interval", duration_ms, 10_000, "time from one listing of splits to the next"),
)


def adapt(user_class: type[SimpleSource]) -> Callable[[Mapping[str, str]], Source[SimpleSplit, SimpleState]]:
    """Return what makes a source of options, as the class of any other source does."""
    return partial(SimpleSourceAdapter, user_class)


class SimpleSourceAdapter(Source[SimpleSplit, SimpleState]):
    """The source that a `SimpleSource` class describes.

    Parameters
    ----------
    user_class
        The author's class.
    options
        What the user set.
    clock_ms
        A monotonic time in milliseconds, by which read-ahead ends and splits are polled again.

    Raises
    ------
    ConnectorContractError
        The class lacks something.
    """

    split_serializer: ClassVar[VersionedSerializer[SimpleSplit]] = SPLIT_SERIALIZER
    state_serializer: ClassVar[VersionedSerializer[SimpleState]] = STATE_SERIALIZER

    def __init__(
        self, user_class: type[SimpleSource], options: Mapping[str, str], clock_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        _check_class(user_class)
        declared = user_class.option_specs
        specs = (*SIMPLE_OPTIONS, *((OptionSpec("*", text),) if declared is None else declared))
        self.name = user_class.name  # type: ignore[misc]  # one adapter for all names
        self.options = Options.parse(user_class.name, specs, options)
        self._user_class = user_class
        self._clock_ms = clock_ms
        self._turn = 0
        self._quiet_until_ms: dict[str, int] = {}

    def schema(self) -> str:
        """Return what the class declares."""
        return self._user_class.schema

    def create_enumerator(
        self, context: SplitEnumeratorContext[SimpleSplit]
    ) -> SplitEnumerator[SimpleSplit, SimpleState]:
        """Return an enumerator that lists the splits afresh."""
        return self._enumerator(context, None)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[SimpleSplit], state: SimpleState
    ) -> SplitEnumerator[SimpleSplit, SimpleState]:
        """Return an enumerator that knows what was listed before."""
        return self._enumerator(context, state)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[SimpleSplit]:
        """Return a reader with an instance of the class of its own."""
        return MultiplexedReader(
            lambda: SimpleSplitReader(
                self.name,
                partial(self._user_source, context.schema),
                self.options["pollInterval"],
                self._clock_ms,
            ),
            context,
        )

    def plan_ranges(
        self, splits: Sequence[SimpleSplit], limits: PlanLimits, now_ms: int
    ) -> Sequence[PlannedRange[SimpleSplit]]:
        """Find a stop for each split: by the class's ``latest``, or by reading ahead.

        A limit of rows is kept by reading ahead too, because only that counts rows. Of the other limits only
        ``max_planning_ms`` means anything here. A split that had nothing new is left alone for ``pollInterval``: Spark
        plans a hundred times a second while nothing comes.
        """
        began_ms = self._clock_ms()
        if limits.max_planning_ms is not None:
            splits = [split for split in splits if self._quiet_until_ms.get(split.split_id, began_ms) <= began_ms]
        source = self._user_source(None)
        has_latest = hasattr(self._user_class, "latest")
        ranges: dict[str, PlannedRange[SimpleSplit]] = {}
        ahead: list[_ReadAhead] = []
        for split in splits:
            if split.has_stop:
                target: tuple[Any, ...] = (split.stop,)
            else:
                target = (source.latest(split.split_id),) if has_latest else ()
            # A smaller number is an answer older than what was read already, from a replica perhaps.
            nothing_new = target in ((split.position,), (None,)) or _is_less(target, split.position)
            if target and (limits.max_rows is None or nothing_new):
                if split.has_stop or split.finite or not nothing_new:
                    stop = split.position if nothing_new else target[0]
                    ranges[split.split_id] = _range(split, stop, done=split.has_stop or split.finite)
            else:
                ahead.append(_ReadAhead(split, source.read(split.split_id, split.position), target))
        # Another split begins each time, so that a small limit does not always serve the same one.
        self._turn = (self._turn + 1) % max(1, len(ahead))
        _read_ahead([*ahead[self._turn :], *ahead[: self._turn]], limits, self._clock_ms)
        for each in ahead:
            each.batches.close()  # type: ignore[attr-defined]
            done = each.exhausted and (each.split.finite or each.split.has_stop)
            # A read that ended short of a stop which was seen before is planned up to it all the same: the task that
            # reads it reports what is missing.
            stop = each.split.stop if done and each.split.has_stop else each.position
            if stop != each.split.position or done:
                ranges[each.split.split_id] = _range(each.split, stop, done=done)
        quiet_until_ms = began_ms + self.options["pollInterval"]
        self._quiet_until_ms = {
            each: until_ms for each, until_ms in self._quiet_until_ms.items() if until_ms > began_ms
        } | {split.split_id: quiet_until_ms for split in splits if split.split_id not in ranges}
        return [ranges[split.split_id] for split in splits if split.split_id in ranges]

    def _enumerator(
        self, context: SplitEnumeratorContext[SimpleSplit], state: SimpleState | None
    ) -> SplitEnumerator[SimpleSplit, SimpleState]:
        made: list[UserSource] = []

        def list_splits() -> list[str]:
            # Here and not earlier, because the author's constructor may block.
            if not made:
                made.append(self._user_source(None))
            return made[0].splits()

        list_splits.__qualname__ = f"{self._user_class.__name__}.splits"
        return SimpleEnumerator(
            context,
            list_splits,
            discovery_interval_ms=self.options["discovery.interval"],
            finite_splits=self._user_class.finite_splits,
            state=state,
        )

    def _user_source(self, schema: pa.Schema | None) -> UserSource:
        return UserSource(self._user_class, SimpleOptions(self.options), schema)


@dataclass
class _ReadAhead:
    """A split while it is read ahead: ``exhausted`` once nothing more is there, or its target is reached."""

    split: SimpleSplit
    batches: Iterator[tuple[pa.RecordBatch, Any]]
    target: tuple[Any, ...]
    spent_ms: int = 0
    exhausted: bool = False

    def __post_init__(self) -> None:
        self.position = self.split.position


def _read_ahead(splits: Sequence[_ReadAhead], limits: PlanLimits, clock_ms: Callable[[], int]) -> None:
    """Move each split's position after batches that fit into the limits, one batch of each in turn."""
    rows = 0
    active = list(splits)
    while active:
        for each in list(active):
            began_ms = clock_ms()
            pair = next(each.batches, None)
            each.spent_ms += clock_ms() - began_ms
            if pair is None:
                each.exhausted = True
                active.remove(each)
                continue
            batch, position = pair
            if limits.max_rows is not None and rows and rows + batch.num_rows > limits.max_rows:
                return
            rows += batch.num_rows
            each.position = position
            each.exhausted = each.target == (position,)
            out_of_time = limits.max_planning_ms is not None and each.spent_ms >= limits.max_planning_ms
            if each.exhausted or out_of_time:
                active.remove(each)


def _is_less(target: tuple[Any, ...], position: Any) -> bool:
    numbers = all(isinstance(each, int | float) for each in (*target, position))
    return bool(target) and numbers and target[0] < position


def _range(split: SimpleSplit, stop: Any, *, done: bool) -> PlannedRange[SimpleSplit]:
    """Return the split up to a stop, and what is left of it."""
    rest = None if done else msgspec.structs.replace(split, position=stop)
    return PlannedRange(split=msgspec.structs.replace(split, has_stop=True, stop=stop), rest=rest)


def _check_class(user_class: type[SimpleSource]) -> None:
    missing = sorted(getattr(user_class, "__abstractmethods__", ()))
    missing += [name for name in ("name", "schema") if not isinstance(getattr(user_class, name, None), str)]
    if missing:
        raise ConnectorContractError(
            f"{user_class.__name__} lacks {', '.join(missing)}. A SimpleSource has the texts 'name' and 'schema' and "
            "the methods 'splits' and 'read'.",
            connector=user_class.__name__,
            method=missing[0],
        )
