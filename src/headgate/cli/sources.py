"""``headgate sources check``: connects to a source, lists its splits and reads a row, or says what is wrong.

Never: start a JVM, write anything, or commit a position: what is read here a query reads as well.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli.app import (
    BAD,
    UNREACHABLE,
    AsJson,
    command_group,
    epilog,
    exit_code_of,
    plain,
    write_json,
    write_lines,
    write_table,
)
from headgate.cli.new_source import EXAMPLES, new
from headgate.errors import HeadgateError, OptionError, UnsupportedOperationError

if TYPE_CHECKING:
    import pyarrow as pa

    from headgate.source import Source, Split

_DEFAULTS = {
    "headgate.kafka": {"kafka.default.api.timeout.ms": "10000"},
    "headgate.kinesis": {"requestTimeout": "10 seconds"},
    "headgate.pulsar": {"pulsar.client.operationTimeoutMs": "10000"},
}
"""Who waits at a terminal is not to wait for a minute."""
_SHOWN_SPLITS = 20
_READ_SPLITS = 100
"""So many splits are looked at for a row."""

app = command_group(
    "Check that a source can be read, or make a connector of your own.",
    """
    headgate sources check headgate.kafka -o kafka.bootstrap.servers=localhost:9092 -o subscribe=rides

    headgate sources new weather
    """,
)
app.command("new", epilog=epilog(EXAMPLES))(new)


@app.command(
    "check",
    epilog=epilog(
        """
        headgate sources check headgate.kafka -o kafka.bootstrap.servers=localhost:9092 -o subscribe=rides

        headgate sources check headgate.files -o path=/data/rides -o fileFormat=json --schema 'user string'

        headgate sources check my_source:MySource -o url=http://localhost:8000
        """
    ),
)
def check(
    format_name: Annotated[str, typer.Argument(metavar="FORMAT", help="headgate.kafka, ... or module:Class.")],
    options: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help="An option, as .option() has it.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="The columns, as .schema() has them: 'user string, at date'.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Connect to a source as a query would, list its splits and read the first row."""
    from headgate.cli.formats import source_maker

    given = dict(map(_option, options or []))
    by_lower = {name.lower() for name in given}
    defaults = {name: value for name, value in _DEFAULTS.get(format_name, {}).items() if name.lower() not in by_lower}
    source = source_maker(format_name)({**given, **defaults})
    steps: list[dict[str, str]] = []
    found: dict[str, Any] = {"format": source.name, "columns": None, "numSplits": None, "splits": None, "row": None}
    code = _run(_steps(source, schema, found), steps)
    if as_json:
        write_json({**found, "steps": steps})
    else:
        for each in steps:
            write_lines(f"{each['state']:<8} {each['step']}: {each['text']}")
        if found["splits"]:
            write_lines("")
            write_table(["split", "stored as"], [[each["id"], each["stored"]] for each in found["splits"]])
        if found["row"]:
            write_lines("")
            write_table(["column", "type", "value"], _row_lines(found))
    if code:
        raise typer.Exit(code)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise OptionError(f"--option {text}: write it as NAME=VALUE.", option="--option", value=text)
    return name.strip(), value


Step = tuple[str, str, str]
"""What was looked at; ok or warning; and what was found."""


def _run(steps: Iterator[Step], done: list[dict[str, str]]) -> int:
    """Take the steps, until one fails; return the exit code."""
    while True:
        try:
            step, state, text = next(steps)
        except StopIteration:
            return 0
        except _StepFailed as failure:
            error = failure.error
            text = error.message if isinstance(error, HeadgateError) else f"{type(error).__name__}: {error}"
            done.append({"step": failure.step, "state": "problem", "text": text})
            is_silent = isinstance(error, HeadgateError) and exit_code_of(error) == UNREACHABLE
            return UNREACHABLE if is_silent else BAD
        done.append({"step": step, "state": state, "text": text})


class _StepFailed(Exception):
    def __init__(self, step: str, error: Exception) -> None:
        super().__init__(step)
        self.step = step
        self.error = error


