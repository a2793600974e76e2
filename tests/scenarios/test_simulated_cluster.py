"""Two thousand schedules of a whole simulated cluster: faults with safety checked, then none and it converges."""

from __future__ import annotations

import itertools

from headgate.simulation.coverage import Coverage
from headgate.simulation.running import Outcome, simulate_many

SCHEDULES, EVENTS, FAULTS = 2_000, 200, 3
SEEDS = 2_400  # some end before so much has happened


def test_two_thousand_schedules_hold_and_converge() -> None:
    coverage, eventful, failed = Coverage(), 0, list[Outcome]()
    for outcome, of_chunk in simulate_many(range(SEEDS), 2):
        coverage.add(of_chunk)
        eventful += outcome.events >= EVENTS and outcome.faults >= FAULTS
        if outcome.error is not None:
            failed.append(outcome)
    print(f"{eventful} schedules, (state, event) pairs: {100 * coverage.share():.1f} %")
    told = itertools.islice((f"./run simulate --replay {each.seed}: {each.error}" for each in failed), 3)
    assert not failed, f"{len(failed)} of {SEEDS}:\n" + "\n".join(told)
    assert eventful >= SCHEDULES
    assert coverage.share() >= 0.95, coverage.missing()
