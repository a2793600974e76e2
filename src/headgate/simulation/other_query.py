"""Another query of the application, which meets the simulated one in the real hub of alignment groups.

Never: look at the simulated query but as the hub shows it.

Follows FLIP-182 across queries.
"""

from __future__ import annotations

from headgate.driver.alignment_hub import AlignmentHub
from headgate.simulation.scenario import NEIGHBOUR_PERIOD_MS, Neighbour
from headgate.simulation.world import World
from headgate.source.watermark import saturated_ms

APPLICATION = "application"


class OtherQuery:
    """Votes as its script says, and hears of the simulated query all the time.

    Parameters
    ----------
    cluster
        Where it lives.
    hub, group
        Where the two meet.
    script
        When and how it votes; None: never.
    """

    def __init__(self, cluster: World, hub: AlignmentHub, group: str, script: Neighbour | None) -> None:
        self._cluster = cluster
        self._hears = hub.join(APPLICATION, group)  # has no vote: hears of the simulated query, and the voter
        self._votes = hub.join(APPLICATION, group)
        self._script = script
        self._is_over = False
        self._hears.listen(self._on_others_moved)

    def start(self) -> None:
        """Begin to vote when the script says so."""
        if self._script is not None:
            self._cluster.clock.at(self._script.begins_ms, self._cluster.world, self._vote, self._script)

    def _vote(self, script: Neighbour) -> None:
        cluster, now_ms = self._cluster, self._cluster.clock.now_ms
        if cluster.others_ms is None:
            cluster.others_since_ms = now_ms
        moved_ms = (now_ms - script.begins_ms) // NEIGHBOUR_PERIOD_MS * script.step_ms
        cluster.others_ms = saturated_ms(script.first_ms + moved_ms) if now_ms < script.ends_ms else None
        cluster.others_vote()
        self._votes.share(cluster.others_ms)
        if cluster.others_ms is not None:
            cluster.clock.after(NEIGHBOUR_PERIOD_MS, cluster.world, self._vote, script)

    def _on_others_moved(self, watermark_ms: int | None) -> None:
        """Check that the group waits for a query that is rescaled."""
        is_alone = watermark_ms is None or watermark_ms == self._cluster.others_ms
        assert not (is_alone and self._cluster.is_rescaled), (
            "other queries of the alignment group do not wait for this one, which is being rescaled"
        )
