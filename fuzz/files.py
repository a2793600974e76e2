"""Compares small random files and values, read by Headgate, with what Spark's own readers make of the same bytes.

A case is made of a seed and nothing else: its kind, schema, options and bytes. One that differs is made smaller for as
long as it still differs, and printed with its seed: ``--replay SEED`` runs it again. What docs/files-differences.md and
docs/kafka.md describe is not generated, or counts as equal (`same`).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from fuzz.random_files import CORRUPT, KINDS, Case, make
from headgate.connectors.files.source import FilesSource
from headgate.connectors.kafka.columns import KafkaColumns
from headgate.errors import HeadgateError
from headgate.formats.json_values import JSON_OPTIONS
from headgate.microbatch.planner import plan_batch
from headgate.microbatch.task import read_splits
from headgate.source.options import Options, OptionSpec, boolean, text
from local.records import records_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ZONE = "America/New_York"
VALUE_SPECS = (*JSON_OPTIONS, OptionSpec("valueFormat", text, "json"), OptionSpec("includeHeaders", boolean, False))
MOST_ATTEMPTS = 120
"""Smaller cases that are tried for one that differs."""


# ---- reading cases


@dataclass(frozen=True)
class Outcome:
    """Types and rows, or an error's text."""

    types: tuple[tuple[str, str], ...] = ()
    rows: tuple[Any, ...] = ()
    error: str | None = None
    is_crash: bool = False


_DOCUMENTED = {
    "orc": (("", "cannot be read as"),),  # "ORC's columns are converted as Parquet's are"
    "csv": (
        ("", "in which a line end has several bytes"),
        ("", "with multiLine it must be"),
        ("", "lacks the columns"),
        ("QUERY_ONLY_CORRUPT_RECORD_COLUMN", ""),
    ),
    "json": (
        ("QUERY_ONLY_CORRUPT_RECORD_COLUMN", ""),
        ("COLUMN_ALREADY_EXISTS", ""),
    ),  # "A field that one object has twice"
}
"""What documents say of errors, by kind: a text in Spark's and one in Headgate's. "Encodings of several bytes per line
end", "A header that lacks a column of the schema is an error", "The corrupt-record column may be read alone"."""
_TIME_ALONE = re.compile(rb"(?<![0-9][ T])(?<![0-9:])[0-9]{1,2}:[0-9]")


class Readers:
    """Reads cases with Spark and with Headgate, in a folder of its own."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder

    def differ(self, case: Case) -> tuple[Outcome, Outcome] | None:
        """Return both outcomes, if they are not the same."""
        if case.kind == "csv" and any(map(_TIME_ALONE.search, case.parts)):
            return None  # "A time without a date is not a timestamp"
        try:
            path = self._write(case)
        except (pa.ArrowException, TypeError) as error:  # the type cannot be written in this format
            if case.table is None:
                raise
            _ = error
            return None
        expected = self._spark(case, path)
        found = self._headgate(case, path)
        return None if same(case, expected, found) else (expected, found)

    def _write(self, case: Case) -> Path:
        path = self.folder / "input"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        if case.table is not None:
            buffer = io.BytesIO()
            (pq.write_table if case.kind == "parquet" else orc.write_table)(case.table, buffer)
            (path / f"a.{case.kind}").write_bytes(buffer.getvalue())
        elif case.kind != "values":
            end = b"\n" if case.kind == "json" else b""
            (path / f"a.{case.kind}").write_bytes(b"".join(part + end for part in case.parts))
        return path

    def _spark(self, case: Case, path: Path) -> Outcome:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F

        try:
            if case.kind == "values":
                frame = self.spark.createDataFrame(pa.table({"value": pa.array(case.parts, pa.binary())})).coalesce(1)
                options = {"columnNameOfCorruptRecord": CORRUPT} | case.options
                assert case.schema is not None
                frame = frame.select(F.from_json(F.col("value").cast("string"), case.schema, options).alias("j"))
                frame = frame.select("j.*")
            else:
                reader = self.spark.read.format(case.kind).options(**case.options)
                if case.schema is not None:
                    reader = reader.schema(case.schema)
                frame = reader.load(str(path))
            types = tuple((each.name, each.dataType.simpleString()) for each in frame.schema.fields)
            # A corrupt record may not be UTF-8, which Arrow does not take for a string.
            shown = [
                F.col(f"`{each}`").cast("binary").alias(each) if each == CORRUPT else f"`{each}`" for each, _ in types
            ]
            table = frame.select(*shown).toArrow()
        except (PySparkException, Py4JJavaError, pa.ArrowException) as error:
            return Outcome(error=f"{type(error).__name__}: {str(error)[:400]}")
        return Outcome(types, _rows(table))

    def _headgate(self, case: Case, path: Path) -> Outcome:
        from pyspark.sql.types import StructType

        from headgate.spark.compatibility import from_arrow_schema, to_arrow_schema

        try:
            schema = None if case.schema is None else to_arrow_schema(StructType.fromDDL(case.schema))
            if case.kind == "values":
                assert schema is not None
                options = Options.parse("headgate.kafka", VALUE_SPECS, case.options)
                batch, _ = KafkaColumns(schema, options, ZONE).rows(records_of(case.parts))
                batches = [] if batch is None else [batch]
            else:
                source = FilesSource({**case.options, "path": str(path), "fileFormat": case.kind})
                if schema is None:
                    inferred = source.schema()
                    assert isinstance(inferred, pa.Schema)
                    schema = to_arrow_schema(from_arrow_schema(inferred))
                splits = plan_batch(source, schema, 0)
                batches = list(read_splits(source, schema, splits, 0, ZONE))
            for each in batches:
                each.validate(full=True)
            table = pa.Table.from_batches(batches, schema)
            types = tuple((each.name, each.dataType.simpleString()) for each in from_arrow_schema(schema).fields)
            return Outcome(types, _rows(table))
        except HeadgateError as error:
            return Outcome(error=f"{type(error).__name__}: {str(error)[:400]}")
        except Exception as error:  # no error that a user should see, whatever Spark does
            return Outcome(error=f"{type(error).__name__}: {str(error)[:400]}", is_crash=True)


def _rows(table: pa.Table) -> tuple[Any, ...]:
    columns = [_plain(chunk) for column in table.columns for chunk in [column.combine_chunks()]]
    return tuple(zip(*columns, strict=True)) if columns else ()


def _plain(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return values that can be compared: times as numbers, floats with their sign, strings as bytes."""
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in _plain(chunk)]
    kind = array.type
    if pa.types.is_struct(kind):
        fields = [_plain(array.field(index)) for index in range(kind.num_fields)]
        rows = list(zip(*fields, strict=True)) if fields else [()] * len(array)
        return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        is_map = pa.types.is_map(kind)
        values = list(zip(_plain(array.keys), _plain(array.items), strict=True)) if is_map else _plain(array.values)
        offsets = array.offsets.to_pylist()
        return [
            (tuple(sorted(values[start:stop], key=repr)) if is_map else tuple(values[start:stop])) if valid else None
            for start, stop, valid in zip(offsets, offsets[1:], array.is_valid().to_pylist(), strict=False)
        ]
    if pa.types.is_temporal(kind):
        array = array.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        array = array.cast(pa.binary())
    found: list[Any] = array.to_pylist()
    if pa.types.is_floating(kind):
        return [each if each is None else ("NaN" if math.isnan(each) else each + 0.0) for each in found]
    return found


