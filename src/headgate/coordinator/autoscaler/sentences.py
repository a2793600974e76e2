"""The words of the autoscaler's reasons.

Never: decide anything.
"""

from __future__ import annotations

import math

from headgate.coordinator.autoscaler.evaluation import Evaluation


def stated(evaluation: Evaluation) -> str:
    """Return what was measured, as a sentence.

    Examples
    --------
    >>> made = Evaluation(
    ...     read_rate=950.0, data_rate=2000.0, capacity=980.0, lag_rows=12_000, is_lagging=True,
    ...     busiest="parse", busy=0.97,
    ... )
    >>> stated(made)
    '2,000 rows/s come in and 950 rows/s are read, of at most 980 rows/s; lag 12,000 rows; parse is busy 97 %'
    """
    text = f"{rows(evaluation.data_rate)}/s come in and {rows(evaluation.read_rate)}/s are read"
    if evaluation.capacity is not None and math.isfinite(evaluation.capacity):
        text += f", of at most {rows(evaluation.capacity)}/s"
    if evaluation.lag_rows is not None:
        text += f"; lag {rows(evaluation.lag_rows)}"
    if evaluation.busy is not None:
        text += f"; {evaluation.busiest} is busy {share(evaluation.busy)}"
    return text


def rows(count: float) -> str:
    """Return a number of rows.

    Examples
    --------
    >>> rows(12_000.4), rows(3.25)
    ('12,000 rows', '3.2 rows')
    """
    return f"{count:,.1f} rows" if 0 < abs(count) < 10 and count != round(count) else f"{count:,.0f} rows"


def share(of: float) -> str:
    """Return a share of the time.

    Examples
    --------
    >>> share(0.7)
    '70 %'
    """
    return f"{100 * of:.0f} %"


def duration(ms: int) -> str:
    """Return a time that passes.

    Examples
    --------
    >>> duration(300_000), duration(90_000), duration(2500)
    ('5 min', '90 s', '2.5 s')
    """
    if ms and ms % 60_000 == 0:
        return f"{ms // 60_000} min"
    return f"{ms / 1000:g} s"
