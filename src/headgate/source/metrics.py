"""What a connector lets its users see of itself: counters and gauges by name, of a reader, its splits, an enumerator.

Never: take a lock, or call a gauge's function, where rows are read: a counter is added to, and that is all.

A continuous query collects the figures about once a second. They are in ``query.snapshot()["sources"][i]["metrics"]``,
and for exporters: those of all readers of a source together. In batches and micro-batches they go nowhere.

Follows FLIP-27, "Source Reader" (``metricGroup``) and FLIP-33, whose names stand for the same things everywhere:
``pendingRecords``, ``numBytesIn``, ``numRecordsInErrors``, ``currentFetchEventTimeLag`` and so on.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Literal

import msgspec

from headgate.errors import ConnectorContractError
from headgate.event_log import describe

_log = logging.getLogger(__name__)

PENDING_RECORDS = "pendingRecords"
"""How many rows there are after what was emitted: of a split, it is the split's ``lag`` in the snapshot."""
NUM_BYTES_IN = "numBytesIn"
"""How many bytes were read, as they came: the source's ``bytesRead`` in the snapshot."""
CURRENT_FETCH_EVENT_TIME_LAG = "currentFetchEventTimeLag"
"""How much later than its event time the last row was fetched, in milliseconds."""

MOST_NAMES = 64
"""How many metrics a connector may register. Each is a series in the system that stores them."""
MOST_SPLITS = 1000
"""How many splits of a reader have metrics of their own; those of more are not collected."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

Aggregate = Literal["sum", "max"]
"""What one figure is made of those of several splits and readers with."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What a metric was when it was collected.

    Parameters
    ----------
    kind
        ``counter`` or ``gauge``.
    value
        A finite number.
    aggregate
        How it is put together with those of others.
    """

    kind: Literal["counter", "gauge"]
    value: float
    aggregate: Aggregate = "sum"


class Counter:
    """A count that only grows.

    `inc` may be called on any thread, fetchers' too, and takes no lock: each thread adds to a number of its own.
    """

    __slots__ = ("_by_thread",)

    def __init__(self) -> None:
        self._by_thread: dict[int, int] = {}

    def inc(self, count: int = 1) -> None:
        """Add to it. Cheap, but not so cheap that it should be called for each row."""
        thread = threading.get_ident()
        self._by_thread[thread] = self._by_thread.get(thread, 0) + count

    @property
    def count(self) -> int:
        """What all threads have added up to now."""
        return sum(self._by_thread.copy().values())


class _Gauge(msgspec.Struct):
    function: Callable[[], float | None]
    aggregate: Aggregate
    has_failed: bool = False


class SplitMetricGroup:
    """The metrics of one split; see `MetricGroup.split`."""

    def __init__(self, group: MetricGroup) -> None:
        self._group = group
        self._gauges: dict[str, _Gauge] = {}

    def gauge(self, name: str, function: Callable[[], float | None], aggregate: Aggregate = "sum") -> None:
        """Let a number of the split be asked for: `MetricGroup.gauge`.

        ``pendingRecords`` is shown with the split; of all others only one figure for the whole source is.
        """
        self._group._check(name, "gauge", aggregate)
        self._gauges[name] = _Gauge(function, aggregate)


class MetricGroup:
    """What a reader or an enumerator registers its metrics with.

    A reader has it in `SourceReaderContext.metric_group`, an enumerator in `SplitEnumeratorContext.metric_group`. All
    methods may be called on any thread at any time; best is once, at construction, or where splits are added.

    Examples
    --------
    >>> group = MetricGroup()
    >>> requests = group.counter("requests")
    >>> requests.inc()
    >>> group.split("s").gauge("pendingRecords", lambda: 12)
    >>> {name: each.value for name, each in group.collect(["s"]).metrics.items()}
    {'pendingRecords': 12, 'requests': 1}
    """

    def __init__(self) -> None:
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, _Gauge] = {}
        self._splits: dict[str, SplitMetricGroup] = {}
        self._shapes: dict[str, tuple[str, Aggregate]] = {}  # by name, splits' too

    @property
    def is_empty(self) -> bool:
        """Whether nothing was registered."""
        return not self._shapes

    def counter(self, name: str) -> Counter:
        """Return the counter of this name, from 0 on where there was none.

        Raises
        ------
        ConnectorContractError
            The name cannot be one, stands for a gauge, or is one too many.
        """
        self._check(name, "counter", "sum")
        return self._counters.setdefault(name, Counter())

    def gauge(self, name: str, function: Callable[[], float | None], aggregate: Aggregate = "sum") -> None:
        """Let a number be asked for, about once a second.

        Parameters
        ----------
        name
            FLIP-33's where it has one. The same name again replaces the function.
        function
            Returns the number; None, where there is none now. It is called on the reader's thread (the enumerator's),
            while no other method is, so it may look at whatever belongs to that thread; of what another thread writes
            it may read single attributes. It must not block. If it raises, that is logged once, and there is no number.
        aggregate
            What the source's figure is made of those of its readers with: ``sum``, or ``max`` where a sum means
            nothing, as for a time.

        Raises
        ------
        ConnectorContractError
            The name cannot be one, stands for something else, or is one too many.
        """
        self._check(name, "gauge", aggregate)
        self._gauges[name] = _Gauge(function, aggregate)

    def split(self, split_id: str) -> SplitMetricGroup:
        """Return the metrics of a split. They end with the split; of at most `MOST_SPLITS` of a reader any are kept.

        An enumerator has no splits here: they are with readers.
        """
        found = self._splits.get(split_id)
        if found is None:
            found = SplitMetricGroup(self)
            if len(self._splits) < MOST_SPLITS:
                self._splits[split_id] = found
        return found

    def collect(self, split_ids: Collection[str] = ()) -> Collected:
        """Return all figures, on the thread whose gauges they are; called by who runs the reader, and by tests.

        Parameters
        ----------
        split_ids
            The splits at hand. The metrics of others are dropped.
        """
        kept = set(split_ids)
        for gone in [each for each in self._splits.copy() if each not in kept]:
            self._splits.pop(gone, None)
        found = {name: Measurement(kind="counter", value=each.count) for name, each in self._counters.copy().items()}
        found |= _measured(self._gauges.copy(), "")
        pending: dict[str, int] = {}
        of_splits: list[Mapping[str, Measurement]] = []
        for split_id, split in self._splits.copy().items():
            measured = _measured(split._gauges.copy(), f" of split {split_id!r}")
            of_splits.append(measured)
            if PENDING_RECORDS in measured:
                pending[split_id] = round(measured[PENDING_RECORDS].value)
        of_all = aggregated(of_splits)
        return Collected(metrics={**of_all, **found}, pending_records=pending)

    def _check(self, name: str, kind: str, aggregate: Aggregate) -> None:
        shape = (kind, aggregate)
        if self._shapes.get(name) == shape:
            return
        if aggregate not in ("sum", "max"):
            raise _broken(kind, f"The metric {name!r} has the aggregate {aggregate!r}. Use sum or max.")
        if _NAME.fullmatch(name) is None:
            raise _broken(
                kind,
                f"The metric {name!r} cannot have this name. Use A-Z, a-z, 0-9 and _, and begin with A-Z or a-z.",
            )
        if name in self._shapes:
            raise _broken(
                kind, f"The metric {name!r} is registered as {_words(shape)}, but it is {_words(self._shapes[name])}."
            )
        if len(self._shapes) >= MOST_NAMES:
            raise _broken(
                kind,
                f"The metric {name!r} is one too many: a connector has at most {MOST_NAMES}. In place of names "
                "that are made of data (a topic, a host) register one for each split: metric_group.split(split_id).",
            )
        self._shapes[name] = shape


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What `MetricGroup.collect` found.

    Parameters
    ----------
    metrics
        By name; those of splits put together, unless the reader itself has one of the same name.
    pending_records
        By split id, for those that know it.
    """

    metrics: dict[str, Measurement] = {}
    pending_records: dict[str, int] = {}


