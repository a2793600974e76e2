"""The node of a source in a plan: from the format's name and its options, as a user gave them.

Never: read anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from headgate.errors import HeadgateError
from headgate.graph.plan import PlanNode
from headgate.graph.stage_graph import SourceDefinition
from headgate.microbatch.watermark_options import strategy_of
from headgate.source import Boundedness
from headgate.source.options import Options
from headgate.spark.continuous.formats import SourceFormat, find_format
from headgate.spark.continuous.settings import arrow_schema, session_case_sensitive, session_defaults

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headgate.connectors.files.source import FilesSource

_CASE = "caseSensitive"


def source_node(
    spark: SparkSession,
    name: str,
    options: Mapping[str, str],
    schema: pa.Schema | None,
    boundedness: Boundedness,
) -> PlanNode:
    """Return the node of a source, called after its format until its uid is known.

    Parameters
    ----------
    spark
        The session, whose settings ``spark.headgate.X`` are the defaults of options.
    name
        The name of the format.
    options
        What the user set.
    schema
        The columns; None: those that the source has.
    boundedness
        How it is read, unless an option names an end.

    Raises
    ------
    OptionError
        There is no such format, an option is unknown or has a bad value, or the schema is missing or wrong.
    UnsupportedOperationError
        The source cannot be read in this way.
    """
    from headgate.microbatch.planner import check_supported

    found = find_format(spark, name)
    given = found.with_defaults(options, session_defaults(spark))
    if found.has(_CASE):
        given = _with_case(found, given, schema, session_case_sensitive(spark))
    source = found.make(given)
    columns = schema if schema is not None else arrow_schema(source.schema())
    boundedness = _boundedness_of(source.options, boundedness)
    check_supported(source, boundedness, "a continuous query")
    return PlanNode(
        of=SourceDefinition(
            uid=name.lower().removeprefix("headgate."),
            source=source,
            schema=columns,
            boundedness=boundedness,
            watermark_strategy=strategy_of(source.options, columns),
        )
    )


def _with_case(
    found: SourceFormat, given: dict[str, str], schema: pa.Schema | None, case_sensitive: bool
) -> dict[str, str]:
    """Return options that say whether case counts: where they do not, as the session does.

    Raises
    ------
    OptionError
        ``load()``, which does not see the session, inferred the columns as if case did not count, and it does; or two
        that are one where it does not.
    """
    if any(name.lower() == _CASE.lower() for name in given):
        return given
    if schema is not None:
        from headgate.connectors.files.source import FilesSource

        source = found.make(given)
        if isinstance(source, FilesSource) and (not case_sensitive or _infers(source, schema)):
            source.check_names(schema, case_sensitive)
    return {**given, _CASE: str(case_sensitive).lower()}


def _infers(source: FilesSource, schema: pa.Schema) -> bool:
    try:
        return bool(arrow_schema(source.schema()) == schema)
    except HeadgateError:
        return False  # it was given


def _boundedness_of(options: Options, default: Boundedness) -> Boundedness:
    """Return how a source is read: an end that the user set is one, whatever the default."""
    ends = any(name.lower().startswith("ending") and options.is_set(name) for name in options)
    return Boundedness.BOUNDED if ends else default
