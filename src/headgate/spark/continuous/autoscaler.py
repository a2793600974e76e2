"""The autoscaler of a running query: a thread that looks at its snapshot now and then, and rescales it.

Never: decide (`headgate.coordinator.autoscaler` does), hold the query up, or rescale it against its user: who calls
``rescale`` or ``stop`` is first, and what the autoscaler wanted is dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, assert_never

import msgspec

from headgate.coordinator.autoscaler.autoscaler import (
    Action,
    Autoscaler,
    Decision,
    Event,
    Rescale,
    RescaleFailed,
    RescaleFinished,
    RescaleYielded,
    ShowDecision,
)
from headgate.coordinator.autoscaler.figures import figures_of
from headgate.coordinator.autoscaler.options import AutoscalerOptions
from headgate.errors import HeadgateError
from headgate.event_log import describe, log_event
from headgate.graph.stage_graph import QueryDefinition
from headgate.source import Boundedness

_log = logging.getLogger(__name__)

_LOOKS = 20
"""How often it looks in the time of its window."""
_LOOK_S = (0.2, 5.0)
"""How long it waits between two looks, at least and at most, in seconds."""
_DECISIONS = 50
"""How many decisions are kept."""


class AutoscaledQuery(Protocol):
    """What the autoscaler knows of the query."""

    @property
    def isActive(self) -> bool:
        """Whether it has not ended."""

    def snapshot(self) -> dict[str, Any]:
        """Return how it is."""


class QueryAutoscaler:
    """Rescales one query from a thread of its own.

    Parameters
    ----------
    query
        The query.
    name
        What to call it in the log.
    options
        The autoscaler's.
    bounded_by_splits, threads
        As for `figures_of`.
    most_slots
        Returns how many slots the session has room for now; None: that is unknown.
    rescale
        Rescales the query from a parallelism to another one, unless it has a third one by now or its user changes it:
        then it returns False. May block for as long as a checkpoint takes.
    is_changing
        Returns whether its user rescales or stops it: what it reads until then says nothing.
    """

    def __init__(
        self,
        query: AutoscaledQuery,
        name: str,
        options: AutoscalerOptions,
        bounded_by_splits: frozenset[str],
        threads: Sequence[Sequence[int]],
        most_slots: Callable[[], int | None],
        rescale: Callable[[int, int], bool],
        is_changing: Callable[[], bool],
    ) -> None:
        self._query, self._name, self._options = query, name, options
        self._bounded_by_splits, self._threads, self._most_slots = bounded_by_splits, threads, most_slots
        self._rescale, self._is_changing = rescale, is_changing
        # On the thread only:
        self._machine = Autoscaler(options)
        self._trouble = ""  # why it could not look the last time
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"headgate-autoscaler-{name}", daemon=True)
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._state = self._machine.state
        self._decisions: deque[Decision] = deque(maxlen=_DECISIONS)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look no more. A rescale that is under way is not waited for. Any thread."""
        self._closed.set()

    def shown(self) -> dict[str, Any]:
        """Return what it does and has decided, as the snapshot has it. Any thread."""
        with self._lock:
            state, decisions = self._state, list(self._decisions)
        return {
            "mode": "lag",
            "min": self._options.min_parallelism,
            "max": self._options.max_parallelism,
            "state": state,
            "decisions": msgspec.to_builtins(decisions),
        }

    def _run(self) -> None:
        least_s, most_s = _LOOK_S
        every_s = min(most_s, max(least_s, self._options.window_ms / 1000 / _LOOKS))
        while not self._closed.wait(every_s) and self._query.isActive:
            try:
                figures = figures_of(
                    self._query.snapshot(),
                    bounded_by_splits=self._bounded_by_splits,
                    most_slots=self._most_slots(),
                    threads=self._threads,
                )
                if self._is_changing():
                    figures = msgspec.structs.replace(figures, is_settled=False)
                self._carry_out(self._handle(figures))
                self._trouble = ""
            except Exception as error:
                before, self._trouble = self._trouble, describe(error)
                if self._trouble != before and self._query.isActive and not self._closed.is_set():
                    text = f"the autoscaler could not look at it: {self._trouble}"
                    log_event(_log, logging.WARNING, self._name, text)

    def _handle(self, event: Event) -> list[Action]:
        actions = self._machine.handle(event, time.time_ns() // 1_000_000)
        with self._lock:
            self._state = self._machine.state
            self._decisions += [each.decision for each in actions if isinstance(each, ShowDecision)]
        return actions

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case ShowDecision():
                    self._show(action)
                case Rescale():
                    outcome = self._outcome_of(action)
                    if self._query.isActive and not self._closed.is_set():
                        self._carry_out(self._handle(outcome))
                case _:
                    assert_never(action)

    def _show(self, shown: ShowDecision) -> None:
        made = shown.decision
        level = logging.WARNING if shown.is_trouble else logging.INFO
        parallelism = f"{made.to}" if made.to == made.before else f"{made.before} to {made.to}"
        log_event(_log, level, self._name, f"autoscaler: parallelism {parallelism}: {made.reason}")

    def _outcome_of(self, order: Rescale) -> Event:
        try:
            done = self._rescale(order.before, order.parallelism)
        except HeadgateError as error:
            return RescaleFailed(" ".join(str(error).split()))
        except Exception as error:
            return RescaleFailed(describe(error))
        return RescaleFinished() if done else RescaleYielded()


def splits_bound(definition: QueryDefinition) -> frozenset[str]:
    """Return the sources whose splits bound the number of slots that are of use, as for `figures_of`.

    With an exchange slots do more than read. And where readers ask for splits they never have all that there are: only
    sources whose splits are assigned anew after a rescale (FLIP-537) give out all of them, and those only for ever.
    """
    if len(definition.graph.stages) > 1:
        return frozenset()
    return frozenset(
        uid
        for uid, source in definition.sources.items()
        if source.reassigns_on_recovery and source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    )
