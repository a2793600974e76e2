"""What a continuous query is made of, as a value: sources, their operators, the sink, and the settings.

Never: import pyspark, open anything, or keep a client: a definition is pickled (by cloudpickle, for the
user's functions in it) from the driver to every slot.

A node feeds every node that names its uid among its ``inputs``; all ways lead to one sink. Exchanges cut the graph into
stages: within one, rows stay in their subtask. A stage either reads sources (the first one) or consumes exchanges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from headgate.errors import OptionError
from headgate.operators.exchange import Exchange
from headgate.operators.operator import KeyedOperator, Operator
from headgate.operators.with_watermark import WithWatermark
from headgate.protocol.state_schema import StateSchema
from headgate.sink import Sink
from headgate.source import (
    Boundedness,
    Options,
    Source,
    SupportsSplitReassignmentOnRecovery,
    WatermarkStrategy,
)

SINK_UID = "sink"
"""The uid of every query's sink."""
BAD_RECORDS_UID = "bad-records"
"""The uid of the sink of records that could not be processed."""
LATE_ROWS_UID = "late-rows"
"""The uid of the sink of rows that came after the watermark."""


@dataclass(frozen=True, kw_only=True)
class SourceDefinition:
    """A source of a query.

    Parameters
    ----------
    uid
        Names it in checkpoints.
    source
        Makes its enumerator and its readers.
    schema
        The columns that are read: `SplitEnumeratorContext.schema` and `SourceReaderContext.schema`.
    boundedness
        How it is read.
    watermark_strategy
        How its watermarks are made; None: only those that it emits itself count. Its event-time column is one of
        ``schema``, or of the operator that `StageGraph.event_time_operator` names.
    """

    uid: str
    source: Source  # type: ignore[type-arg]  # whatever its splits and its state are
    schema: pa.Schema
    boundedness: Boundedness
    watermark_strategy: WatermarkStrategy | None = None

    @property
    def reassigns_on_recovery(self) -> bool:
        """Whether its readers report their splits after recovery instead of keeping them (FLIP-537)."""
        return isinstance(self.source, SupportsSplitReassignmentOnRecovery)


