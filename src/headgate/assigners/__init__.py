"""Who reads which split: balanced, the same on every machine, and without moving what somebody already has.

`HashAssigner` balances each group (a topic) separately, `RoundRobinAssigner` all splits together.

Never: look at anything but the arguments. Owners are part of stored queries, so an assigner that answers differently
tomorrow moves splits in running ones: golden values in the tests hold it.

Follows FLIP-537, "Kafka connector, Behaviour Changes" (``scan.split-assigner``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headgate.assigners.assigner import SplitAssigner
from headgate.assigners.hash import HashAssigner
from headgate.assigners.round_robin import RoundRobinAssigner

ASSIGNERS: Mapping[str, Callable[[], SplitAssigner]] = {"hash": HashAssigner, "round-robin": RoundRobinAssigner}
"""The assigners by their names in ``scan.split-assigner``."""

__all__ = ["ASSIGNERS", "HashAssigner", "RoundRobinAssigner", "SplitAssigner"]
