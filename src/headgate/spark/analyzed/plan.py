"""A logical plan of Spark's analyzer becomes a plan of Headgate's, node by node.

Never: run anything, or guess: a node that is not in `_NODES` is an `UnsupportedOperationError` with its name.

    Spark                                        Headgate
    -------------------------------------------  ----------------------------------------------------------------
    StreamingRelationV2, DataSourceV2Relation    the source, by the name and the options that are in the node
    Project, Filter                              the operators of these names; a projection that changes nothing: none
    Expand of a sliding window, Aggregate        `headgate.spark.analyzed.aggregates`
    Generate                                     `headgate.spark.analyzed.generators`
    Deduplicate, -WithinWatermark, Distinct      `headgate.spark.analyzed.duplicates`
    Join with rows that end                      `headgate.spark.analyzed.joins`
    Join of two streams                          `headgate.spark.analyzed.stream_joins`
    TransformWithStateInPySpark,                 `headgate.spark.analyzed.stateful`
    FlatMapGroupsInPandasWithState
    SubqueryAlias                                the uid of the source or operator right below, unless it has one
    View, WithCTE, CTERelationRef, ResolvedHint  what they stand for
    Union                                        a union
    EventTimeWatermark                           the watermark strategy of the sources
    Repartition, RepartitionByExpression         exchanges
    Sort, GlobalLimit, LocalLimit                `headgate.spark.analyzed.results`
    MapInArrow, MapInPandas                      the function, as it was pickled for Spark
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.errors import UnsupportedOperationError
from headgate.expressions.expressions import Bound, Call, Column
from headgate.graph.plan import PlanNode, can_be_named, stage_graph, watermarked
from headgate.graph.stage_graph import SourceDefinition
from headgate.operators.filter import Filter
from headgate.operators.operator import KeyedOperator
from headgate.operators.project import Project
from headgate.operators.union import Union
from headgate.operators.windows.assigner import SessionWindow
from headgate.source import Boundedness
from headgate.spark.analyzed.aggregates import aggregated, expanded
from headgate.spark.analyzed.catalyst import with_catalyst
from headgate.spark.analyzed.duplicates import deduplicated
from headgate.spark.analyzed.exchanges import repartitioned, spread
from headgate.spark.analyzed.expressions import NotOnArrowError, not_supported
from headgate.spark.analyzed.functions import has_user_function, mapped
from headgate.spark.analyzed.generators import generated
from headgate.spark.analyzed.joins import joined
from headgate.spark.analyzed.plan_copy import PlanCopy
from headgate.spark.analyzed.results import limited, ordered
from headgate.spark.analyzed.rows import Columns, Rows, Session, is_event_time, unsupported
from headgate.spark.analyzed.scala import JavaObject, class_of, conjuncts, items, texts
from headgate.spark.analyzed.stateful import applied, rows_of, transformed
from headgate.spark.analyzed.stream_joins import join_below, pushed_down, streams_joined
from headgate.spark.analyzed.windows import GapByRow, compared_bounds, needs_columns, window_of, with_windows
from headgate.spark.compatibility import TRANSFORM_WITH_STATE
from headgate.spark.continuous.settings import arrow_schema, session_time_zone
from headgate.spark.continuous.sources import source_node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WATERMARK_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


def plan_of(frame: DataFrame) -> PlanNode:
    """Return the plan of a DataFrame's program.

    Raises
    ------
    UnsupportedOperationError
        It has something that cannot run continuously, or the session wants the highest of several watermarks; the
        error names it.
    OptionError
        A source or an option is wrong, or two columns of the output have the same name.
    """
    with _no_collections(), closing(PlanCopy()) as copy:
        analyzed = copy.of(frame._jdf.queryExecution().analyzed())
        rows = Translation(frame.sparkSession, copy, streaming=analyzed.isStreaming()).rows(analyzed)
        plan = read_once(_named(rows, analyzed))
    _check_watermark_policy(frame.sparkSession, plan)
    return plan


@contextmanager
def _no_collections() -> Iterator[None]:
    """Have Python look for no garbage in cycles: there is none, and much is made.

    Of 2,000 expressions it would look twice through all that the program has, which took most of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _check_watermark_policy(spark: SparkSession, output: PlanNode) -> None:
    """Check that where several sources have watermarks, the lowest one may count."""
    if str(spark.conf.get(_WATERMARK_POLICY, "min")).lower() == "min":
        return
    sources = [each.uid for each in stage_graph(output).sources if each.watermark_strategy is not None]
    if len(sources) > 1:
        raise UnsupportedOperationError(
            f"The session has {_WATERMARK_POLICY}=max, and the sources {', '.join(sorted(sources))} have "
            "watermarks: a continuous query goes by the lowest of them, so that rows of a slower one are not late. "
            "From one subtask to another goes one watermark for all: none knows which source is ahead elsewhere. "
            f'Call spark.conf.set("{_WATERMARK_POLICY}", "min") before, or run the program with df.writeStream.',
            operation="withWatermark", setting=_WATERMARK_POLICY,
        )  # fmt: skip


