"""What the autoscaler may do, and how soon.

Never: parse anything: `headgate.graph.query_options` makes it of the options of a query.

The names are those of Flink's autoscaler (FLIP-271), ``job.autoscaler.*`` of the Flink Kubernetes operator.
"""

from __future__ import annotations

import msgspec


class AutoscalerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the autoscaler.

    Parameters
    ----------
    min_parallelism, max_parallelism
        Between which numbers of slots it chooses.
    target_utilization, boundary
        The share of the time for which a query is to be busy, and how far it may be from that, both from 0 to 1.
    catch_up_ms
        In what time a lag is to be gone after a rescale, in milliseconds; 0: lag alone is no reason to rescale.
    window_ms
        Over how long figures are averaged, in milliseconds.
    stabilization_ms
        How long figures do not count after a start, a rescale or a restart, in milliseconds.
    scale_down_interval_ms
        How long fewer slots must be enough before there are fewer, in milliseconds.
    scale_down_max_factor
        The largest share of the slots that a single rescale takes away; 1: no limit.
    """

    min_parallelism: int
    max_parallelism: int
    target_utilization: float = 0.7
    boundary: float = 0.2
    catch_up_ms: int = 300_000
    window_ms: int = 180_000
    stabilization_ms: int = 60_000
    scale_down_interval_ms: int = 600_000
    scale_down_max_factor: float = 0.6
