"""The reader of a continuous query: it also reports the query's position to Kafka.

Never: let a query fail, or wait, because the group's offsets could not be committed: they are for people and their
tools. Positions are restored from checkpoints, never from the group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headgate.connectors.kafka.client_calls import GRACE_S
from headgate.connectors.kafka.client_config import ClientConfig
from headgate.connectors.kafka.reader_metrics import ReaderMetrics
from headgate.connectors.kafka.split import KafkaSplit
from headgate.connectors.kafka.split_reader import KafkaSplitReader
from headgate.readers import MultiplexedReader, ReaderOptions
from headgate.source import SourceReaderContext

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_log = logging.getLogger(__name__)

_CHECKPOINTS_REMEMBERED = 4


class KafkaReader(MultiplexedReader[KafkaSplit]):
    """Reads partitions, and commits their positions to a consumer group when a checkpoint is complete.

    Parameters
    ----------
    split_reader_factory, context, options
        As of every ready-made reader. Without ``context.query``, nothing is committed.
    client
        The clients' settings. The group is ``kafka.group.id`` where the user set it, else its prefix and the query.
    metrics
        What the reader counts and measures; its split reader does so, too.
    """

    def __init__(
        self,
        split_reader_factory: Callable[[], KafkaSplitReader],
        context: SourceReaderContext,
        options: ReaderOptions,
        client: ClientConfig,
        metrics: ReaderMetrics,
    ) -> None:
        super().__init__(split_reader_factory, context, options)
        self._metrics = metrics
        self._client = client
        self._positions: dict[int, list[KafkaSplit]] = {}
        self._admin: AdminClient | None = None
        self._running: list[Any] = []
        self._answer_due_s = 0.0
        self._abandoned: list[AdminClient] = []

    def add_splits(self, splits: Sequence[KafkaSplit]) -> None:
        """Begin to fetch these splits from their positions on."""
        super().add_splits(splits)
        for split in splits:
            self._metrics.add_split(split.split_id, self._splits)

    def snapshot_state(self, checkpoint_id: int) -> list[KafkaSplit]:
        """Return the splits, and remember them until it is known what becomes of the checkpoint."""
        splits = super().snapshot_state(checkpoint_id)
        if self.context.query is not None and checkpoint_id > 0:
            self._positions[checkpoint_id] = splits
            for oldest in sorted(self._positions)[:-_CHECKPOINTS_REMEMBERED]:  # which nobody completed
                del self._positions[oldest]
        return splits

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Commit the positions of the checkpoint to the group."""
        splits = self._positions.get(checkpoint_id)
        self._positions = {number: of for number, of in self._positions.items() if number > checkpoint_id}
        if splits:
            try:
                self._commit(splits)
            except Exception as error:
                self._metrics.commits_failed.inc()
                _log.warning("the group's offsets were not committed: %s", self._client.redact(str(error)))

    def _make_admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        silent = logging.Logger(f"{__name__}.client")  # nobody's child: nothing is printed
        settings: dict[str, Any] = {**self._client.admin(), "error_cb": lambda _: None}
        return AdminClient(settings, logger=silent)

    def _commit(self, splits: list[KafkaSplit]) -> None:
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        if self._admin is None:
            self._admin = self._make_admin()
        for done in [each for each in self._running if each.done()]:
            self._running.remove(done)
            if (error := done.exception()) is None:
                self._metrics.commits_succeeded.inc()
            else:
                self._metrics.commits_failed.inc()
                _log.warning("the group's offsets were not committed: %s", self._client.redact(str(error)))
        if self._running and time.monotonic() < self._answer_due_s:
            return  # the brokers have not answered yet; the next checkpoint's positions are newer
        if self._running:
            self._metrics.commits_failed.inc(len(self._running))
            _log.warning("the group's offsets were not committed: the call outlived its time-out; asking again")
            self._abandoned.append(self._admin)  # letting go of it might not return either
            self._running, self._admin = [], self._make_admin()
        self._answer_due_s = time.monotonic() + self._client.timeout_ms / 1000 + GRACE_S
        offsets = [TopicPartition(split.topic, split.partition, split.position) for split in splits]
        group = self._client.group_id or f"{self._client.group_id_prefix}-{self.context.query}"
        self._running = list(
            self._admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, offsets)]).values()
        )