def _named(rows: Rows, of: JavaObject) -> PlanNode:
    """Return the node of rows in the columns of a node of Spark's, in its order and by its names."""
    output, rows = list(items(of.output())), with_windows(rows, of)
    node, names = rows.node_of(output), [str(each.name()) for each in output]
    if names == node.schema.names:
        return node
    columns = [Column(Bound(place, name), name) for place, name in enumerate(names)]
    return node.then(Project(node.schema, columns, rows.time_zone))


def read_once(output: PlanNode) -> PlanNode:
    """Return a plan in which each source stands once: a DataFrame that is used twice is read once.

    Raises
    ------
    UnsupportedOperationError
        It would be read with two different watermarks.
    """
    sources: dict[int, PlanNode] = {}
    made: dict[PlanNode, PlanNode] = {}

    def merged(node: PlanNode) -> PlanNode:
        if node not in made:
            if isinstance(node.of, SourceDefinition):
                made[node] = _one_source(sources, node, node.of)
            else:
                made[node] = replace(node, inputs=tuple(map(merged, node.inputs)))
        return made[node]

    merged(output)  # finds all names of a source
    made.clear()
    return merged(output)


def _one_source(sources: dict[int, PlanNode], node: PlanNode, definition: SourceDefinition) -> PlanNode:
    known = sources.setdefault(id(definition.source), node)
    assert isinstance(known.of, SourceDefinition)
    if known.of.watermark_strategy != definition.watermark_strategy:
        raise UnsupportedOperationError(
            f"The source {known.name or definition.uid!r} is read once, and its rows are used with different "
            "watermarks. Call withWatermark once, before the DataFrame is used twice, or load it twice.",
            operation="withWatermark", source=definition.uid,
        )  # fmt: skip
    if known.name is None and node.name is not None:
        known = sources[id(definition.source)] = node
    return known


