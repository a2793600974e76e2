"""The application of the simulated query, in whose real hub of alignment groups it meets another query.

Never: look at the simulated query but as the hub shows it.

Follows FLIP-182 across queries.
"""

from __future__ import annotations

from typing import Any

from headgate.coordinator.job import job_events as jm
from headgate.driver.alignment_hub import AlignmentHub, Membership
from headgate.simulation.scenario import NEIGHBOUR_PERIOD_MS, Neighbour
from headgate.simulation.world import World
from headgate.source.watermark import saturated_ms

_APPLICATION = "application"


class Application:
    """The queries of one alignment group: the simulated one, and another that votes as its script says.

    Parameters
    ----------
    cluster
        Where they live.
    group
        Where the two meet.
    script
        When and how the other one votes; None: never.
    """

    def __init__(self, cluster: World, group: str, script: Neighbour | None) -> None:
        self._cluster = cluster
        self._group = group
        self._script = script
        self._hub = AlignmentHub()
        self._simulated: Membership | None = None  # over all runs of the query
        self._other = self._hub.join(_APPLICATION, group)

    def start(self) -> None:
        """Let the other query begin to vote when its script says so."""
        if self._script is not None:
            self._cluster.clock.at(self._script.begins_ms, self._cluster.world, self._vote, self._script)

    def run_began(self, driver: Any) -> None:
        """Let a run of the simulated query hear of the other one: an event for its driver, as from another thread."""
        if self._simulated is None:
            self._simulated = self._hub.join(_APPLICATION, self._group)
        self._simulated.listen(
            lambda watermark_ms: self._cluster.clock.after(
                1, driver, driver.notify, jm.OthersMoved(self._group, watermark_ms)
            )
        )

    def share(self, watermark_ms: int | None) -> None:
        """Share the minimum of the simulated query's readers; the group waits for one that is rescaled."""
        assert self._simulated is not None
        assert watermark_ms is not None or not self._cluster.is_rescaled, (
            "other queries of the alignment group do not wait for this one, which is being rescaled"
        )
        self._simulated.share(watermark_ms)

    def leave(self) -> None:
        """Let the simulated query be over."""
        if self._simulated is not None:
            self._simulated.leave()
            self._simulated = None

    def _vote(self, script: Neighbour) -> None:
        cluster, now_ms = self._cluster, self._cluster.clock.now_ms
        if cluster.others_ms is None:
            cluster.others_since_ms = now_ms
        moved_ms = (now_ms - script.begins_ms) // NEIGHBOUR_PERIOD_MS * script.step_ms
        cluster.others_ms = saturated_ms(script.first_ms + moved_ms) if now_ms < script.ends_ms else None
        cluster.others_vote()
        self._other.share(cluster.others_ms)
        if cluster.others_ms is not None:
            cluster.clock.after(NEIGHBOUR_PERIOD_MS, cluster.world, self._vote, script)