def same(case: Case, expected: Outcome, found: Outcome) -> bool:
    """Whether two outcomes are the same, or differ in nothing but what the docs describe."""
    if any(
        expected_text in (expected.error or "") and found_text in (found.error or "")
        for expected_text, found_text in _DOCUMENTED.get(case.kind, ())
    ):
        return True
    if case.schema is None and not expected.types and found.error is not None and not found.is_crash:
        return True  # "Input in which no column is found is an error"
    if case.kind == "orc" and "TIMESTAMP_NTZ" in (case.schema or "") and expected.error is not None:
        return True  # "Types that Spark refuses are read"
    if expected.error is not None or found.error is not None:
        return expected.error is not None and found.error is not None and not found.is_crash
    if expected.types != found.types and case.columns is None:
        return False
    one, other = (list(each.rows) for each in (expected, found))
    if case.kind != "values":
        if Counter(map(repr, one)) == Counter(map(repr, other)):
            return True
        if len(one) != len(other):
            return False
    elif len(one) != len(other):
        return False
    return not any(True for _ in unequal(case, expected, found))


def unequal(case: Case, expected: Outcome, found: Outcome) -> Iterator[int]:
    """Yield the numbers of the rows that differ, of two outcomes with as many."""
    for number, (one, other) in enumerate(zip(expected.rows, found.rows, strict=True)):
        if not _same_value(one, other, case):
            yield number


def _same_value(expected: Any, found: Any, case: Case) -> bool:
    if expected == found:
        return True
    if isinstance(expected, tuple) and isinstance(found, tuple) and len(expected) == len(found):
        return all(_same_value(a, b, case) for a, b in zip(expected, found, strict=True))
    if not (isinstance(expected, bytes) and isinstance(found, bytes) and case.kind in ("values", "json")):
        return False
    a, b = expected.decode("utf-8", "replace"), found.decode("utf-8", "replace")
    # "shown with replacement characters"
    if "\ufffd" in b and [c for c in a if c != "\ufffd"] == [c for c in b if c != "\ufffd"]:
        return True
    if case.kind != "values":
        return False
    # "What is not a string keeps its digits and spaces in a string column": Spark writes NaN in quotes, for one.
    with contextlib.suppress(ValueError):
        return repr(_unquoted(json.loads(a))) == repr(_unquoted(json.loads(b)))
    return False


def _unquoted(value: Any) -> Any:
    if isinstance(value, list):
        return [_unquoted(each) for each in value]
    if isinstance(value, dict):
        return {name: _unquoted(each) for name, each in value.items()}
    names = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    value = names.get(value, value) if isinstance(value, str) else value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


# ---- smaller cases


