"""What parts of a program share: schemas, intervals and options as users write them, and what the session says.

Never: guess: what cannot be read is an `OptionError` that says how to write it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.errors import OptionError
from headgate.source.options import duration_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def arrow_schema(schema: str | StructType | pa.Schema) -> pa.Schema:
    """Return columns as Arrow's schema, with the types that Spark gives them (timestamps in microseconds, UTC).

    Raises
    ------
    OptionError
        The text is not a schema, a type is not one of Spark's, or a name is duplicate.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    from headgate.spark.compatibility import from_arrow_schema, to_arrow_schema

    try:
        match schema:
            case str():
                columns: Any = StructType.fromDDL(schema)
            case pa.Schema():
                columns = from_arrow_schema(schema)
            case _:
                columns = schema
        arrow = to_arrow_schema(columns)
    except (PySparkException, AttributeError, TypeError, ValueError) as error:
        why = str(error).strip().partition("\n")[0].rstrip(".")
        raise OptionError(
            f"The schema is {str(schema)!r}, which cannot be used: {why}. "
            'Write it like "user string, amount long, at timestamp".',
            option="schema", value=str(schema),
        ) from error  # fmt: skip
    twice = sorted(name for name, count in Counter(arrow.names).items() if count > 1)
    if twice:
        raise OptionError(
            f"The schema names {', '.join(map(repr, twice))} more than once. Name each column once.",
            option="schema", value=twice,
        )  # fmt: skip
    return arrow


def session_settings(spark: SparkSession) -> dict[str, str]:
    """Return the settings of the session and of its Spark, by their names."""
    conf: Any = spark.conf
    pairs = conf._jconf.getAll().mkString("\0").split("\0")  # `spark.conf.getAll` asks for each by itself
    return dict(pair.split(" -> ", 1) for pair in pairs)


def session_defaults(spark: SparkSession) -> dict[str, str]:
    """Return the options that the session sets as ``spark.headgate.NAME``, by their names."""
    prefix = "spark.headgate."
    settings = session_settings(spark)
    return {name.removeprefix(prefix): value for name, value in settings.items() if name.startswith(prefix)}


def session_time_zone(spark: SparkSession) -> str:
    """Return the time zone in which the session reads and writes times without one."""
    return str(spark.conf.get("spark.sql.session.timeZone"))


def session_case_sensitive(spark: SparkSession) -> bool:
    """Return whether names that differ only in case are two in the session."""
    return str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"


def interval_ms(what: str, value: str) -> int:
    """Return an interval of Spark's in milliseconds; ``what`` names the method for the error."""
    try:
        return duration_ms(value)
    except (ValueError, AttributeError) as error:
        raise OptionError(
            f"{what}: {value!r} is not a valid interval; write one like '10 seconds'.", option=what, value=value
        ) from error


def set_option(options: dict[str, str], key: str, value: Any) -> None:
    """Set an option as Spark does: no case, the last one counts, values are texts, and None takes it back."""
    for known in [name for name in options if name.lower() == key.lower()]:
        del options[known]
    if value is not None:
        options[key] = str(value).lower() if isinstance(value, bool) else str(value)