@dataclass(frozen=True, kw_only=True)
class OperatorNode:
    """An operator, the uids of the sources and operators that feed it, and whether the user chose its own."""

    operator: Operator
    inputs: tuple[str, ...]
    named: bool = False

    @property
    def uid(self) -> str:
        """The operator's uid."""
        return self.operator.uid


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one subtask of a stage does.

    Parameters
    ----------
    number
        Counts the stages, from 0, in the order of the data.
    sources
        What it reads; only in stage 0.
    inputs
        The exchanges that it consumes, by uid; none in stage 0.
    operators
        Its operators, each after what feeds it.
    outputs
        The exchanges that it produces, by uid.
    feeds
        By the uid of a source, an input or an operator: the uids of operators, outputs and the sink that get its rows,
        once for each time they do.
    has_sink
        Whether rows go from here to the sink.
    """

    number: int
    sources: tuple[SourceDefinition, ...]
    inputs: Mapping[str, Exchange]
    operators: tuple[OperatorNode, ...]
    outputs: Mapping[str, Exchange]
    feeds: Mapping[str, tuple[str, ...]]
    has_sink: bool

    @property
    def uids(self) -> tuple[str, ...]:
        """The uids of what may have state in it."""
        own = (*(each.uid for each in self.sources), *(each.uid for each in self.operators))
        return (*own, SINK_UID) if self.has_sink else own


@dataclass(frozen=True, kw_only=True)
class StageGraph:
    """The sources of a query and the operators between them and the sink.

    Parameters
    ----------
    sources
        In the order in which the program names them.
    operators
        Each after all that feed it.
    output
        The uid of the source or operator whose rows go to the sink.

    Raises
    ------
    OptionError
        Two of them, or one and the sink, have the same uid, or `event_time_operator` cannot decide.
    """

    sources: tuple[SourceDefinition, ...]
    operators: tuple[OperatorNode, ...]
    output: str

    def __post_init__(self) -> None:
        taken = (*self.uids, BAD_RECORDS_UID, LATE_ROWS_UID)
        twice = sorted(uid for uid, count in Counter(taken).items() if count > 1)
        if twice:
            raise OptionError(
                f"The query names {', '.join(map(repr, twice))} more than once: state is matched by these names. Give "
                f"each source and operator a .alias(...) of its own; {SINK_UID!r}, {BAD_RECORDS_UID!r} and "
                f"{LATE_ROWS_UID!r} are taken.",
                option="name", value=twice,
            )  # fmt: skip
        known = {source.uid for source in self.sources}
        for node in self.operators:
            assert known.issuperset(node.inputs), f"{node.uid} precedes what feeds it: {node.inputs}"
            known.add(node.uid)
        assert self.output in known, f"nothing has the uid {self.output!r}"
        for source in self.sources:
            self.event_time_operator(source.uid)
        for node in self.operators:
            assert len({self.stage_of(uid) + self._is_exchange(uid) for uid in node.inputs}) == 1, (
                f"{node.uid} has inputs of several stages"
            )
            if isinstance(node.operator, WithWatermark) and self.stage_of(node.uid) > 0:
                raise OptionError(
                    "withWatermark is called after groupBy or repartition; watermarks are made where sources are read: "
                    "call it first.",
                    option="withWatermark", value=node.uid,
                )  # fmt: skip

    @property
    def uids(self) -> tuple[str, ...]:
        """All uids in the order of the data, the sink's last."""
        return (*(each.uid for each in self.sources), *(each.uid for each in self.operators), SINK_UID)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns that the sink gets."""
        return self.schemas[self.output]

    @cached_property
    def schemas(self) -> dict[str, pa.Schema]:
        """The columns of the rows of each source and operator, by uid."""
        schemas = {each.uid: each.schema for each in self.sources}
        return schemas | {each.uid: each.operator.schema for each in self.operators}

    @cached_property
    def threads(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the stages that share a thread in each slot: those of which no operator blocks."""
        blocking = [each.number for each in self.stages if any(node.operator.blocks for node in each.operators)]
        shared = tuple(each.number for each in self.stages if each.number not in blocking)
        return tuple(sorted(each for each in (shared, *((number,) for number in blocking)) if each))

    def sharing_thread(self, stage: int) -> tuple[int, ...]:
        """Return the numbers of the stages that share the thread of a stage, its own among them."""
        return next(each for each in self.threads if stage in each)

    @cached_property
    def late_rows_of(self) -> tuple[str, pa.Schema] | None:
        """The uid of the first operator to which rows can come too late, and their columns; None: there is none."""
        for node in self.operators:
            schema = node.operator.late_schema if isinstance(node.operator, KeyedOperator) else None
            if schema is not None:
                return node.uid, schema
        return None

    @cached_property
    def _stages_of(self) -> dict[str, int]:
        numbers = {source.uid: 0 for source in self.sources}
        for node in self.operators:
            numbers[node.uid] = max(numbers[uid] + self._is_exchange(uid) for uid in node.inputs)
        return numbers

    def stage_of(self, uid: str) -> int:
        """Return the number of the stage of a source or operator; of an exchange, that of its producers."""
        return self._stages_of[uid]

    @cached_property
    def exchanges(self) -> dict[str, Exchange]:
        """The exchanges, by uid."""
        return {node.uid: node.operator for node in self.operators if isinstance(node.operator, Exchange)}

    @property
    def signatures(self) -> dict[str, str]:
        """What keyed state, and rows on their way by key, are of, by the uid of the operator or exchange."""
        return {
            node.uid: node.operator.signature
            for node in self.operators
            if isinstance(node.operator, KeyedOperator | Exchange) and node.operator.signature
        }

    @property
    def named(self) -> frozenset[str]:
        """The uids of operators that the user chose."""
        return frozenset(node.uid for node in self.operators if node.named)

    @property
    def state_schemas(self) -> dict[str, StateSchema]:
        """Which columns these have, by the uid of the operator or exchange, where they may change."""
        return {
            node.uid: node.operator.state_schema
            for node in self.operators
            if isinstance(node.operator, KeyedOperator | Exchange) and node.operator.state_schema is not None
        }

    def _is_exchange(self, uid: str) -> bool:
        return uid in self.exchanges

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in the order of the data."""
        last = self.stage_of(self.output) + self._is_exchange(self.output)
        return tuple(self._stage(number, number == last) for number in range(last + 1))

    def consumer_stage(self, exchange: str) -> int:
        """Return the stage that consumes an exchange."""
        downstream = (self.stage_of(node.uid) for node in self.operators if exchange in node.inputs)
        return next(downstream, self.stage_of(exchange) + 1)  # the sink's stage has no operator for its own

    def is_broadcast(self, exchange: str) -> bool:
        """Return whether all subtasks downstream of an exchange receive the same watermarks, sooner or later.

        All do but those of a ``forward`` exchange, who receive what their only producer sends; unless the producers
        receive the same themselves.
        """
        return self.exchanges[exchange].exchange_kind != "forward" or self.idles_together(self.stage_of(exchange))

    def idles_together(self, stage: int) -> bool:
        """Return whether no subtask of a stage stays idle unless all do: one of its inputs is broadcast.

        All sources are in stage 0: while one of its subtasks is not idle, no broadcast input downstream of it is.
        """
        return any(self.is_broadcast(uid) for uid in self.exchanges if self.consumer_stage(uid) == stage)

    def _stage(self, number: int, last: bool) -> Stage:
        sources = self.sources if number == 0 else ()
        inputs = {uid: each for uid, each in self.exchanges.items() if self.consumer_stage(uid) == number}
        outputs = {uid: each for uid, each in self.exchanges.items() if self.stage_of(uid) == number}
        operators = tuple(
            node for node in self.operators if self.stage_of(node.uid) == number and not self._is_exchange(node.uid)
        )
        feeding = (*(each.uid for each in sources), *inputs, *(node.uid for node in operators))
        return Stage(
            number=number,
            sources=sources,
            inputs=inputs,
            operators=operators,
            outputs=outputs,
            feeds={uid: self.consumers(uid) for uid in feeding},
            has_sink=last,
        )

    def consumers(self, uid: str) -> tuple[str, ...]:
        """Return the uids of what a source or an operator feeds, the sink's included, once for each time it does."""
        fed = tuple(node.uid for node in self.operators for each in node.inputs if each == uid)
        return (*fed, SINK_UID) if uid == self.output else fed

    def inputs_fed_by(self, uid: str) -> tuple[tuple[str, int], ...]:
        """Return what a source or an operator feeds, as `consumers`, each with which of its inputs that is."""
        fed = [(node.uid, number) for node in self.operators for number, each in enumerate(node.inputs) if each == uid]
        return (*fed, (SINK_UID, 0)) if uid == self.output else tuple(fed)

    @cached_property
    def watermark_delays_ms(self) -> dict[str, int]:
        """By the uid of an operator: how far the watermark of what it takes is below that of its stage."""
        delays: dict[str, int] = {}
        nodes = {node.uid: node.operator for node in self.operators}

        def after(uid: str) -> int:
            operator = nodes.get(uid)
            if operator is None or isinstance(operator, Exchange):  # those of an exchange are its producers' own
                return 0
            return delays[uid] + operator.watermark_delay_ms

        for node in self.operators:
            delays[node.uid] = max(map(after, node.inputs))
        return delays

    def event_time_operator(self, source: str) -> str | None:
        """Return the uid of the operator that finds a source's event times; None: they are in its own columns.

        Raises
        ------
        OptionError
            Its rows reach the sink by several ways, and not all have the same last ``withWatermark``.
        """
        found: dict[str, set[str | None]] = {source: {None}}
        for node in self.operators:
            before = {last for each in node.inputs for last in found.get(each, ())}
            if before:
                found[node.uid] = {node.uid} if isinstance(node.operator, WithWatermark) else before
        last = found.get(self.output, {None})
        if len(last) > 1:
            raise OptionError(
                f"The rows of the source {source!r} reach the sink by several ways with different withWatermark: call "
                "it once, after the union of these ways.",
                option="withWatermark", value=source,
            )  # fmt: skip
        return next(iter(last))