def smaller(case: Case) -> Iterator[Case]:
    """Yield cases that have less than this one, the much smaller ones first."""
    for parts in _shorter(case.parts):
        if parts or case.table is not None:
            yield replace(case, parts=parts)
    for name in case.options:
        yield replace(case, options={key: value for key, value in case.options.items() if key != name})
    if case.table is not None:
        for rows in filter(None, _shorter(range(case.table.num_rows))):  # no rows is another kind
            yield replace(case, table=case.table.take(pa.array(list(rows), pa.int64())))
        if case.table.num_columns > 1:
            for name in case.table.column_names:
                yield replace(case, table=case.table.drop_columns([name]))
    if case.columns is not None and len(case.columns) > 1 and (case.kind != "csv"):
        for index in range(len(case.columns)):
            yield replace(case, columns=case.columns[:index] + case.columns[index + 1 :])
    if len(case.parts) <= 2:
        for index, part in enumerate(case.parts):
            for shorter in _shorter(part):
                yield replace(case, parts=(*case.parts[:index], bytes(shorter), *case.parts[index + 1 :]))


def _shorter(sequence: Any) -> Iterator[Any]:
    size = len(sequence) // 2
    while size:
        for start in range(0, len(sequence), size):
            kept = [*sequence[:start], *sequence[start + size :]]
            yield bytes(kept) if isinstance(sequence, bytes) else tuple(kept)
        size //= 2
    if len(sequence) == 1:
        yield b"" if isinstance(sequence, bytes) else ()


def minimized(case: Case, readers: Readers) -> Case:
    """Return the smallest case found that still differs."""
    if case.kind == "values":
        return _smallest_value(case, readers)
    attempts = MOST_ATTEMPTS
    progress = True
    while progress and attempts:
        progress = False
        for candidate in smaller(case):
            attempts -= 1
            if readers.differ(candidate) is not None:
                case, progress = candidate, True
                break
            if not attempts:
                break
    return case


def _smallest_value(case: Case, readers: Readers) -> Case:
    """Do the same for values: all that is shorter by one step goes through Spark at once."""
    candidates = case.parts
    while True:
        tried = replace(case, parts=candidates)
        outcomes = readers.differ(tried)
        if outcomes is None or outcomes[0].error is not None or outcomes[1].error is not None:
            return case
        case = replace(case, parts=(min((candidates[number] for number in unequal(tried, *outcomes)), key=len),))
        candidates = tuple(bytes(each) for each in _shorter(case.parts[0]))
        if not candidates:
            return case


def main(arguments: list[str]) -> int:
    """Run cases for a while; return 1 if some differ."""
    parser = argparse.ArgumentParser(prog="./run fuzz files", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (default 5)")
    parser.add_argument(
        "--seed", type=int, default=None, help="the first seed; the next ones follow it (default: random)"
    )
    parser.add_argument("--replay", type=int, help="only the case of this seed")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; may be given again")
    parser.add_argument("--broken", action="store_true", help="JSON that is damaged, too")
    parser.add_argument("--exotic", action="store_true", help="options that few use, too")
    given = parser.parse_args(arguments)
    kinds = given.kind or KINDS
    first = given.replay if given.replay is not None else given.seed
    first = random.SystemRandom().randrange(10**9) if first is None else first
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").appName("fuzz").config("spark.ui.enabled", "false")
    # Each case is a query of its own, so small that its code costs more to compile than to interpret.
    builder = builder.config("spark.sql.codegen.wholeStage", "false").config(
        "spark.sql.codegen.factoryMode", "NO_CODEGEN"
    )
    builder = builder.config("spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -Duser.timezone={ZONE}")
    builder = builder.config("spark.sql.session.timeZone", ZONE).config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    folder = Path(tempfile.mkdtemp(prefix="headgate-fuzz-"))
    counts: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    try:
        readers = Readers(spark, folder)
        end = time.monotonic() + 60 * given.minutes
        seed = first
        while time.monotonic() < end:
            case = make(seed, kinds, given.broken, given.exotic)
            counts[case.kind] += 1
            if readers.differ(case) is not None:
                failed[case.kind] += 1
                small = minimized(case, readers)
                outcomes = readers.differ(small)
                assert outcomes is not None
                print(f"\n--replay {seed}: {small.shown()}\n  Spark:    {_shown(outcomes[0])}\n"
                      f"  Headgate: {_shown(outcomes[1])}", flush=True)  # fmt: skip
            if given.replay is not None:
                break
            seed += 1
    finally:
        shutil.rmtree(folder)
    flags = "".join(f" --{name}" for name in ("broken", "exotic") if getattr(given, name))
    flags += "".join(f" --kind {kind}" for kind in given.kind or ())
    print(f"\nseeds {first} to {seed - 1}{flags}: {dict(counts)} compared, {dict(failed)} differ")
    spark.stop()
    return 1 if failed else 0


def _shown(outcome: Outcome) -> str:
    return outcome.error.replace("\n", " ") if outcome.error is not None else f"{outcome.types} {outcome.rows[:6]}"
