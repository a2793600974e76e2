"""Programs as the nodes of their plan, and what their writer asks of a session. No Spark is started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pyarrow as pa

from headgate.expressions.expressions import Bound, Column
from headgate.graph.plan import PlanNode, watermarked
from headgate.graph.stage_graph import QueryDefinition
from headgate.operators.windows.aggregates import Aggregate
from headgate.operators.windows.assigner import NoWindow, SessionWindow, TimeWindow
from headgate.source import Boundedness
from headgate.spark.analyzed.grouping import grouped
from headgate.spark.continuous.sources import source_node
from headgate.spark.continuous.writer import ContinuousStreamWriter

RIDES = pa.schema(
    [("user", pa.string()), ("amount", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us"))]
)
USER, AMOUNT, AT, LOCAL = (Bound(place, name) for place, name in enumerate(RIDES.names))
TEN = TimeWindow(AT, 10_000_000, 10_000_000)
SESSIONS = SessionWindow(AT, 60_000_000)
COUNT, TOTAL = Aggregate("count", name="rides"), Aggregate("sum", AMOUNT, name="total")


class Conf:
    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = {"spark.sql.session.timeZone": "Europe/Berlin", **settings}
        self._jconf = self

    def get(self, key: str, default: str | None = None) -> str | None:
        return self._settings.get(key, default)

    def getAll(self) -> Conf:
        return self

    def mkString(self, separator: str) -> str:
        return separator.join(f"{name} -> {value}" for name, value in self._settings.items())


class Session:
    """What a program asks of a session."""

    class sparkContext:
        defaultParallelism = 6

    def __init__(self, **settings: str) -> None:
        self.conf = Conf({name.replace("__", "."): value for name, value in settings.items()})


def read(
    format: str = "headgate.datagen", session: Session | None = None, *, bounded: bool = False, **options: Any
) -> PlanNode:
    """Return a source of rides."""
    given = {"rowsPerSecond": "5", **options} if format == "headgate.datagen" else options
    boundedness = Boundedness.BOUNDED if bounded else Boundedness.CONTINUOUS_UNBOUNDED
    texts = {name: str(value) for name, value in given.items()}
    return source_node(cast(Any, session or Session()), format, texts, RIDES, boundedness)


def timed(**options: Any) -> PlanNode:
    """Return a source of rides with a watermark."""
    return watermarked(read(**options), AT.index, 5000)


def counted(
    before: PlanNode, *by: Column | TimeWindow | SessionWindow, aggregates: tuple[Aggregate, ...] = (COUNT,)
) -> PlanNode:
    """Return groups of rows."""
    windows = [each for each in by if not isinstance(each, Column)]
    return grouped(before, by, windows[0] if windows else NoWindow(), aggregates, "UTC")


def writer(node: PlanNode, session: Session | None = None, parallelism: int = 2) -> ContinuousStreamWriter:
    """Return a writer of a program into memory."""
    return ContinuousStreamWriter(cast(Any, session or Session()), parallelism, lambda: node).format("memory")


def definition(node: PlanNode, **options: Any) -> QueryDefinition:
    """Return what the start of a program would run."""
    return writer(node).options(**options).definition()


def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


Build = Callable[[], Any]
