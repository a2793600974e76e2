"""What all commands share: groups of them, options, and what they write, as tables or as JSON.

Never: print a traceback for an error of Headgate's, or shorten what is written to a file or a pipe.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headgate.errors import (
    CorruptStateError,
    HeadgateError,
    OptionError,
    SinkUnavailableError,
    SourceUnavailableError,
    StoredStateError,
)

BAD, USAGE, UNREACHABLE = 1, 2, 3
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON document instead of text.")]
Location = Annotated[
    str, typer.Argument(help="A checkpoint location, a folder chk-N of one, or a savepoint: a path or s3://...")
]
CheckpointId = Annotated[
    int | None, typer.Option("--id", min=0, help="Which checkpoint of the location; without it the newest.")
]


class UnreachableError(HeadgateError):
    """What was to be asked does not answer. Facts: address."""


class RefusedError(HeadgateError):
    """What was asked for was refused as things are. Facts: status."""


_ClickException: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
"""What a command line that cannot be parsed raises: Click's, which newer versions of Typer bring along."""


class _Group(TyperGroup):
    """Commands whose errors become one line and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line; exit with its code, unless it is not on its own."""
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
            if not standalone_mode:
                return code
        except (typer.Abort, _ClickException) as error:
            if not standalone_mode:
                raise
            sys.exit(_report(error) if isinstance(error, _ClickException) else BAD)
        sys.exit(code)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except HeadgateError as error:
            print(f"headgate: {error.message}", file=sys.stderr)
            raise typer.Exit(exit_code_of(error)) from None


def _report(error: Any) -> int:
    """Say in one line what is wrong with a command line, or show the help where it is empty; return the exit code."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        typer.echo(context.get_help())
    else:
        text = " ".join(error.format_message().split()).rstrip(".")
        where = "" if context is None else f" See '{context.command_path} --help'."
        print(f"headgate: {text}.{where}", file=sys.stderr)
    return int(error.exit_code)


def exit_code_of(error: HeadgateError) -> int:
    """Return how a command ends that raised this."""
    if isinstance(error, UnreachableError | SourceUnavailableError | SinkUnavailableError):
        return UNREACHABLE
    if isinstance(error, CorruptStateError | RefusedError):
        return BAD
    if isinstance(error, StoredStateError) and not str(error.facts.get("path", "/")).startswith("/"):  # an object store
        cause = error.__cause__
        is_answer = isinstance(cause, FileNotFoundError | PermissionError) or type(cause).__name__ == "ClientError"
        return USAGE if cause is None or is_answer else UNREACHABLE
    if isinstance(error, OptionError) and "NETWORK_CONNECTION" in error.message:  # a store that did not answer
        return UNREACHABLE
    return USAGE


def command_group(text: str, examples: str = "", *, add_completion: bool = False) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(
        cls=_Group,
        help=text,
        epilog=epilog(examples) if examples else None,
        no_args_is_help=True,
        add_completion=add_completion,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )


def epilog(examples: str) -> str:
    """Return examples, with an empty line between two, as they are shown after the options."""
    return "**Examples**\n\n" + "\n\n".join(
        f"`{line.strip()}`" for line in inspect.cleandoc(examples).splitlines() if line.strip()
    )


def write_json(document: Any) -> None:
    """Write a document: the only thing that goes to standard output then."""
    typer.echo(json.dumps(document, ensure_ascii=False, indent=2, default=str))


def write_lines(*lines: str) -> None:
    """Write text."""
    for line in lines:
        typer.echo(line)


def write_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table; to a terminal within its width."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    cells = [[_text(each) for each in row] for row in rows]
    for place, name in enumerate(columns):
        numbers = [row[place] for row in cells if row[place] not in ("", "-")]
        is_number = bool(numbers) and all(each[:1].isdigit() or each[:1] in "+-" for each in numbers)
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 1_000)
    console.print(table)


def write_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Write names and values, one a line."""
    pairs = [(name, _text(value)) for name, value in facts]
    width = max((len(name) for name, _ in pairs), default=0)
    write_lines(*(f"{name:<{width}}  {value}" for name, value in pairs))


def plain(value: Any) -> Any:
    """Return a value as it is shown: bytes as hexadecimal digits, times with their zone."""
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.isoformat() if hasattr(value, "isoformat") else value


def bytes_text(size: int | None) -> str:
    """Return a size for people.

    Examples
    --------
    >>> [bytes_text(each) for each in (None, 17, 2048, 5 << 30)]
    ['-', '17 B', '2.0 KiB', '5.0 GiB']
    """
    if size is None:
        return "-"
    if size < 1024:
        return f"{size} B"
    value, units = float(size), iter(("KiB", "MiB", "GiB", "TiB", "PiB"))
    unit = ""
    while value >= 1024 and unit != "PiB":
        value, unit = value / 1024, next(units)
    return f"{value:.1f} {unit}"


def time_text(ms: int | None) -> str:
    """Return a time in milliseconds since 1970-01-01 UTC for people, and for JSON.

    Examples
    --------
    >>> time_text(1_790_000_000_000)
    '2026-09-21T14:13:20Z'
    """
    if ms is None:
        return "-"
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
