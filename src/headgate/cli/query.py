"""``headgate query``: asks running queries how they are, and has them take checkpoints, rescale or stop.

Never: act on a query that was not named while several run.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from headgate.cli.app import (
    AsJson,
    bytes_text,
    command_group,
    epilog,
    time_text,
    write_facts,
    write_json,
    write_lines,
    write_table,
)
from headgate.cli.endpoints import queries, query

app = command_group(
    "Look at running queries of this host, and mend them.",
    """
    headgate query list

    headgate query rescale 8 rides
    """,
)
Query = Annotated[
    str | None,
    typer.Argument(metavar="QUERY", help="Its name, its id or the beginning of that; not needed if only one runs."),
]


@app.command("list", epilog=epilog("headgate query list --json"))
def list_queries(as_json: AsJson = False) -> None:
    """List the queries that run on this host."""
    found = queries()
    if as_json:
        write_json([{**each.listed, "url": each.endpoint.url, "pid": each.endpoint.pid} for each in found])
        return
    write_table(
        ["name", "id", "state", "started", "process", "dashboard"],
        [
            [
                each.listed.get("name"), each.listed["id"], each.listed.get("state"),
                time_text(each.listed.get("startedMs")), each.endpoint.pid, each.endpoint.url,
            ]
            for each in found
        ],
    )  # fmt: skip


@app.command("status", epilog=epilog("headgate query status rides"))
def status(wanted: Query = None, as_json: AsJson = False) -> None:
    """Show what a query does now, and what limits it."""
    found = query(wanted)
    snapshot = found.endpoint.get(found.path)
    if as_json:
        write_json(snapshot)
        return
    checkpoints = snapshot.get("checkpoints") or {}
    last = checkpoints.get("last") or {}
    write_facts(
        [
            ("query", f"{snapshot.get('name') or '-'} ({snapshot.get('id')}, run {snapshot.get('runId')})"),
            ("state", snapshot.get("state")),
            ("parallelism", snapshot.get("parallelism")),
            ("watermark", time_text(snapshot.get("watermarkMs"))),
            ("last checkpoint", _checkpoint_text(last)),
            ("failed checkpoints", checkpoints.get("failed")),
            ("restarts", (snapshot.get("restarts") or {}).get("count")),
        ]
    )
    for each in snapshot.get("why") or []:
        write_lines(f"{each.get('severity', 'info')}: {each.get('text')}")
    write_lines("")
    write_table(
        ["stage", "name", "rows in/s", "rows out/s", "busy", "back-pressured", "idle"],
        [
            [
                each.get("stage"), each.get("name"), _number(each.get("rowsInPerSecond")),
                _number(each.get("rowsOutPerSecond")), _share(each.get("busy")), _share(each.get("backPressured")),
                _share(each.get("idle")),
            ]
            for each in snapshot.get("stages") or []
        ],
    )  # fmt: skip
    write_lines("")
    write_table(
        ["source", "rows/s", "splits", "lag", "troubles"],
        [
            [
                each.get("uid"), _number(each.get("rowsPerSecond")), each.get("numSplits"), each.get("lag") or None,
                "; ".join(each.get("troubles") or []),
            ]
            for each in snapshot.get("sources") or []
        ],
    )  # fmt: skip


@app.command("checkpoint", epilog=epilog("headgate query checkpoint rides"))
def checkpoint(wanted: Query = None, as_json: AsJson = False) -> None:
    """Take a checkpoint, and wait until it is complete."""
    _act(wanted, "checkpoint", {}, as_json, lambda answer: f"checkpoint {answer['checkpointId']} is complete")


@app.command("savepoint", epilog=epilog("headgate query savepoint s3://bucket/savepoints/rides rides"))
def savepoint(
    location: Annotated[str, typer.Argument(help="The folder of the savepoint: a path or s3://...")],
    wanted: Query = None,
    as_json: AsJson = False,
) -> None:
    """Take a savepoint; the query goes on."""
    location = _absolute(location)
    _act(
        wanted, "savepoint", {"location": location}, as_json,
        lambda answer: f"savepoint {answer.get('checkpointId', '')} is complete in {location}",
    )  # fmt: skip


@app.command("rescale", epilog=epilog("headgate query rescale 8 rides"))
def rescale(
    parallelism: Annotated[int, typer.Argument(min=1, help="How many subtasks each stage is to have.")],
    wanted: Query = None,
    as_json: AsJson = False,
) -> None:
    """Change the parallelism of a query."""
    _act(
        wanted, "rescale", {"parallelism": parallelism}, as_json,
        lambda _: f"rescaled to {parallelism}",
    )  # fmt: skip


@app.command(
    "stop",
    epilog=epilog(
        """
        headgate query stop rides

        headgate query stop rides --savepoint /data/savepoints/rides
        """
    ),
)
def stop(
    wanted: Query = None,
    savepoint_location: Annotated[
        str | None, typer.Option("--savepoint", help="Take a savepoint here first, after which nothing is emitted.")
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="End the input first, so that all windows are emitted.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Stop a query."""
    body: dict[str, Any] = {}
    if savepoint_location is not None:
        body["savepoint"] = _absolute(savepoint_location)
    if drain:
        body["drain"] = True
    done = "stopped" if savepoint_location is None else f"stopped, with a savepoint in {body['savepoint']}"
    _act(wanted, "stop", body, as_json, lambda _: done)


def _act(wanted: str | None, action: str, body: dict[str, Any], as_json: bool, text: Any) -> None:
    found = query(wanted)
    answer = found.endpoint.post(f"{found.path}/{action}", body)
    if as_json:
        write_json({"id": found.listed["id"], "action": action, **body, **(answer or {})})
    else:
        write_lines(f"{found.listed.get('name') or found.listed['id']}: {text(answer or {})}")


def _absolute(location: str) -> str:
    """Return a location as the driver understands it, which runs in another folder."""
    return location if "://" in location else os.path.abspath(location)


def _checkpoint_text(last: dict[str, Any]) -> str | None:
    if not last:
        return None
    age = last.get("ageMs")
    parts = [f"{last.get('id')}"]
    parts += [f"{age / 1000:.0f} s ago"] if age is not None else []
    parts += [f"{last['durationMs']} ms"] if last.get("durationMs") is not None else []
    return ", ".join([*parts, bytes_text(last.get("sizeBytes"))])


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.0%}"
