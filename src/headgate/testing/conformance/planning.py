"""Promises about ranges planned for micro-batches: the same rows whenever they are read, and together all of them.

Never: blame a source without `SupportsBoundedPlans`: then the promises do not apply.
"""

from __future__ import annotations

from headgate.source.enumerator import Boundedness
from headgate.source.source import PlanLimits, SupportsBoundedPlans
from headgate.testing.conformance.subject import MAX_STEPS, DoesNotApply, Rows, Subject, promise
from headgate.testing.rows import assert_same_rows


@promise(
    name="plans-can-be-replayed",
    sentence="A planned range gives the same rows whenever it is read; all ranges together give those of the source.",
    how="Plan ranges without limits and with each limit at 1, and read every range twice.",
    contract='docs/full-source.md, "Optional abilities"',
)
def plans_can_be_replayed(subject: Subject) -> None:
    """Plan and read ranges twice."""
    subject.needs(Boundedness.BOUNDED)
    source = subject.make_source()
    if not isinstance(source, SupportsBoundedPlans):
        raise DoesNotApply("the source has no plan_ranges: it is not read in micro-batches")
    expected = subject.rows
    for chosen in ({}, {"max_rows": 1}, {"max_bytes": 1}, {"max_files": 1}):
        limits = PlanLimits(**chosen)
        rows: Rows = []
        splits = subject.splits()
        with_limit = "".join(f" with {name}={value}" for name, value in chosen.items()) or " without limits"
        subject.does(f"Plan{with_limit} until nothing is left, and read each plan twice.")
        for _ in range(MAX_STEPS):
            if not splits:
                break
            planned = source.plan_ranges(splits, limits, 0)
            assert planned or not chosen, f"nothing was planned of {splits}"
            if not planned:
                break
            ids = [each.split.split_id for each in planned]
            assert len(set(ids)) == len(ids), f"more than one range of a split in one plan: {ids}"
            read = subject.read_splits([each.split for each in planned])
            again = subject.read_splits([each.split for each in planned])
            assert_same_rows(again, read, f"the replay of {planned}")
            rows += read
            rests = {each.split.split_id: each.rest for each in planned}
            after = [rests.get(split.split_id, split) for split in splits]
            splits = [split for split in after if split is not None]
        assert_same_rows(rows, expected, f"rows of all ranges planned{with_limit}")


CHECKS = (plans_can_be_replayed,)
