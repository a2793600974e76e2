"""The table of the job master: everything has a route, and goes nowhere else."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any, get_args

import pytest

from headgate.checkpoint import checkpoint_events as cp
from headgate.coordinator.alignment import alignment_group as al
from headgate.coordinator.job import job_events as jm
from headgate.coordinator.job import scheduler_events as sch
from headgate.coordinator.job.job_master import JobMaster
from headgate.coordinator.job.routes import ROUTES, STATES, Route, dispatch_of
from headgate.coordinator.sources import source_events as src
from headgate.protocol import messages as msg
from tests.unit.coordinator.job import job_world, test_job_master
from tests.unit.coordinator.job.job_world import World
from tests.unit.coordinator.job.test_job_master import options
from tests.unit.coordinator.job.test_job_master_event_time import aligned, suspended
from tests.unit.coordinator.job.test_job_stories import splits
from tests.unit.coordinator.sources.toy_sources import ToySource

NOT_OF_AN_EXECUTION = {msg.RegisterSlot, msg.SlotHeartbeat}
WHAT = {
    "outside": set(get_args(jm.Event)),
    "slot": set(get_args(msg.FromSlot)) - NOT_OF_AN_EXECUTION,
    "Scheduler": set(get_args(sch.Action)),
    "SourceCoordinator": set(get_args(src.Action)),
    "CheckpointCoordinator": set(get_args(cp.Action)),
    "AlignmentGroup": set(get_args(al.Action)),
}


@pytest.mark.parametrize("of", WHAT)
def test_everything_has_a_route_in_every_state(of: str) -> None:
    """A union that gets another member fails here, as a `match` without it would in mypy."""
    found = {(state, route.what) for route in ROUTES if route.of == of for state in route.states}
    assert found == set(itertools.product(STATES, WHAT[of]))


def test_routes_name_methods_that_exist() -> None:
    assert [route.by for route in ROUTES if route.by and not hasattr(JobMaster, route.by)] == []
    assert all(bool(route.by) == bool(route.to) for route in ROUTES)


def test_two_methods_for_one_thing_are_an_error() -> None:
    with pytest.raises(TypeError, match="two routes for over, Log"):
        dispatch_of([Route("a", jm.Log, ("slots",), "_send"), Route("a", jm.Log, ("slots",), "_log", state="over")])


class Traced(JobMaster):
    """Notes to whom each thing goes directly."""

    reached: dict[type, set[str]]
    under_way: list[type]

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self.under_way = []
        super().__init__(*arguments, **more)

    def _route(self, what: object, *of: object) -> None:
        self.under_way.append(type(what))
        super()._route(what, *of)
        self.under_way.pop()

    def _note(self, whom: str) -> None:
        self.reached[self.under_way[-1]].add(whom)

    def _notify_scheduler(self, event: Any) -> None:
        self._note("scheduler")
        super()._notify_scheduler(event)

    def _notify_sources(self, events: Any) -> None:
        self._note("sources")
        super()._notify_sources(events)

    def _notify_checkpoints(self, event: Any) -> None:
        self._note("checkpoints")
        super()._notify_checkpoints(event)

    def _notify_group(self, group: Any, event: Any) -> None:
        self._note("groups")
        super()._notify_group(group, event)

    def _send(self, slot: int, message: Any) -> None:
        self._note("slots")
        super()._send(slot, message)


def test_nothing_goes_where_the_table_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: dict[type, set[str]] = defaultdict(set)
    monkeypatch.setattr(Traced, "reached", reached, raising=False)
    monkeypatch.setattr(job_world, "JobMaster", Traced)
    for seed in range(3):
        query = World(ToySource(splits(6)), 2, options(interval_ms=50), seed=seed)
        query.pass_time(60)
        query.lose(0)
        query.pass_time(60_000)
        assert query.over
    monkeypatch.setattr(test_job_master, "JobMaster", Traced)
    suspended(aligned(1))
    allowed: dict[type, set[str]] = defaultdict(set)
    for route in ROUTES:
        allowed[route.what].update(route.to)
    assert len(reached) > 20
    assert {what: to - allowed[what] for what, to in reached.items() if to - allowed[what]} == {}