class Translation:
    """Translates the nodes of one plan.

    Parameters
    ----------
    spark
        The session.
    copy
        The copy that the plan is.
    streaming
        Whether one of its sources is read for ever.
    """

    def __init__(self, spark: SparkSession, copy: PlanCopy, *, streaming: bool) -> None:
        self.spark = spark
        self.session = Session(spark, session_time_zone(spark), streaming, copy)
        self._boundedness = Boundedness.CONTINUOUS_UNBOUNDED if streaming else Boundedness.BOUNDED
        self._streaming = streaming
        self._relations: dict[tuple[int, ...], PlanNode] = {}
        self._definitions: dict[int, JavaObject] = {}
        self._defined: dict[int, Rows] = {}
        self._names: dict[str, int] = {}

    def rows(self, node: JavaObject) -> Rows:
        """Return what a node has become.

        Raises
        ------
        UnsupportedOperationError
            It cannot run continuously.
        """
        make = _NODES.get(class_of(node))
        if make is None:
            raise unsupported(node, "it is not supported yet")
        return make(self, node)

    def source(self, node: JavaObject, name: str, options: dict[str, str]) -> Rows:
        """Return the rows of a source; of one that is there already, those."""
        ids = _ids(node)
        if ids not in self._relations:
            schema = arrow_schema(_schema(node))
            self._relations[ids] = source_node(self.spark, name, options, schema, self._boundedness)
        places = {number: place for place, number in enumerate(ids)}
        return Rows(node=self._relations[ids], places=places, windows={}, session=self.session)

    def named(self, rows: Rows, name: str) -> Rows:
        """Return rows whose source or operator has a name, unless it has one or the name is another's already."""
        node = rows.node
        which = id(node.of.source) if isinstance(node.of, SourceDefinition) else id(node.of)
        if node.name is not None or not can_be_named(name) or self._names.setdefault(name, which) != which:
            return rows
        return replace(rows, node=node.named(name))

    def defined(self, number: int, node: JavaObject) -> None:
        """Note what a common table expression stands for."""
        self._definitions[number] = node

    def referred(self, number: int, node: JavaObject) -> Rows:
        """Return the rows of a common table expression, under the ids that its reference has."""
        definition = self._definitions[number]
        if number not in self._defined:
            self._defined[number] = self.rows(definition)
        rows, ids = self._defined[number], _ids(definition)
        again = dict(zip(ids, _ids(node)))
        return replace(
            rows,
            places={again[each]: place for each, place in rows.places.items() if each in again},
            windows={again[each]: window for each, window in rows.windows.items() if each in again},
        )

    def is_static(self, node: JavaObject) -> bool:
        """Return whether Spark collects the rows of a node: they end, and are not those of a source of ours."""
        return not node.isStreaming() if self._streaming else not any(map(_is_ours, items(node.collectLeaves())))

    def defines_watermark(self, node: JavaObject) -> bool:
        """Return whether ``withWatermark`` of a stream is among what leads to a node."""
        if class_of(node) == "CTERelationRef":
            return self.defines_watermark(self._definitions[node.cteId()])
        if class_of(node) == "EventTimeWatermark" and node.isStreaming():
            return True
        return any(map(self.defines_watermark, items(node.children())))

    def is_join_of_streams(self, node: JavaObject) -> bool:
        """Return whether a node joins rows of ours with others of ours."""
        return class_of(node) == "Join" and not self.is_static(node.left()) and not self.is_static(node.right())

    def only_batch(self, node: JavaObject) -> None:
        """Refuse a relation that ends in a query that does not."""
        if self._streaming:
            raise unsupported(node, "rows that end beside a stream that does not are not supported yet")


def _is_ours(leaf: JavaObject) -> bool:
    return class_of(leaf) == "DataSourceV2Relation" and class_of(leaf.table()) == "PythonTable"


def _ids(node: JavaObject) -> tuple[int, ...]:
    return tuple(each.exprId().id() for each in items(node.output()))


def _schema(node: JavaObject) -> Any:
    import json

    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(node.schema().json()))


# The nodes.


def _streaming_relation(own: Translation, node: Any) -> Rows:
    return own.source(node, str(node.sourceName()), texts(node.extraOptions().asCaseSensitiveMap()))


def _batch_relation(own: Translation, node: Any) -> Rows:
    own.only_batch(node)
    if class_of(node.table()) != "PythonTable":
        raise unsupported(node, "it is read by Spark itself")
    return own.source(node, str(node.table().name()), texts(node.options().asCaseSensitiveMap()))


def _project(own: Translation, node: Any) -> Rows:
    return project(own.rows(node.child()), list(items(node.projectList())))


def project(before: Rows, named: list[JavaObject]) -> Rows:
    """Return rows with the columns of named expressions."""
    expressions, columns, windows, values = before.expressions(), Columns(), {}, []
    by_row: dict[int, GapByRow] = {}
    passed: set[int] = set()
    for each in named:
        try:
            window = window_of(expressions, each)
        except NotOnArrowError as why:
            raise not_supported(each, why) from None
        value = each.child() if class_of(each) == "Alias" else each
        if window is None and class_of(value) == "AttributeReference":
            window = before.windows.get(value.exprId().id())
            passed |= set() if window is None else {value.exprId().id()}
        if isinstance(window, GapByRow):
            by_row[each.exprId().id()] = window
        elif window is not None:
            windows[each.exprId().id()] = window
        else:
            values.append(each)
    if needs_columns(before, values, passed):
        return project(with_windows(before, named[0]), named)
    before, known = with_catalyst(before, [*values, *(each.end for each in by_row.values())])
    expressions = before.expressions(known)
    windows |= {number: each.made(expressions) for number, each in by_row.items()}
    places = {each.exprId().id(): columns.add(expressions.compiled(each), str(each.name())) for each in values}
    windows = {number: columns.window(each) for number, each in windows.items()}
    return replace(before, node=before.projected(columns.made), places=places, windows=windows)


