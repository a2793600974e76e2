"""`PulsarSource`: the format ``headgate.pulsar``, with the options and columns of StreamNative's Spark connector.

Never: connect in the constructor or on an enumerator's thread, or carry a client into a pickle.

Follows FLIP-27, FLIP-217 (which names Pulsar's connector) and FLIP-537.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from headgate.assigners import ASSIGNERS
from headgate.connectors.pulsar.admin import PulsarAdmin
from headgate.connectors.pulsar.client import ClientConfig, require_client_library
from headgate.connectors.pulsar.columns import PulsarColumns, schema_of, time_of, value_fields, value_format
from headgate.connectors.pulsar.discovery import Discovery
from headgate.connectors.pulsar.enumerator import PulsarEnumerator
from headgate.connectors.pulsar.ledgers import Ledgers, is_lost, remembered
from headgate.connectors.pulsar.opening import PartitionReaders, messages_gone
from headgate.connectors.pulsar.options import OPTION_SPECS, check, end_of, reader_arguments, start_of
from headgate.connectors.pulsar.planning import ends_now, planned, within_bytes
from headgate.connectors.pulsar.position import Position
from headgate.connectors.pulsar.reader import PulsarReader, move_subscription
from headgate.connectors.pulsar.schemas import TopicSchemas
from headgate.connectors.pulsar.scout import Scout
from headgate.connectors.pulsar.split import (
    NOT_PARTITIONED,
    SPLIT_SERIALIZER,
    STATE_SERIALIZER,
    PulsarSplit,
    PulsarState,
)
from headgate.connectors.pulsar.split_reader import PulsarSplitReader
from headgate.connectors.pulsar.subscription import Subscription
from headgate.enumerators.partition import TopicPartition
from headgate.errors import OptionError
from headgate.formats.json_values import JSON_OPTIONS
from headgate.source import (
    Boundedness,
    PlanLimits,
    PlannedRange,
    Source,
    SourceReader,
    SourceReaderContext,
    SplitEnumerator,
    SplitEnumeratorContext,
    SupportsSplitReassignmentOnRecovery,
)

logger = logging.getLogger(__name__)

_LEDGERS_AGAIN_MS = 100
"""An idle planner is asked a hundred times a second; the brokers are asked for ledgers less often."""
_SUBSCRIPTION_AGAIN_MS = 10_000
"""How often micro-batches move the durable subscription."""


class PulsarSource(Source[PulsarSplit, PulsarState], SupportsSplitReassignmentOnRecovery):
    """Topics of Pulsar.

    Parameters
    ----------
    options
        Those of StreamNative's Spark connector and a few of our own: docs/pulsar.md.

    Raises
    ------
    OptionError
        An option is unknown, has a bad value, or contradicts another.
    """

    name = "headgate.pulsar"
    option_specs = (*OPTION_SPECS, *JSON_OPTIONS)
    split_serializer = SPLIT_SERIALIZER
    state_serializer = STATE_SERIALIZER

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        check(self.options)
        if value_format(self.options) == "binary":
            for spec in JSON_OPTIONS:
                if self.options.is_set(spec.name):
                    raise self.options.error(spec.name, "is for values that are parsed: set valueFormat to json.")
        self._config = ClientConfig.of(self.options)
        self._subscription = Subscription.of(self.options)
        self._reader_arguments = reader_arguments(self.options)
        self._assigner = ASSIGNERS[self.options["scan.split-assigner"]]()
        self._ledgers: dict[str, Ledgers] = {}  # of the splits that were asked for last
        self._known: dict[str, Ledgers] = {}  # of all splits: see `remembered`
        self._asked_ms = self._moved_ms = -_SUBSCRIPTION_AGAIN_MS
        self._admin: PulsarAdmin | None = None
        self._scout: Scout | None = None
        self._time_of = time_of(self.options["eventTimeColumn"])
        self._turn = 0
        self._warned: dict[str, Position] = {}  # where splits were when it was logged that what follows is gone
        self._went_on: dict[str, tuple[Position, Position]] = {}  # positions in ledgers that are gone, and after them

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_admin": None, "_scout": None, "_ledgers": {}, "_known": {}, "_went_on": {}}

    def schema(self) -> pa.Schema:
        """Return the columns: the values' by the topics' schema, then those of every message. Asks the brokers.

        Raises
        ------
        OptionError
            The values are JSON and no fields are given, a schema is not read, or topics have different ones.
        """
        kind = value_format(self.options)
        if kind == "binary":
            return schema_of(value_fields(None, ""))
        if kind == "json":
            raise OptionError(
                f"{self.name}: with valueFormat 'json' the values' fields must be given: add "
                '.schema("user string, amount double"), with __key, __topic, __messageId, __publishTime, __eventTime '
                "or __messageProperties for Pulsar's own columns.",
                option="valueFormat", value="json",
            )  # fmt: skip
        admin = self._brokers()
        names = self._subscription.names
        if names is None:
            assert self._subscription.pattern is not None
            listed = admin.topics(self._subscription.pattern[0]) or ()
            names = tuple(each for each in listed if self._subscription.includes(each))
        found = {name: value_fields(admin.schema(name), name) for name in names}
        if len({tuple(fields) for fields in found.values()}) > 1:
            raise OptionError(
                f"{self.name}: {', '.join(sorted(found))} have different schemas. Set allowDifferentTopicSchemas to "
                "true to have the values' bytes, or read the topics one by one.",
                source=self.name, option="allowDifferentTopicSchemas", value=False,
            )  # fmt: skip
        return schema_of(next(iter(found.values()), value_fields(None, "")))

    def create_enumerator(
        self, context: SplitEnumeratorContext[PulsarSplit]
    ) -> SplitEnumerator[PulsarSplit, PulsarState]:
        """Return an enumerator that discovers afresh.

        Raises
        ------
        OptionError
            A starting or an ending option is not one of reads of this boundedness.
        """
        return self._enumerator(context, None)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[PulsarSplit], state: PulsarState
    ) -> SplitEnumerator[PulsarSplit, PulsarState]:
        """Return an enumerator that goes on from ``state``; raises as `create_enumerator`."""
        return self._enumerator(context, state)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[PulsarSplit]:
        """Return a reader with one client for all its partitions.

        Raises
        ------
        OptionError
            The schema has a column that there is not, or an option of the values cannot be used.
        DeploymentError
            pulsar-client is not installed here.
        """
        require_client_library()
        split_reader = partial(
            PulsarSplitReader,
            self._config,
            PulsarColumns(context.schema, self.options, context.time_zone, TopicSchemas(self._brokers())),
            fail_on_data_loss=self.options["failOnDataLoss"],
            poll_timeout_ms=self.options["pollTimeoutMs"],
            reader_arguments=self._reader_arguments,
            metric_group=context.metric_group,
        )
        return PulsarReader(split_reader, context, self._brokers(), self.options["predefinedSubscription"])

    def plan_ranges(
        self, splits: Sequence[PulsarSplit], limits: PlanLimits, now_ms: int
    ) -> Sequence[PlannedRange[PulsarSplit]]:
        """Plan up to the last entry of each partition, or before the first one that is too late. Blocks.

        Of the limits ``max_bytes``, ``max_rows`` and, if a column of Pulsar's own is the event time,
        ``before_event_time_ms`` count. With the last two messages are read here as well, to count them.

        Raises
        ------
        DataLossError
            What is to be read is no longer there, and ``failOnDataLoss`` is set.
        SourceUnavailableError
            The brokers do not answer.
        """
        ledgers = self._look(splits, now_ms)
        # A subscription would make a topic again that was deleted.
        self._keep([split for split in splits if ledgers[split.split_id].ledgers], now_ms)
        splits = [self._where(split) for split in splits]
        ends = self._visible(splits, ends_now(splits, ledgers))
        # Who is first differs from plan to plan: what is left over for the last ones may be too little.
        self._turn += 1
        turned = [*splits[self._turn % len(splits) :], *splits[: self._turn % len(splits)]] if splits else []
        if limits.max_bytes is not None:
            ends = within_bytes(turned, ends, ledgers, limits.max_bytes)
        before_ms = None if self._time_of is None else limits.before_event_time_ms
        if ends and (limits.max_rows is not None or before_ms is not None):
            ends = self._ahead().nearer(turned, ends, limits.max_rows, before_ms)
        return planned(splits, ends, ledgers)

    def next_event_times(self, splits: Sequence[PulsarSplit]) -> Mapping[str, int | None] | None:
        """Return the event time of each split's next message, if it is a column of Pulsar's own; else None. Blocks.

        Raises
        ------
        SourceUnavailableError
            The brokers do not answer, or messages do not come within ``pollTimeoutMs``.
        """
        if self._time_of is None:
            return None
        if not splits:
            return {}
        ledgers = self._look(splits, time.time_ns() // 1_000_000)
        splits = [self._where(split) for split in splits]
        ends = self._visible(splits, ends_now(splits, ledgers))
        return self._ahead().next_times([split for split in splits if split.split_id in ends])

    def lag(self, splits: Sequence[PulsarSplit], now_ms: int) -> Mapping[str, int]:
        """Return how many entries, each a message or a batch of them, are not read yet. Blocks."""
        ledgers = self._look(splits, now_ms)
        left = [of.entries_after(split.position) for split in splits if (of := ledgers.get(split.split_id))]
        return {"entriesBehindLatest": sum(left), "maxEntriesBehindLatest": max(left, default=0)}

    def _enumerator(self, context: SplitEnumeratorContext[PulsarSplit], state: PulsarState | None) -> PulsarEnumerator:
        require_client_library()
        bounded = context.boundedness is Boundedness.BOUNDED
        starts, ends = start_of(self.options, bounded=bounded), end_of(self.options, bounded=bounded)
        discovery = Discovery(
            self._brokers(),
            self._readers(),
            self._subscription,
            starts,
            ends if bounded else None,
            fail_on_data_loss=self.options["failOnDataLoss"],
        )
        subscription = None if bounded else self.options["predefinedSubscription"]

        def discover(known: frozenset[TopicPartition], initial: bool) -> Sequence[PulsarSplit]:
            found = discovery(known, initial)
            if subscription is not None:
                move_subscription(self._brokers(), subscription, found)
            return found

        interval_ms = self.options["partition.discovery.interval"]
        return PulsarEnumerator(context, discover, self._subscription, self._assigner, interval_ms or None, state)

    def _look(self, splits: Sequence[PulsarSplit], now_ms: int) -> dict[str, Ledgers]:
        """Return the ledgers of the splits' partitions, by id, not always as they are this instant. Blocks."""
        wanted = {split.split_id for split in splits}
        if wanted <= self._ledgers.keys() and 0 <= now_ms - self._asked_ms < _LEDGERS_AGAIN_MS:
            return self._ledgers
        admin, found = self._brokers(), {}
        # A topic that was deleted and made again may have partitions now, where it had none, or have none any longer.
        by_topic: dict[tuple[str, bool], list[PulsarSplit]] = {}
        for split in splits:
            by_topic.setdefault((split.topic, split.partition != NOT_PARTITIONED), []).append(split)
        for (topic, is_partitioned), of_topic in by_topic.items():
            if not is_partitioned:
                of = admin.ledgers(topic)
                there = {} if of is None else {NOT_PARTITIONED: of}
            else:
                there = admin.ledgers_of_partitions(topic, [split.partition for split in of_topic])
            for split in of_topic:
                ledgers = there.get(split.partition, Ledgers(()))
                self._check(split, ledgers)
                found[split.split_id] = ledgers
        self._ledgers, self._asked_ms = found, now_ms
        return found

    def _check(self, split: PulsarSplit, ledgers: Ledgers) -> None:
        """Raise if messages of a split were lost that no plan has."""
        known = self._known.get(split.split_id, ledgers)
        at = self._where(split).position
        self._known[split.split_id] = remembered(known, ledgers, at)
        if at is None or at.ledger in ledgers:
            return
        if not is_lost(at, None, known, ledgers):
            if split.position is not None and ledgers.beginning is not None:
                self._went_on[split.split_id] = split.position, ledgers.beginning
            return
        error = messages_gone(split, ledgers.beginning)
        if self.options["failOnDataLoss"]:
            raise error
        if self._warned.get(split.split_id) != at:
            logger.warning("%s It is false: reading goes on.", error)
        self._warned[split.split_id] = at

    def _where(self, split: PulsarSplit) -> PulsarSplit:
        """Return a split whose ledger was read to its end, and is gone, before the one that followed it.

        Tasks could not know that nothing was lost.
        """
        before, now = self._went_on.get(split.split_id, (None, None))
        return msgspec.structs.replace(split, position=now) if now is not None and split.position == before else split

    def _visible(self, splits: Sequence[PulsarSplit], ends: Mapping[str, Position]) -> dict[str, Position]:
        """Return ends that are before what open transactions have written: that is not given to readers yet. Blocks."""
        admin, found = self._brokers(), dict(ends)
        for split in splits:
            if split.split_id not in ends:
                continue
            last = admin.before_open_transactions(split.name)
            if last is not None and last < ends[split.split_id]:
                del found[split.split_id]
                if split.position is None or last > split.position:
                    found[split.split_id] = last
        return found

    def _keep(self, splits: Sequence[PulsarSplit], now_ms: int) -> None:
        """Move the durable subscription now and then: what lies before these positions, Spark has finished."""
        name = self.options["predefinedSubscription"]
        if name is not None and not 0 <= now_ms - self._moved_ms < _SUBSCRIPTION_AGAIN_MS:
            self._moved_ms = now_ms
            move_subscription(self._brokers(), name, splits)

    def _ahead(self) -> Scout:
        if self._scout is None:
            self._scout = Scout(self._readers(), self._time_of)
        return self._scout

    def _readers(self) -> PartitionReaders:
        return PartitionReaders(self._config, self._reader_arguments, self.options["pollTimeoutMs"])

    def _brokers(self) -> PulsarAdmin:
        if self._admin is None:
            self._admin = PulsarAdmin(self._config)
        return self._admin
