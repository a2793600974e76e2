"""``headgate.continuous(df)``: the program of a DataFrame, run by long tasks.

Never: change the program: what it means is Spark's to say, and what cannot run so is an error that names it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, overload

from headgate.errors import OptionError
from headgate.graph.explain import explained
from headgate.graph.plan import PlanNode, stage_graph
from headgate.spark.analyzed.plan import plan_of
from headgate.spark.continuous import streams
from headgate.spark.continuous.streams import ContinuousStreams
from headgate.spark.continuous.writer import ContinuousStreamWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@overload
def continuous(df: DataFrame, parallelism: int | None = None) -> ContinuousDataFrame: ...


@overload
def continuous(df: SparkSession, parallelism: int | None = None) -> ContinuousStreams: ...


def continuous(df: DataFrame | SparkSession, parallelism: int | None = None) -> ContinuousDataFrame | ContinuousStreams:
    """Run a program continuously: one Spark job whose tasks go on, with checkpoints and no micro-batches.

    Parameters
    ----------
    df
        The program: a DataFrame whose sources are Headgate's. With ``readStream`` the query runs until it is stopped,
        with ``read`` it ends when everything is read. A session begins a program of the older builder.
    parallelism
        How many slots, long Spark tasks, read and process side by side. The default is Spark's default parallelism,
        which is every core: other work in the session then waits for the query to end.

    Raises
    ------
    OptionError
        The parallelism is below 1, or the DataFrame is one of Spark Connect.

    Examples
    --------
    >>> rides = spark.readStream.format("headgate.datagen").schema("user string, amount long").load()  # doctest: +SKIP
    >>> large = rides.filter("amount > 40").selectExpr("upper(user) AS user", "amount")  # doctest: +SKIP
    >>> query = headgate.continuous(large, parallelism=2).writeStream.format("console").start()  # doctest: +SKIP
    """
    from pyspark.sql import DataFrame

    if not isinstance(df, DataFrame):
        return streams.continuous(df, parallelism)
    if type(df).__module__.startswith("pyspark.sql.connect"):
        raise OptionError(
            "Continuous queries need a session with a SparkContext: Spark Connect has none. Run the program on the "
            "driver (spark-submit), or use df.writeStream.",
            option="df", value=type(df).__qualname__,
        )  # fmt: skip
    return ContinuousDataFrame(df, streams.checked_parallelism(df.sparkSession, parallelism))


class ContinuousDataFrame:
    """A DataFrame's program that is to run continuously. Made by `continuous`.

    Parameters
    ----------
    df
        The program.
    parallelism
        How many slots.
    """

    def __init__(self, df: DataFrame, parallelism: int) -> None:
        self._df = df
        self._parallelism = parallelism

    @property
    def schema(self) -> StructType:
        """The columns."""
        return self._df.schema

    @property
    def writeStream(self) -> ContinuousStreamWriter:
        """Say where the rows go.

        Its ``start()`` raises `headgate.errors.UnsupportedOperationError` if the program has something that cannot run
        continuously; the error names it. ``outputMode()`` does, too: it depends on what the program does.
        """
        return ContinuousStreamWriter(self._df.sparkSession, self._parallelism, lambda: self._plan)

    def explain(self) -> None:
        """Print the stages, what each does with the rows and by what, the exchanges between them, and what is kept.

        Raises
        ------
        UnsupportedOperationError
            The program has something that cannot run continuously; the error names it.
        OptionError
            A source or an option is wrong, or two columns have the same name.
        """
        print(explained(stage_graph(self._plan)))

    @cached_property
    def _plan(self) -> PlanNode:
        return plan_of(self._df)
