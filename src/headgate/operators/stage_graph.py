"""What a continuous query is made of, as a value: sources, the operators behind them, the sink, and the settings.

Never: import pyspark, open anything, or keep a client: a definition is pickled (by ``pyspark.cloudpickle``, for the
user's functions in it) from the driver to every slot.

Everything here is one stage: rows stay in the subtask that read them. A node feeds every node that names its uid among
its ``inputs``; all ways lead to one sink.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from headgate.errors import OptionError
from headgate.operators.operator import Operator, OperatorContext, Sink
from headgate.operators.with_watermark import WithWatermark
from headgate.source import (
    Boundedness,
    Options,
    Source,
    SupportsSplitReassignmentOnRecovery,
    WatermarkStrategy,
)

if TYPE_CHECKING:
    from headgate.operators.chain import StageChain

SINK_UID = "sink"
"""The uid of every query's sink."""
BAD_RECORDS_UID = "bad-records"
"""The uid of the sink of records that could not be processed."""


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
    """An operator, and the uids of the sources and operators that feed it."""

    operator: Operator
    inputs: tuple[str, ...]

    @property
    def uid(self) -> str:
        """The operator's uid."""
        return self.operator.uid


@dataclass(frozen=True, kw_only=True)
class StageGraph:
    """The sources of a query and the operators between them and the sink.

    Parameters
    ----------
    sources
        In the order in which the program names them.
    operators
        Each behind all that feed it.
    output
        The uid of the source or operator whose rows go to the sink.

    Raises
    ------
    OptionError
        Two of them, or one and the sink, have the same uid, or `event_time_operator` cannot tell.
    """

    sources: tuple[SourceDefinition, ...]
    operators: tuple[OperatorNode, ...]
    output: str

    def __post_init__(self) -> None:
        twice = sorted(uid for uid, count in Counter((*self.uids, BAD_RECORDS_UID)).items() if count > 1)
        if twice:
            raise OptionError(
                f"The query names {', '.join(map(repr, twice))} more than once: state is matched by these names. Give "
                f"each source and operator a .name(...) of its own; {SINK_UID!r} and {BAD_RECORDS_UID!r} are taken.",
                option="name", value=twice,
            )  # fmt: skip
        known = {source.uid for source in self.sources}
        for node in self.operators:
            assert known.issuperset(node.inputs), f"{node.uid} stands before what feeds it: {node.inputs}"
            known.add(node.uid)
        assert self.output in known, f"nothing has the uid {self.output!r}"
        for source in self.sources:
            self.event_time_operator(source.uid)

    @property
    def uids(self) -> tuple[str, ...]:
        """All uids in the order of the data, the sink's last."""
        return (*(each.uid for each in self.sources), *(each.uid for each in self.operators), SINK_UID)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns that the sink gets."""
        schemas = {each.uid: each.schema for each in self.sources}
        schemas |= {each.uid: each.operator.schema for each in self.operators}
        return schemas[self.output]

    def consumers(self, uid: str) -> tuple[str, ...]:
        """Return the uids of what a source or an operator feeds, the sink's included, once for each time it does."""
        fed = tuple(node.uid for node in self.operators for each in node.inputs if each == uid)
        return (*fed, SINK_UID) if uid == self.output else fed

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
                "it once, behind the union of these ways.",
                option="withWatermark", value=source,
            )  # fmt: skip
        return next(iter(last))


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
        The options of continuous queries, parsed: `headgate.operators.query_options`.
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
    time_zone: str = "UTC"

    @property
    def sources(self) -> dict[str, SourceDefinition]:
        """The sources by uid."""
        return {each.uid: each for each in self.graph.sources}

    def make_chain(self, context: OperatorContext, items: Mapping[str, Sequence[bytes]]) -> StageChain:
        """Return a subtask's pipeline, not opened yet. Called on the slot.

        Parameters
        ----------
        context
            The subtask's; its ``uid`` does not matter.
        items
            By uid of operator and sink: the list state that the checkpoint holds for this subtask.
        """
        from headgate.operators.chain import StageChain  # which is made of a definition

        return StageChain(self, context, items)