def aggregated(of: Collection[Mapping[str, Measurement]]) -> dict[str, Measurement]:
    """Return one measurement for each name of those of several splits, or readers.

    Examples
    --------
    >>> slow, fast = Measurement(kind="gauge", value=5, aggregate="max"), Measurement(kind="gauge", value=3)
    >>> aggregated([{"lagMs": slow}, {"lagMs": slow}, {"waiting": fast}, {"waiting": fast}])["waiting"].value
    6
    """
    made: dict[str, Measurement] = {}
    for name, each in ((name, each) for measured in of for name, each in measured.items()):
        known = made.get(name)
        if known is None:
            made[name] = each
        else:
            value = max(known.value, each.value) if each.aggregate == "max" else known.value + each.value
            made[name] = msgspec.structs.replace(known, value=value)
    return made


def _measured(gauges: Mapping[str, _Gauge], of: str) -> dict[str, Measurement]:
    return {
        name: Measurement(kind="gauge", value=value, aggregate=each.aggregate)
        for name, each in gauges.items()
        for value in _value(name, each, of)
    }


def _value(name: str, gauge: _Gauge, of: str) -> Iterator[float]:
    try:
        value = gauge.function()
        if value is not None and math.isfinite(value):
            yield value
    except Exception as error:
        if not gauge.has_failed:
            gauge.has_failed = True
            _log.warning("the gauge %r%s raised, and has no value: %s", name, of, describe(error))


def _broken(method: str, text: str) -> ConnectorContractError:
    return ConnectorContractError(text, method=method)


def _words(shape: tuple[str, str]) -> str:
    kind, aggregate = shape
    return "a counter" if kind == "counter" else f"a gauge with the aggregate {aggregate!r}"