def _filter(own: Translation, node: Any) -> Rows:
    child = node.child()
    if own.is_join_of_streams(join_below(child)):
        pushed = own.session.copy.of(pushed_down(node))
        if class_of(pushed) != "Filter":
            return own.rows(pushed)
        node, child = pushed, pushed.child()
    before = own.rows(child)
    if class_of(child) == "Expand":  # of sliding windows: the filter is the analyzer's, for rows that are in none
        (time,) = {window.time for window in before.windows.values()}
        has_time = Column(Call("isnotnull", (time,)))
        return before.then(Filter(before.node.schema, has_time, before.time_zone))
    by_row = {number: each for number, each in before.windows.items() if isinstance(each, SessionWindow) and each.end}
    for each in conjuncts(node.condition()) if by_row else sorted(_conjuncts(node.condition()), key=has_user_function):
        window = by_row.get(compared_bounds(each))
        if window is None or window.end is None:
            before = filtered(before, each)
        else:  # the analyzer's, for rows whose gap is none
            has_gap = Column(Call(">", (window.end, window.time)))
            before = before.then(Filter(before.node.schema, has_gap, before.time_zone))
    return before


def _conjuncts(condition: JavaObject) -> list[JavaObject]:
    """Return the conditions that all must hold, if users' functions are called for some: only where others hold."""
    if class_of(condition) == "And" and has_user_function(condition):
        return [*_conjuncts(condition.left()), *_conjuncts(condition.right())]
    return [condition]


def filtered(before: Rows, condition: JavaObject) -> Rows:
    """Return the rows for which a condition is true."""
    if needs_columns(before, [condition], before.windows):
        before = with_windows(before, condition)
    wide, known = with_catalyst(before, [condition])
    made = Column(wide.expressions(known).compiled(condition))
    rows = wide.then(Filter(wide.node.schema, made, wide.time_zone))
    return rows if wide is before else replace(before, node=rows.projected(before.all()))


def _alias(own: Translation, node: Any) -> Rows:
    return own.named(own.rows(node.child()), str(node.alias()))


def _union(own: Translation, node: Any) -> Rows:
    children = list(items(node.children()))
    rows = [with_windows(own.rows(each), each) for each in children]
    outputs = [list(items(each.output())) for each in children]
    nodes = [each.node_of(output) for each, output in zip(rows, outputs)]
    made = PlanNode(of=Union(*(each.schema for each in nodes)), inputs=tuple(nodes))
    places = {number: place for place, number in enumerate(_ids(node))}
    # In Spark the columns of a union are those of its first rows, event time included.
    lost = not _has_watermark(nodes[0]) and any(
        _has_watermark(each) and any(map(is_event_time, output)) for each, output in zip(nodes[1:], outputs[1:])
    )
    lost |= any(each.lost_event_time for each in rows)
    return Rows(node=made, places=places, windows={}, session=own.session, lost_event_time=lost)


def _watermark(own: Translation, node: Any) -> Rows:
    before = own.rows(node.child())
    number = node.eventTime().exprId().id()
    if number not in before.places or pa.types.is_struct(before.node.schema.field(before.places[number]).type):
        raise unsupported(node, "the event time is a window, of which Spark reads no time: name its window_time()")
    if _has_state(before.node):
        raise unsupported(node, "rows before it come by a watermark, which in Spark waits for this one: nothing ends")
    if own.defines_watermark(node.child()):
        raise unsupported(node, "Redefining watermark is disallowed: call withWatermark once")
    delay_ms = int(node.getDelayMs(node.delay()))
    return replace(before, node=watermarked(before.node, before.places[number], delay_ms))


def _has_state(node: PlanNode) -> bool:
    return isinstance(node.of, KeyedOperator) or any(map(_has_state, node.inputs))


def _has_watermark(node: PlanNode) -> bool:
    return any(source.watermark_strategy is not None for source in node.sources())


def _expand(own: Translation, node: Any) -> Rows:
    return expanded(own.rows(node.child()), node)


def _aggregate(own: Translation, node: Any) -> Rows:
    return aggregated(own.rows(node.child()), node)


def _generate(own: Translation, node: Any) -> Rows:
    return generated(own.rows(node.child()), node)


def _deduplicate(own: Translation, node: Any) -> Rows:
    return deduplicated(own.rows(node.child()), node)