@dataclass(frozen=True, kw_only=True)
class LateRows:
    """The operator whose late rows are kept, where they go, and their columns."""

    uid: str
    sink: Sink
    schema: pa.Schema


@dataclass(frozen=True, kw_only=True)
class QueryDefinition:
    """A validated query: what `start` hands to who runs it.

    Parameters
    ----------
    name
        The query's name; None: it has none.
    graph
        Sources and operators.
    sink, sink_format
        The sink, whose uid is `SINK_UID`, and the name that the user gave to ``format``.
    options
        The options of continuous queries, parsed: `headgate.graph.query_options`.
    checkpoint_location
        Where the checkpoints are; None: nothing is to outlive the query.
    checkpoint_interval_ms
        The time from the beginning of a checkpoint to that of the next, in milliseconds.
    parallelism
        How many slots.
    from_savepoint
        The savepoint to start from; None: the newest checkpoint at the location, if there is one.
    bad_records
        What is done with records on which a function fails: ``fail``, ``skip`` or ``sink``.
    late_rows_sink
        Where rows go that came after the watermark, with the columns of the operator's input; None: they are counted
        and dropped.
    bad_records_sink
        Where they go with ``sink``, with the columns of `headgate.operators.bad_records.SCHEMA` and the uid
        `BAD_RECORDS_UID`.
    time_zone
        The session's: in which texts without a time zone are read.
    """

    graph: StageGraph
    sink: Sink
    sink_format: str
    options: Options
    parallelism: int
    name: str | None = None
    checkpoint_location: str | None = None
    checkpoint_interval_ms: int = 1000
    from_savepoint: str | None = None
    bad_records: str = "fail"
    bad_records_sink: Sink | None = None
    late_rows_sink: Sink | None = None
    time_zone: str = "UTC"

    @property
    def sources(self) -> dict[str, SourceDefinition]:
        """The sources by uid."""
        return {each.uid: each for each in self.graph.sources}

    @property
    def late_rows(self) -> LateRows | None:
        """The operator whose late rows go to `late_rows_sink`; None: nobody wants them, or there are none."""
        found = self.graph.late_rows_of
        if found is None or self.late_rows_sink is None:
            return None
        return LateRows(uid=found[0], sink=self.late_rows_sink, schema=found[1])