def _steps(source: Source[Any, Any], ddl: str | None, found: dict[str, Any]) -> Iterator[Step]:
    yield "options", "ok", f"{source.name} takes them"
    step = "columns"
    try:
        columns = _columns(source, ddl)
        found["columns"] = {field.name: str(field.type) for field in columns}
        yield step, "ok", ", ".join(f"{name} {kind}" for name, kind in found["columns"].items())
        step = "splits"
        splits, bounded = _splits(source, columns)
        found["numSplits"] = len(splits)
        found["splits"] = [
            {"id": each.split_id, "stored": source.split_serializer.to_json(each)} for each in splits[:_SHOWN_SPLITS]
        ]
        how = "as a batch" if bounded else "as a stream"
        if not splits:
            yield step, "warning", f"connected, but there is nothing to read {how}"
            return
        more = f", the first {_SHOWN_SPLITS} are shown" if len(splits) > _SHOWN_SPLITS else ""
        yield step, "ok", f"{len(splits)} to read {how}{more}"
        step = "a row"
        yield _first_row(source, columns, splits, bounded, found)
    except Exception as error:
        raise _StepFailed(step, error) from error


def _columns(source: Source[Any, Any], ddl: str | None) -> pa.Schema:
    from headgate.formats.ddl import parsed_schema

    schema = source.schema() if ddl is None else ddl
    return parsed_schema(schema) if isinstance(schema, str) else schema


def _splits(source: Source[Any, Any], columns: pa.Schema) -> tuple[list[Split], bool]:
    """Return the splits of a batch; where it cannot be read so, those of a stream at its start."""
    from headgate.microbatch.planner import plan_batch

    now_ms = time.time_ns() // 1_000_000
    try:
        return plan_batch(source, columns, now_ms), True
    except (OptionError, UnsupportedOperationError):
        return _stream_splits(source, columns, now_ms), False


def _stream_splits(source: Source[Any, Any], columns: pa.Schema, now_ms: int) -> list[Split]:
    from headgate.microbatch.planner import VIRTUAL_READER, PlannerContext, check_supported
    from headgate.source import Boundedness

    check_supported(source, Boundedness.CONTINUOUS_UNBOUNDED, "a stream")
    context = PlannerContext(source.name, Boundedness.CONTINUOUS_UNBOUNDED, columns, now_ms)
    enumerator = source.create_enumerator(context)
    try:
        enumerator.start()
        context.register_reader()
        enumerator.add_reader(VIRTUAL_READER)
        context.run_due(now_ms, periodic_too_soon=True)
        enumerator.handle_split_request(VIRTUAL_READER, None)
        context.run_due(now_ms)
    finally:
        enumerator.close()
    return list(context.assigned)


def _first_row(
    source: Source[Any, Any], columns: pa.Schema, splits: list[Split], bounded: bool, found: dict[str, Any]
) -> Step:
    from headgate.microbatch.task import read_splits
    from headgate.source.source import PlanLimits, SupportsBoundedPlans

    if not bounded:
        if not isinstance(source, SupportsBoundedPlans):
            return "a row", "warning", "not read: only a continuous query reads this source"
        limits = PlanLimits(max_rows=len(splits), max_planning_ms=5000)
        ranges = source.plan_ranges(splits, limits, time.time_ns() // 1_000_000)
        splits = [each.split for each in ranges]
    for split in itertools.islice(splits, _READ_SPLITS):
        for batch in read_splits(source, columns, [split], 0, "UTC"):
            if batch.num_rows:
                found["row"] = plain(batch.slice(0, 1).to_pylist()[0])
                return "a row", "ok", f"of the split {split.split_id}"
    return (
        "a row",
        "warning",
        "there is none yet" if len(splits) <= _READ_SPLITS else "there is none in the first splits",
    )


def _row_lines(found: dict[str, Any]) -> list[list[Any]]:
    return [[name, found["columns"].get(name, ""), value] for name, value in found["row"].items()]
