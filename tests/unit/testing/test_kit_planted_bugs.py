"""Each planted bug is found by the name of the promise that it breaks, and a sound source breaks none."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from planted_bugs import BUGS, EVENT_BUGS, SYSTEMS, Data, Numbers, events, numbers

from headgate.testing.conformance import PROMISES, check

KIT = "headgate.testing.conformance"
QUICK = {  # how long to wait for what a bug never does; those that watch for something end when it comes
    "pausing does nothing": {"pausing.LATE_S": 30},
    "close blocks": {"clients.CLOSE_S": 0.1},
    "a checkpoint waits for the fetch": {"clients._PATIENCE_S": 1.2, "clients._TRIES": 1},
    "a fetch ignores its time-out": {"fetching.IN_TIME_S": 0.5},
    "a fetch sleeps": {"fetching.FETCH_MS": 400},
    "a call waits for the fetch": {"fetching.FETCH_MS": 400},
    "makes watermarks and is never idle": {"event_time.IDLE_AFTER_S": 0.5},
    "looks once": {"discovery.PATIENCE_S": 1},
    "a resumed split stays paused": {"event_time._PATIENCE_S": 1},
}


@pytest.fixture
def system() -> Iterator[str]:
    """Name a system of a test's own."""
    name = uuid.uuid4().hex
    SYSTEMS[name] = Data()
    yield name
    del SYSTEMS[name]


@pytest.mark.parametrize("bug", [*BUGS, *EVENT_BUGS])
def test_a_bug_is_found_by_the_promise_that_it_breaks(bug: str, system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUICK.get(bug, {}).items():
        monkeypatch.setattr(f"{KIT}.{name}", value)
    promise = {**BUGS, **EVENT_BUGS}[bug]
    makes_watermarks = bug.startswith(("its watermarks", "makes watermarks"))

    def make_source() -> Numbers:
        if bug in BUGS:
            return numbers(bug=bug)
        return events(bug=bug, system=system, watermarks="its own" if makes_watermarks else "")

    report = check(
        make_source,
        add_rows=lambda: SYSTEMS[system].grow(),
        unavailable=lambda: SYSTEMS[system].silence(),
        only=[promise],
    )
    assert [each.promise.name for each in report.broken] == [promise], str(report)
    with pytest.raises(AssertionError, match=f"BROKEN  {promise}"):
        report.require()


@pytest.mark.parametrize("watermarks", ["", "its own"])
def test_a_sound_source_with_all_abilities_keeps_all_promises(system: str, watermarks: str) -> None:
    report = check(
        lambda: events(system=system, watermarks=watermarks),
        add_rows=lambda: SYSTEMS[system].grow(),
        unavailable=lambda: SYSTEMS[system].silence(),
    )
    without = [] if watermarks else ["rows-keep-watermarks"]
    assert [each.promise.name for each in report.results if each.verdict != "kept"] == without, str(report)


def test_every_promise_has_a_bug() -> None:
    assert {promise.name for promise in PROMISES} == {*BUGS.values(), *EVENT_BUGS.values()}