def _side(own: Translation, node: Any, join: Any) -> Rows:
    """Return one side of a join: filters that were pushed down to it may be of its windows."""
    child = node.child() if class_of(node) == "Filter" else None
    if child is None or class_of(child) == "Expand" or own.is_join_of_streams(join_below(child)):
        return with_windows(own.rows(node), join)
    before = _side(own, child, join)
    for each in sorted(_conjuncts(node.condition()), key=has_user_function):
        before = filtered(before, each)
    return before


def _join(own: Translation, node: Any) -> Rows:
    if own.is_join_of_streams(node):
        pushed = own.session.copy.of(pushed_down(node))
        return streams_joined([_side(own, each, pushed) for each in (pushed.left(), pushed.right())], pushed)
    left = own.is_static(node.left())
    if left and own.is_static(node.right()):
        raise unsupported(node, "there is no stream in it")
    rows, conditions = joined(own.rows(node.right() if left else node.left()), node, on_the_left=left)
    for each in sorted(conditions, key=has_user_function):
        rows = filtered(rows, each)
    return rows


def _transform_with_state(own: Translation, node: Any, event_time: str = "") -> Rows:
    below = rows_of(node)
    before = _named(own.rows(below), below)
    made = transformed(own.spark, before, node, _schema(node), event_time)
    places = {number: place for place, number in enumerate(_ids(node))}
    return Rows(node=made, places=places, windows={}, session=own.session)


def _apply_in_pandas_with_state(own: Translation, node: Any) -> Rows:
    before = _named(own.rows(node.child()), node.child())
    made = applied(own.session, before, node, arrow_schema(_schema(node)))
    places = {number: place for place, number in enumerate(_ids(node))}
    return Rows(node=made, places=places, windows={}, session=own.session)


def _event_time_of_state(own: Translation, node: Any) -> Rows:
    if class_of(node.child()) not in TRANSFORM_WITH_STATE:
        raise unsupported(node, "it is of something else than transformWithState")
    return _transform_with_state(own, node.child(), str(node.eventTime().name()))


def _repartition(own: Translation, node: Any) -> Rows:
    return spread(own.rows(node.child()), int(node.numPartitions()))


def _repartition_by(own: Translation, node: Any) -> Rows:
    return repartitioned(own.rows(node.child()), node)


def _map(own: Translation, node: Any) -> Rows:
    before = _named(own.rows(node.child()), node.child())
    made = mapped(own.spark, before, node, arrow_schema(_schema(node)))
    places = {number: place for place, number in enumerate(_ids(node))}
    return Rows(node=made, places=places, windows={}, session=own.session)


def _sort(own: Translation, node: Any) -> Rows:
    return ordered(own.rows(node.child()), node)


def _limit(own: Translation, node: Any) -> Rows:
    return limited(own.rows(node.child()), node)


def _child(own: Translation, node: Any) -> Rows:
    return own.rows(node.child())


def _with_definitions(own: Translation, node: Any) -> Rows:
    for each in items(node.cteDefs()):
        own.defined(each.id(), each.child())
    return own.rows(node.plan())


def _reference(own: Translation, node: Any) -> Rows:
    return own.referred(node.cteId(), node)


_NODES: dict[str, Callable[[Translation, Any], Rows]] = {
    "StreamingRelationV2": _streaming_relation,
    "DataSourceV2Relation": _batch_relation,
    "Project": _project,
    "Filter": _filter,
    "Expand": _expand,
    "Aggregate": _aggregate,
    "Generate": _generate,
    "Deduplicate": _deduplicate,
    "DeduplicateWithinWatermark": _deduplicate,
    "Distinct": _deduplicate,
    "Join": _join,
    **dict.fromkeys(TRANSFORM_WITH_STATE, _transform_with_state),
    "FlatMapGroupsInPandasWithState": _apply_in_pandas_with_state,
    "UpdateEventTimeWatermarkColumn": _event_time_of_state,
    "SubqueryAlias": _alias,
    "View": _child,
    "ResolvedHint": _child,
    "WithCTE": _with_definitions,
    "CTERelationRef": _reference,
    "Union": _union,
    "EventTimeWatermark": _watermark,
    "Repartition": _repartition,
    "RepartitionByExpression": _repartition_by,
    "Sort": _sort,
    "GlobalLimit": _limit,
    "LocalLimit": _child,
    "MapInArrow": _map,
    "MapInPandas": _map,
}
