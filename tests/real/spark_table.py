"""The table that compares Headgate with Spark: inputs, and what both readers make of them.

A case is a few files and options. It is read by Spark's own reader and by Headgate; both outcomes must be equal, or the
case carries the reason why they are not, which is also in ``docs/files-differences.md``.
"""

import contextlib
import datetime
import decimal
import hashlib
import math
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from headgate.spark.datasource import BatchReader
from pyspark_headgate_files import DefaultSource

SESSION_TIME_ZONE = "America/New_York"
LONGEST = 2000


@contextlib.contextmanager
def table_time_zone(spark: SparkSession) -> Iterator[None]:
    """Give the session the table's time zone for a while, and this process UTC."""
    zone, session_zone = os.environ.get("TZ"), spark.conf.get("spark.sql.session.timeZone")
    os.environ["TZ"] = "UTC"  # collect() turns timestamps into local time, in which some do not exist
    time.tzset()
    spark.conf.set("spark.sql.session.timeZone", SESSION_TIME_ZONE)
    spark.sparkContext.setLogLevel("OFF")
    yield
    spark.sparkContext.setLogLevel("ERROR")
    spark.conf.set("spark.sql.session.timeZone", session_zone)
    if zone is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = zone
    time.tzset()


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Parameters
    ----------
    name
        Unique among the cases of a format.
    format
        Spark's name of the format, and the value of the option ``fileFormat``.
    files
        Path under the folder that is read, and content.
    options
        Options that both readers get.
    schema
        DDL that both readers get; None: both infer.
    case_sensitive
        The session's ``spark.sql.caseSensitive``, and Headgate's option.
    difference
        A sentence that is in ``docs/files-differences.md``; None: the outcomes are equal.
    """

    name: str
    format: str
    files: dict[str, bytes]
    options: dict[str, str] = field(default_factory=dict)
    schema: str | None = None
    difference: str | None = None
    case_sensitive: bool = False

    @property
    def called(self) -> str:
        """Return what no other case is called."""
        return f"{self.format}: {self.name}"

    def write(self, folder: Path) -> None:
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


@dataclass(frozen=True)
class Outcome:
    """What a reader made of a case: columns and rows, or an error. Errors are equal to each other."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, int], ...]
    failed: bool = False
    error: str = field(default="", compare=False)

    def written_down(self) -> str:
        """Return what is compared, or its hash if that is long; of an error only that it is one."""
        text = "an error" if self.failed else repr((self.columns, self.rows))
        return text if len(text) <= LONGEST else f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"


def read(reader: Any, case: Case, folder: Path) -> Outcome:
    """Read the folder through a DataFrameReader that already has its format."""
    reader = reader.options(**case.options)
    if case.schema is not None:
        reader = reader.schema(case.schema)
    if case.case_sensitive:
        reader._spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        frame = reader.load(str(folder))
        return outcome_of(frame.schema, frame.collect())
    except Exception as error:
        return Outcome((), (), True, f"{type(error).__name__}: {error}")
    finally:
        reader._spark.conf.unset("spark.sql.caseSensitive")


def headgate_options(case: Case) -> dict[str, str]:
    """Return the options that only Headgate gets."""
    return {"fileFormat": case.format} | ({"caseSensitive": "true"} if case.case_sensitive else {})


def read_by_the_data_source(case: Case, folder: Path) -> Outcome:
    """Read the folder by what Spark calls, as it calls it, without a Spark query."""
    given = {"path": str(folder), **headgate_options(case), **case.options}
    try:
        source = DefaultSource(CaseInsensitiveDict(given))  # type: ignore[no-untyped-call]
        schema = source.schema() if case.schema is None else case.schema
        if isinstance(schema, str):
            schema = StructType.fromDDL(schema)
        reader = BatchReader(source._source, schema, SESSION_TIME_ZONE)
        batches = [batch for each in reader.partitions() for batch in reader.read(each)]
        table = pa.Table.from_batches(batches, reader._arrow_schema())
        return outcome_of(schema, ArrowTableToRowsConversion.convert(table, schema))
    except Exception as error:
        return Outcome((), (), True, f"{type(error).__name__}: {error}")


def outcome_of(schema: StructType, rows: list[Any]) -> Outcome:
    """Return what a reader made of a case."""
    columns = tuple((column.name, column.dataType.simpleString()) for column in schema.fields)
    counted = Counter(canonical(tuple(row)) for row in rows)
    return Outcome(columns, tuple(sorted(counted.items(), key=repr)))


def canonical(value: Any) -> Any:
    """Return a value that can be hashed, and that equals itself where it is not-a-number."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float():
            return ("float", value, math.copysign(1, value))
        case bytearray():
            return bytes(value)
        case dict():
            return tuple(sorted((canonical(key), canonical(each)) for key, each in value.items()))
        case list() | tuple():
            return tuple(canonical(each) for each in value)
        case None | bool() | int() | str() | bytes() | decimal.Decimal() | datetime.date() | datetime.timedelta():
            return value
    return repr(value)
