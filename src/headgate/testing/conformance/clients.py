"""Promises about what blocks: clients that are slow, fail or hang, and how a reader ends all the same.

Never: compare a duration with another one of the source's: only with the bounds of the contract, and the quickest of
several counts.
"""

from __future__ import annotations

import math

from headgate.source.enumerator import Boundedness
from headgate.testing.conformance.subject import Subject, promise, steps

CLOSE_S = 1.0
_TRIES = 5


@promise(
    name="close-is-quick",
    sentence="A reader closes within a second, whatever its fetchers are doing, and before it got a split, too.",
    how="Close readers after no step, one and three, of bounded and unbounded reads.",
    contract='docs/full-source.md, "What you write"',
)
def close_is_quick(subject: Subject) -> None:
    """Close readers and look at the time."""
    for boundedness in Boundedness:
        if not subject.make_source().supports(boundedness):
            continue
        for count in (0, 1, 3):
            subject.does(f"Close the reader of a {boundedness.value} read after {count} steps.")
            took_s = math.inf
            for _ in range(_TRIES):  # others may have held the machine up: the quickest time is the reader's own
                harness = subject.harness(boundedness=boundedness)
                steps(harness, count)
                harness.close()
                took_s = min(took_s, *(reader.close_s for reader in harness.readers))
                if took_s < CLOSE_S:
                    break
            assert took_s < CLOSE_S, f"close took {took_s:.1f} s; it must return within a second"


CHECKS = (close_is_quick,)
