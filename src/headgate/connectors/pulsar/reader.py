"""The reader of a continuous query: it also moves the durable subscription that keeps what was not read yet.

Never: let a query fail, or wait, because a subscription could not be moved: Pulsar then keeps more than is needed.
Positions are restored from checkpoints, never from the subscription.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from headgate.connectors.pulsar.admin import PulsarAdmin
from headgate.connectors.pulsar.split import PulsarSplit
from headgate.connectors.pulsar.split_reader import PulsarSplitReader
from headgate.readers import MultiplexedReader
from headgate.source import SourceReaderContext

logger = logging.getLogger(__name__)

_CHECKPOINTS_REMEMBERED = 4


class PulsarReader(MultiplexedReader[PulsarSplit]):
    """Reads partitions, and moves their subscription to their positions when a checkpoint is complete.

    Parameters
    ----------
    split_reader_factory, context
        As of every ready-made reader.
    admin
        Moves the subscription.
    subscription
        The durable subscription; None: there is none to move.
    """

    def __init__(
        self,
        split_reader_factory: Callable[[], PulsarSplitReader],
        context: SourceReaderContext,
        admin: PulsarAdmin,
        subscription: str | None,
    ) -> None:
        super().__init__(split_reader_factory, context)
        self._admin = admin
        self._subscription = subscription
        self._positions: dict[int, list[PulsarSplit]] = {}
        self._moving: threading.Thread | None = None

    def snapshot_state(self, checkpoint_id: int) -> list[PulsarSplit]:
        """Return the splits, and remember them until it is known what becomes of the checkpoint."""
        splits = super().snapshot_state(checkpoint_id)
        if self._subscription is not None and self.context.query is not None and checkpoint_id > 0:
            self._positions[checkpoint_id] = splits
            for oldest in sorted(self._positions)[:-_CHECKPOINTS_REMEMBERED]:  # which nobody completed
                del self._positions[oldest]
        return splits

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Move the subscription to the positions of the checkpoint; a later one does it if this is still under way."""
        splits = self._positions.get(checkpoint_id)
        self._positions = {number: of for number, of in self._positions.items() if number > checkpoint_id}
        if splits and self._subscription is not None and not (self._moving is not None and self._moving.is_alive()):
            self._moving = threading.Thread(
                target=move_subscription, args=(self._admin, self._subscription, splits),
                name="headgate-pulsar-subscription", daemon=True,
            )  # fmt: skip
            self._moving.start()


def move_subscription(admin: PulsarAdmin, subscription: str, splits: Sequence[PulsarSplit]) -> None:
    """Move a durable subscription to the positions of splits, or make it there. Blocks; failures are logged.

    It holds the entry that was read last, too: so Pulsar keeps the ledger by which a restart sees that nothing was
    lost.
    """
    for split in splits:
        if split.position is None:
            continue
        try:
            admin.move_subscription(split.name, subscription, split.position)
        except Exception as error:
            logger.warning(
                "headgate.pulsar: the subscription %s of %s was not moved: %s",
                subscription, split.name, admin.config.redact(str(error)),
            )  # fmt: skip
