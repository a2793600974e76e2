"""The command ``headgate``: looks at checkpoints and running queries, and mends them.

Never: start a JVM, import pyspark, or import what a command does not need: each one imports in its function.

    exit code  means
    ---------  ---------------------------------------------------------------------------------
    0          fine
    1          what was asked about is bad: damaged, refused, something to fix
    2          the command line, an option or a location is wrong
    3          what was to be asked cannot be reached
"""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli import checkpoints, doctor, positions, query, savepoint, sources, state
from headgate.cli.app import command_group
from headgate.versions import __version__

app = command_group(
    "Look at checkpoints and running queries of Headgate, and mend them.",
    """
    headgate checkpoints list /data/checkpoints/rides

    headgate query list

    headgate doctor
    """,
    add_completion=True,
)
app.add_typer(checkpoints.app, name="checkpoints")
app.add_typer(positions.app, name="positions")
app.add_typer(state.app, name="state")
app.add_typer(savepoint.app, name="savepoint")
app.add_typer(query.app, name="query")
app.add_typer(sources.app, name="sources")
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headgate {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version, and exit.")
    ] = False,
) -> None:
    """What is before the command."""


def main() -> None:
    """Run the command line, and exit with its code."""
    app(prog_name="headgate")
