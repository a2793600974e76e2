"""``headgate.continuous(df)``: the program of a DataFrame, run by long tasks.

Never: change the program: what it means is Spark's to say, and what cannot run so is an error that names it.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING

from headgate.errors import OptionError
from headgate.graph.explain import explained
from headgate.graph.plan import PlanNode, stage_graph
from headgate.graph.query_options import parse_query_options
from headgate.graph.results import has_results, placed
from headgate.graph.two_phase import AGG_PHASE_STRATEGY, with_two_phases
from headgate.operators.windows.windowed import OutputMode
from headgate.spark.analyzed.plan import plan_of
from headgate.spark.analyzed.stream_joins import check_streaming
from headgate.spark.continuous.settings import session_defaults
from headgate.spark.continuous.writer import ContinuousStreamWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)


def continuous(df: DataFrame, parallelism: int | None = None) -> ContinuousDataFrame:
    """Run a program continuously: one Spark job whose tasks go on, with checkpoints and no micro-batches.

    Parameters
    ----------
    df
        The program: a DataFrame whose sources are Headgate's. With ``readStream`` the query runs until it is stopped,
        with ``read`` it ends when everything is read.
    parallelism
        How many slots, long Spark tasks, read and process side by side. The default is Spark's default parallelism,
        which is every core: other work in the session then waits for the query to end.

    Raises
    ------
    OptionError
        The parallelism is below 1, or the DataFrame is none, or one of Spark Connect.

    Examples
    --------
    >>> rides = spark.readStream.format("headgate.datagen").schema("user string, amount long").load()  # doctest: +SKIP
    >>> large = rides.filter("amount > 40").selectExpr("upper(user) AS user", "amount")  # doctest: +SKIP
    >>> query = headgate.continuous(large, parallelism=2).writeStream.format("console").start()  # doctest: +SKIP
    """
    from pyspark.sql import DataFrame

    if type(df).__module__.startswith("pyspark.sql.connect"):
        raise OptionError(
            "Continuous queries need a session with a SparkContext: Spark Connect has none. Run the program on the "
            "driver (spark-submit), or use df.writeStream.",
            option="df", value=type(df).__qualname__,
        )  # fmt: skip
    if not isinstance(df, DataFrame):
        raise OptionError(
            f"headgate.continuous takes a DataFrame, not {type(df).__name__}: build the program with spark.readStream "
            "and PySpark's own functions, and write headgate.continuous(df).writeStream in place of df.writeStream.",
            option="df", value=type(df).__qualname__,
        )  # fmt: skip
    if parallelism is None:
        parallelism = df.sparkSession.sparkContext.defaultParallelism
        _log.warning(
            "headgate.continuous: the query takes all %d cores for as long as it runs. Pass parallelism=... to leave "
            "some to other work.",
            parallelism,
        )
    if isinstance(parallelism, bool) or not isinstance(parallelism, int) or parallelism < 1:
        raise OptionError(
            f"The parallelism is {parallelism!r}; it must be a whole number from 1.",
            option="parallelism", value=parallelism,
        )  # fmt: skip
    return ContinuousDataFrame(df, parallelism)


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
        return ContinuousStreamWriter(self._df.sparkSession, self._parallelism, lambda: self._plan, self._check)

    def _check(self, output_mode: str) -> None:
        """Have Spark check whether its streaming would run the program in an output mode."""
        if self._df.isStreaming:
            check_streaming(self._df._jdf.queryExecution().analyzed(), output_mode)

    def explain(self) -> None:
        """Print the stages, what each does with the rows and by what, the exchanges between them, and what is kept.

        Raises
        ------
        UnsupportedOperationError
            The program has something that cannot run continuously; the error names it.
        OptionError
            A source or an option is wrong, or two columns have the same name.
        """
        mode: OutputMode = "complete" if has_results(self._plan) else "append"
        graph, defaults = stage_graph(placed(self._plan, mode)), session_defaults(self._df.sparkSession)
        options = parse_query_options({}, defaults)
        print(explained(with_two_phases(graph, options[AGG_PHASE_STRATEGY])))

    @cached_property
    def _plan(self) -> PlanNode:
        return plan_of(self._df)
