"""Decides when a query is rescaled, and to how many slots.

Never: read a clock, rescale anything, or order a rescale while another one is under way.

Follows FLIP-271 and Flink's autoscaler (``job.autoscaler.*`` of the Flink Kubernetes operator). What differs is in
docs/decisions/027-the-autoscaler-is-a-machine.md.

    stabilizing   figures do not count: the query starts, was rescaled or restarted, until it has run for a while
    collecting    figures are collected, until they fill the window
    watching      each figure moves the window, and may be a reason to rescale
    rescaling     a rescale is ordered
    backing off   one failed: the next one waits, each time twice as long
"""

from __future__ import annotations

import msgspec

from headgate.coordinator.autoscaler.evaluation import Evaluation, Window
from headgate.coordinator.autoscaler.figures import FiguresObserved
from headgate.coordinator.autoscaler.options import AutoscalerOptions
from headgate.coordinator.autoscaler.sentences import duration, rows, share, stated
from headgate.coordinator.autoscaler.targets import Target, target_of
from headgate.machine import IGNORED, SAME, Machine, Maybe, Row

_RESTART_MS = 10_000
"""How long a rescale takes, until one was measured."""
_EFFECTIVE = 0.1
"""Which share of the expected capacity a scale-up must bring: Flink's ``scaling.effectiveness.threshold``."""
_MOST_BACK_OFFS = 4
"""How often the time for which a failed rescale is not repeated doubles."""

# What happened, beside `FiguresObserved`.


class RescaleFinished(msgspec.Struct, frozen=True):
    """The query goes on with the number of slots that was ordered."""


class RescaleFailed(msgspec.Struct, frozen=True):
    """It goes on as before, or will not go on at all. ``reason``: why, for people."""

    reason: str


class RescaleYielded(msgspec.Struct, frozen=True):
    """The user rescales or stops the query: that counts, and nothing was done."""


# What is to be done.


class Decision(msgspec.Struct, frozen=True, kw_only=True, rename={"at_ms": "atMs", "before": "from"}):
    """What was decided, for the log and the dashboard.

    Parameters
    ----------
    at_ms
        When.
    before, to
        The parallelism, and what it shall be: the same if nothing changes.
    reason
        Why, in words.
    """

    at_ms: int
    before: int
    to: int
    reason: str


class ShowDecision(msgspec.Struct, frozen=True):
    """Show people what was decided. ``is_trouble``: they should know of it."""

    decision: Decision
    is_trouble: bool = False


class Rescale(msgspec.Struct, frozen=True):
    """Rescale the query, if nobody else does; answered by one of the events above.

    Parameters
    ----------
    before
        The parallelism that was observed: with another one the order is out of date.
    parallelism
        The number of slots from now on.
    """

    before: int
    parallelism: int


Event = FiguresObserved | RescaleFinished | RescaleFailed | RescaleYielded
Action = ShowDecision | Rescale


class _ScaleUp(msgspec.Struct, frozen=True):
    """The last rescale to more slots: from and to which number, and the capacity before it."""

    before: int
    to: int
    capacity: float


