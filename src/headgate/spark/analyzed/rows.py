"""What a node of Spark's plan has become: rows of ours, and where its attributes are among their columns.

Never: find a column by its name: two of one name are different attributes, which have different ids.

A window that rows are grouped by is no column yet: it is kept as the column of its time, and what windows there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

import headgate.spark.analyzed.rules  # noqa: F401  # enters its rules
from headgate.errors import UnsupportedOperationError
from headgate.expressions.expressions import Bound, Column
from headgate.graph.plan import PlanNode
from headgate.operators.project import Project
from headgate.operators.windows.assigner import SessionWindow, TimeWindow
from headgate.spark.analyzed.expressions import Expressions
from headgate.spark.analyzed.plan_copy import PlanCopy
from headgate.spark.analyzed.scala import JavaObject, class_of, java_map
from headgate.spark.continuous.settings import session_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WATERMARK_DELAY = "spark.watermarkDelayMs"
"""The metadata of an event time: how far the watermark is below it, in milliseconds."""

Window = TimeWindow | SessionWindow


@dataclass(frozen=True)
class Session:
    """What a program is run in.

    Parameters
    ----------
    spark
        The session.
    time_zone
        Its time zone.
    streams
        Whether the program is one that does not end.
    copy
        The copy of its plan.
    """

    spark: SparkSession
    time_zone: str
    streams: bool
    copy: PlanCopy = field(default_factory=PlanCopy)

    @cached_property
    def settings(self) -> JavaObject:
        """The session's SQL settings: some functions ask for them when Spark's own code evaluates them."""
        settings = session_settings(self.spark)
        return java_map({name: value for name, value in settings.items() if name.startswith("spark.sql.")})


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows on their way.

    Parameters
    ----------
    node
        Where they come from, in the plan of ours.
    places
        By the id of an attribute: its column, by number.
    windows
        By the id of an attribute: the windows that it stands for, whose time is a `Bound` column.
    session
        What the program is run in.
    lost_event_time
        Whether they are of a union that has no event time in Spark, since its first rows have none.
    """

    node: PlanNode
    places: dict[int, int]
    windows: dict[int, Window]
    session: Session
    lost_event_time: bool = False

    @property
    def time_zone(self) -> str:
        """The session's time zone."""
        return self.session.time_zone

    def expressions(self, known: Sequence[tuple[Any, Bound]] = ()) -> Expressions:
        """Return what translates expressions over these rows."""
        if not known:
            return self._expressions
        return Expressions(self.node.schema, self.places, self.time_zone, known, self.session.spark, self.session.copy)

    @cached_property
    def _expressions(self) -> Expressions:
        """What translates expressions of which nothing is known: what it has translated once it need not again."""
        return Expressions(self.node.schema, self.places, self.time_zone, (), self.session.spark, self.session.copy)

    def then(self, operator: Any) -> Rows:
        """Return these rows after an operator that leaves the columns as they are."""
        return replace(self, node=self.node.then(operator))

    def all(self) -> list[Column]:
        """Return all columns."""
        return [Column(Bound(index, name)) for index, name in enumerate(self.node.schema.names)]

    def projected(self, columns: Sequence[Column]) -> PlanNode:
        """Return the node of other columns; of these as they are, their own."""
        if [each.node for each in columns] == [each.node for each in self.all()]:
            return self.node
        return self.node.then(Project(self.node.schema, columns, self.time_zone))

    def node_of(self, output: Sequence[JavaObject]) -> PlanNode:
        """Return the node of the columns of some attributes only, in their order; none of them is a window."""
        columns, names = Columns(), self.node.schema.names
        for each in output:
            index = self.places[each.exprId().id()]
            columns.add(Bound(index, names[index]), str(each.name()))
        return self.projected(columns.made)


class Columns:
    """Columns that are made, after the first ones, each under a name that no other of them has."""

    def __init__(self, first: Iterable[Column] = ()) -> None:
        self.made: list[Column] = []
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}  # the last one that a name was given
        self._places: dict[str, int] = {}
        for each in first:
            self.add(each.node, each.name_in_output)

    def add(self, node: Any, name: str) -> int:
        """Add a column and return its number."""
        index = len(self.made)
        self.made.append(Column(node, self.free(name)))
        self._places.setdefault(repr(node), index)
        return index

    def free(self, name: str) -> str:
        """Return a name that nobody has, now taken: this one, or with a number."""
        free, number = name, self._numbers.get(name, 1)
        while free.lower() in self._taken:
            number += 1
            free = f"{name} {number}"
        self._numbers[name] = number
        self._taken.add(free.lower())
        return free

    def place(self, node: Any, name: str) -> int:
        """Return the number of a column with the value of a node, which is added if there is none."""
        index = self._places.get(repr(node))
        return self.add(node, name) if index is None else index

    def window(self, window: Window) -> Window:
        """Return windows whose time is among these columns, as they are of the columns before."""
        if isinstance(window, SessionWindow) and window.end is not None:
            window = msgspec.structs.replace(window, end=self._bound(window.end, "session end"))
        return msgspec.structs.replace(window, time=self._bound(window.time, "event time"))

    def _bound(self, time: Any, name: str) -> Bound:
        index = self.place(time, name)
        return Bound(index, self.made[index].name_in_output)


def is_event_time(column: JavaObject) -> bool:
    """Return whether Spark's analyzer knows an attribute as the event time of its rows."""
    return bool(column.metadata().contains(WATERMARK_DELAY))


def unsupported(node: JavaObject, why: str) -> UnsupportedOperationError:
    """Return the error for a node that cannot run continuously."""
    name = class_of(node)
    return UnsupportedOperationError(
        f"{name} cannot run continuously: {why}. The node is: {str(node.simpleString(25))[:300]}. Run the program with "
        "df.writeStream, or without it.",
        operation=name,
    )
