"""How many slots a query needs, by what comes in: more, fewer, or as many as there are, and what stands against it.

Never: remember anything: what was decided before, and what became of it, is the machine's (`autoscaler`).

As in Flink's autoscaler nothing changes while the utilisation stays within a boundary of the target, and the new number
is computed for the target itself, rounded up. So at the same rate fewer slots are never too few: it does not flap.
"""

from __future__ import annotations

import math

import msgspec

from headgate.coordinator.autoscaler.evaluation import Evaluation
from headgate.coordinator.autoscaler.figures import FiguresObserved
from headgate.coordinator.autoscaler.options import AutoscalerOptions

_CLOSE = 1e-9


class Target(msgspec.Struct, frozen=True):
    """How many slots there should be.

    Parameters
    ----------
    parallelism
        The number.
    limit
        Why there are not more of them, though they are wanted; empty: no more are.
    """

    parallelism: int
    limit: str = ""


def target_of(
    evaluation: Evaluation, figures: FiguresObserved, options: AutoscalerOptions, restart_ms: int
) -> Target | None:
    """Return how many slots there should be; None: as many as there are.

    Parameters
    ----------
    evaluation, figures
        Of a window whose capacity is known, and the last ones in it.
    options
        The autoscaler's.
    restart_ms
        How long a rescale takes, in milliseconds.
    """
    now, capacity = figures.parallelism, evaluation.capacity
    assert capacity is not None and capacity > 0, f"there is no capacity to compare with: {evaluation}"
    target, boundary = options.target_utilization, options.boundary
    is_up = capacity < evaluation.required(options, target + boundary)
    is_down = capacity > evaluation.required(options, target - boundary, restart_ms) and not evaluation.is_lagging
    if not is_up and not is_down:
        return None
    factor = evaluation.required(options, target, restart_ms) / capacity
    factor = max(factor, 1 - options.scale_down_max_factor)
    # With next to no capacity more than anybody has would be wanted, up to numbers that are none.
    least = max(1, math.ceil(min(now * factor, 1e6) - _CLOSE))
    wanted = _evenly(least, figures.num_splits)
    if is_down:
        return Target(max(wanted, options.min_parallelism)) if wanted < now else None
    most, limit = _most(figures, options)
    if max(least, wanted) > most:
        return Target(max(now, _evenly(most, figures.num_splits, most)), limit)
    return Target(wanted) if wanted > now else None


def _most(figures: FiguresObserved, options: AutoscalerOptions) -> tuple[int, str]:
    """Return the largest number of slots that may be chosen, and what limits it."""
    limits = [(options.max_parallelism, f"parallelism.max is {options.max_parallelism}")]
    if figures.num_splits is not None:
        limits.append((figures.num_splits, f"there are {figures.num_splits} splits to read"))
    if figures.most_slots is not None:
        limits.append((figures.most_slots, f"the session has cores for {figures.most_slots} slots"))
    return min(limits, key=lambda each: each[0])


def _evenly(parallelism: int, splits: int | None, most: int | None = None) -> int:
    """Return the next number of readers with which the busiest has fewer splits, or the smallest that is as good.

    Of four splits one of three readers has two, as with two readers: two or four are chosen. Flink's ``EVENLY_SPREAD``.
    """
    if splits is None or splits < 1:
        return parallelism
    if most is not None:
        return -(-splits // -(-splits // most))
    return -(-splits // max(1, splits // parallelism))