class Autoscaler(Machine):
    """Chooses the parallelism of one query.

    Parameters
    ----------
    options
        Its limits.

    Examples
    --------
    >>> from headgate.coordinator.autoscaler.figures import SubtaskBusy
    >>> options = AutoscalerOptions(min_parallelism=1, max_parallelism=8, window_ms=1000, stabilization_ms=0)
    >>> machine = Autoscaler(options)
    >>> busy = (SubtaskBusy("parse", 0, 1.0),)
    >>> for second in range(3):
    ...     figures = FiguresObserved(
    ...         parallelism=2, is_settled=True, rows_read=1000 * second, lag_rows=6000 + 500 * second, busy=busy
    ...     )
    ...     actions = machine.handle(figures, 1000 * second)
    >>> actions[-1]
    Rescale(before=2, parallelism=5)
    """

    # fmt: off
    TRANSITIONS = (
        Row("stabilizing", FiguresObserved, SAME, [Maybe(ShowDecision)], by="_on_figures_while_stabilizing"),
        Row("stabilizing", FiguresObserved, "collecting", [ShowDecision],
            "it has run for the stabilization interval", by="_on_figures_while_stabilizing"),
        Row("collecting", FiguresObserved, SAME, [], by="_on_figures_while_collecting"),
        Row("collecting", FiguresObserved, "watching", [], "the window is full", by="_on_figures_while_collecting"),
        Row("collecting", FiguresObserved, "stabilizing", [Maybe(ShowDecision)],
            "it restarts, or the user rescaled it", by="_on_figures_while_collecting"),
        Row("watching", FiguresObserved, SAME, [Maybe(ShowDecision)]),
        Row("watching", FiguresObserved, "rescaling", [ShowDecision, Rescale], "utilised too much, or too little"),
        Row("watching", FiguresObserved, "stabilizing", [Maybe(ShowDecision)], "it restarts, or the user rescaled it"),
        Row("rescaling", FiguresObserved, SAME, IGNORED, "they are of the run that ends"),
        Row("rescaling", RescaleFinished, "stabilizing", [ShowDecision]),
        Row("rescaling", RescaleFailed, "backing off", [ShowDecision]),
        Row("rescaling", RescaleYielded, "stabilizing", [ShowDecision], "the user's counts"),
        Row("backing off", FiguresObserved, SAME, [], by="_on_figures_while_backing_off"),
        Row("backing off", FiguresObserved, "stabilizing", [Maybe(ShowDecision)],
            "it is over, or the user rescaled it", by="_on_figures_while_backing_off"),
    )
    # fmt: on

    def __init__(self, options: AutoscalerOptions) -> None:
        super().__init__()
        self.state = "stabilizing"
        self._options = options
        self._window = Window(options.window_ms)
        self._parallelism: int | None = None  # as it was observed, or ordered, last
        self._restarts = 0
        self._until_ms: int | None = None  # when stabilizing or backing off ends; None: not before it has settled
        self._ordered: Rescale | None = None
        self._ordered_ms = 0
        self._ordered_capacity = 0.0
        self._restart_ms = _RESTART_MS
        self._failures = 0  # in a row
        self._up: _ScaleUp | None = None
        self._down_since_ms: int | None = None  # since when fewer slots are enough, without a break
        self._down_to = 0  # how many of them were enough all the time
        self._shown = ""  # what kind of reason was shown last
        self._shown_ms: dict[str, int] = {}  # when each was, since the last rescale

    def check(self) -> None:
        """Assert what always holds."""
        options = self._options
        assert (self.state == "rescaling") == (self._ordered is not None)
        assert (self.state in ("collecting", "watching")) == bool(len(self._window))
        assert self.state != "watching" or self._window.is_full
        assert (self.state == "backing off") <= (self._failures > 0)
        assert self._down_since_ms is None or self.state == "watching"
        if self._ordered is not None:
            before, to = self._ordered.before, self._ordered.parallelism
            assert before != to
            assert to > before or to >= min(before, options.min_parallelism)
            assert to < before or to <= options.max_parallelism

    # ---- handlers ----

    def _on_figures_while_stabilizing(self, event: FiguresObserved, now_ms: int) -> list[Action]:
        shown = self._note_rescaled_by_user(event, now_ms)
        if not event.is_settled or self._has_restarted(event):
            self._until_ms = None
            return shown
        if self._until_ms is None:
            self._until_ms = now_ms + self._options.stabilization_ms
        if now_ms < self._until_ms:
            why = f"figures do not count for {duration(self._options.stabilization_ms)} after a start or a rescale"
            return shown + self._show("stabilizing", event.parallelism, why, now_ms)
        self.state, self._until_ms = "collecting", None
        self._window.add(event, now_ms)
        why = f"figures are collected for {duration(self._options.window_ms)}"
        return shown + self._show("collecting", event.parallelism, why, now_ms)

    def _on_figures_while_collecting(self, event: FiguresObserved, now_ms: int) -> list[Action]:
        shown = self._add(event, now_ms)
        if self.state == "collecting" and self._window.is_full:
            self.state = "watching"
        return shown

    def _on_figures_observed(self, event: FiguresObserved, now_ms: int) -> list[Action]:
        shown = self._add(event, now_ms)
        if self.state == "stabilizing":
            return shown
        return self._decide(event, self._window.evaluated(), now_ms)

    def _on_figures_while_backing_off(self, event: FiguresObserved, now_ms: int) -> list[Action]:
        assert self._until_ms is not None
        shown = self._note_rescaled_by_user(event, now_ms)
        if shown or now_ms >= self._until_ms:
            self._stabilize()
        return shown

    def _on_rescale_finished(self, event: RescaleFinished, now_ms: int) -> list[Action]:
        ordered = self._take_order()
        self._restart_ms, self._failures = now_ms - self._ordered_ms, 0
        self._parallelism, self._up = ordered.parallelism, None
        if ordered.parallelism > ordered.before:
            self._up = _ScaleUp(ordered.before, ordered.parallelism, self._ordered_capacity)
        self._stabilize()
        why = f"rescaled from {ordered.before} to {ordered.parallelism} in {duration(self._restart_ms)}"
        return self._show("rescaled", ordered.parallelism, why, now_ms)

    def _on_rescale_failed(self, event: RescaleFailed, now_ms: int) -> list[Action]:
        ordered = self._take_order()
        wait_ms = max(1000, self._options.stabilization_ms) << min(self._failures, _MOST_BACK_OFFS)
        self.state, self._until_ms, self._failures = "backing off", now_ms + wait_ms, self._failures + 1
        self._window.clear()
        why = f"the rescale to {ordered.parallelism} failed, none follows for {duration(wait_ms)}: {event.reason}"
        return self._show("failed", ordered.before, why, now_ms, is_trouble=True)

    def _on_rescale_yielded(self, event: RescaleYielded, now_ms: int) -> list[Action]:
        ordered = self._take_order()
        self._stabilize()
        why = f"not rescaled to {ordered.parallelism}: the query is rescaled or stopped by its user"
        return self._show("yielded", ordered.before, why, now_ms)

    # ---- deciding ----

    def _decide(self, event: FiguresObserved, made: Evaluation, now_ms: int) -> list[Action]:
        now, options = event.parallelism, self._options
        if made.capacity is None:
            self._down_since_ms = None
            return self._show("unknown", now, "it is not known how busy the stages are", now_ms)
        if made.capacity <= 0:
            self._down_since_ms = None
            why = f"nothing is read, and the lag grows ({rows(made.lag_rows or 0)}): more slots do not mend that"
            return self._show("stuck", now, why, now_ms, is_trouble=True)
        target = target_of(made, event, options, self._restart_ms)
        if target is None or target.parallelism >= now:
            self._down_since_ms = None
        if target is None:
            within = f"between {share(options.target_utilization - options.boundary)}"
            within += f" and {share(min(1.0, options.target_utilization + options.boundary))}"
            return self._show("enough", now, f"{now} are as many as it needs ({within} busy): {stated(made)}", now_ms)
        if target.parallelism > now:
            return self._scale_up(event, made, target, now_ms)
        if target.parallelism == now:
            what = f"more than {now} slots are wanted, but {target.limit}" if target.limit else f"{now} is the minimum"
            return self._show("limited", now, f"{what}: {stated(made)}", now_ms)
        return self._scale_down(event, made, target.parallelism, now_ms)

    def _scale_up(self, event: FiguresObserved, made: Evaluation, target: Target, now_ms: int) -> list[Action]:
        now, last, capacity = event.parallelism, self._up, made.capacity
        assert capacity is not None
        if last is not None and last.to == now:
            expected = last.capacity * (last.to / last.before - 1)
            gained = capacity - last.capacity
            if gained < _EFFECTIVE * expected:
                why = (
                    f"more than {now} slots are wanted, but the last scale-up, from {last.before} to {last.to}, "
                    f"brought {rows(gained)}/s more instead of {rows(expected)}/s: something else limits the query; "
                    f"{stated(made)}"
                )
                return self._show("ineffective", now, why, now_ms, is_trouble=True)
        limit = f" (not more: {target.limit})" if target.limit else ""
        return self._order(now, target.parallelism, f"scale up{limit}: {stated(made)}", made, now_ms)

    def _scale_down(self, event: FiguresObserved, made: Evaluation, to: int, now_ms: int) -> list[Action]:
        now, interval_ms = event.parallelism, self._options.scale_down_interval_ms
        if self._down_since_ms is None:
            self._down_since_ms, self._down_to = now_ms, to
        self._down_to = max(self._down_to, to)
        if now_ms - self._down_since_ms < interval_ms:
            why = f"{to} are enough; they must be for {duration(interval_ms)}: {stated(made)}"
            return self._show("scale-down delayed", now, why, now_ms)
        return self._order(now, self._down_to, f"scale down: {stated(made)}", made, now_ms)

    def _order(self, now: int, to: int, why: str, made: Evaluation, now_ms: int) -> list[Action]:
        assert made.capacity is not None
        self.state, self._ordered = "rescaling", Rescale(now, to)
        self._ordered_ms, self._ordered_capacity = now_ms, made.capacity
        self._window.clear()
        self._down_since_ms = None
        self._forget_shown()
        return [ShowDecision(Decision(at_ms=now_ms, before=now, to=to, reason=why)), self._ordered]

    # ---- what they share ----

    def _add(self, event: FiguresObserved, now_ms: int) -> list[Action]:
        """Move the window, unless its figures do not go on: then stabilize."""
        shown = self._note_rescaled_by_user(event, now_ms)
        if shown or self._has_restarted(event) or not event.is_settled:
            self._stabilize()
        else:
            self._window.add(event, now_ms)
        return shown

    def _stabilize(self) -> None:
        self.state, self._until_ms, self._down_since_ms = "stabilizing", None, None
        self._window.clear()
        self._forget_shown()

    def _take_order(self) -> Rescale:
        ordered = self._ordered
        assert ordered is not None
        self._ordered = None
        return ordered

    def _has_restarted(self, event: FiguresObserved) -> bool:
        """Return whether something failed since the last figures: what is read again would count twice."""
        before, self._restarts = self._restarts, event.restarts
        return event.restarts != before

    def _note_rescaled_by_user(self, event: FiguresObserved, now_ms: int) -> list[Action]:
        if not event.is_settled:
            return []
        before, self._parallelism = self._parallelism, event.parallelism
        if before in (None, event.parallelism):
            return []
        self._up, self._until_ms = None, None
        why = f"the query was rescaled from {before} to {event.parallelism} by its user"
        return self._show("rescaled by user", event.parallelism, why, now_ms)

    def _forget_shown(self) -> None:
        self._shown = ""
        self._shown_ms.clear()

    def _show(self, kind: str, now: int, why: str, now_ms: int, *, is_trouble: bool = False) -> list[Action]:
        """Show why nothing changes, unless that is what was shown last: other figures alone are nothing new.

        Nor are two reasons that alternate, as at a threshold: each is shown once in the time of the window.
        """
        shown_ms = self._shown_ms.get(kind)
        if kind == self._shown or (shown_ms is not None and now_ms - shown_ms < self._options.window_ms):
            return []
        self._shown, self._shown_ms[kind] = kind, now_ms
        return [ShowDecision(Decision(at_ms=now_ms, before=now, to=now, reason=why), is_trouble)]
