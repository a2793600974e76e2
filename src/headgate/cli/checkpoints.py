"""``headgate checkpoints``: what is at a checkpoint location, whether it is whole, and how two checkpoints differ.

Never: write, or need the program whose state it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli.app import (
    BAD,
    AsJson,
    CheckpointId,
    Location,
    bytes_text,
    command_group,
    epilog,
    time_text,
    write_facts,
    write_json,
    write_lines,
    write_table,
)
from headgate.cli.stored import Stored, all_stored, stored
from headgate.errors import OptionError, StoredStateError

if TYPE_CHECKING:
    from headgate.checkpoint.manifest import Manifest
    from headgate.protocol.state import FileState, StateHandle

_LINE = ("name", "id", "kind", "createdMs", "run", "epoch", "parallelism", "splits", "sizeBytes", "rowsInFlight")

app = command_group(
    "Look at the checkpoints of a location, or at a savepoint.",
    """
    headgate checkpoints list /data/checkpoints/rides

    headgate checkpoints verify s3://bucket/checkpoints/rides --all
    """,
)


@app.command("list", epilog=epilog("headgate checkpoints list s3://bucket/checkpoints/rides"))
def list_checkpoints(location: Location, as_json: AsJson = False) -> None:
    """List the checkpoints of a location, newest first."""
    found = [_line(each) for each in all_stored(location)]
    if as_json:
        write_json(found)
        return
    write_table(
        ["checkpoint", "kind", "created", "run", "epoch", "parallelism", "splits", "size", "rows in flight", "problem"],
        [
            [
                each["name"], each["kind"], time_text(each["createdMs"]), each["run"], each["epoch"],
                each["parallelism"], each["splits"], bytes_text(each["sizeBytes"]), each["rowsInFlight"],
                each["problem"] or "",
            ]
            for each in found
        ],
    )  # fmt: skip


@app.command("show", epilog=epilog("headgate checkpoints show /data/checkpoints/rides --id 17"))
def show(location: Location, checkpoint_id: CheckpointId = None, as_json: AsJson = False) -> None:
    """Show what a checkpoint holds: sources, operators, what is in flight and what is to be committed."""
    found = stored(location, checkpoint_id)
    manifest, size_bytes = found.written()
    shown = described(found, manifest, size_bytes)
    if as_json:
        write_json(shown)
        return
    write_facts(
        [
            (found.name, found.folder),
            ("kind", shown["kind"]),
            ("created", time_text(shown["createdMs"])),
            ("query", f"{shown['queryId']}, run {shown['run']}, epoch {shown['epoch']}"),
            ("parallelism", f"{shown['parallelism']} (at most {shown['maxParallelism']})"),
            ("size", f"{bytes_text(shown['sizeBytes'])} in {shown['files']} files and the manifest"),
            ("in flight", f"{shown['rowsInFlight']} rows ({bytes_text(shown['bytesInFlight'])})"),
            ("to be committed", ", ".join(f"{n} of {uid!r}" for uid, n in shown["commits"].items()) or "nothing"),
        ]
    )
    write_lines("")
    write_table(
        ["source", "format", "splits", "finished", "enumerator"],
        [
            [each["uid"], each["format"], each["splits"], each["finished"], bytes_text(each["enumeratorBytes"])]
            for each in shown["sources"]
        ],
    )
    write_lines("")
    write_table(
        ["stage", "operator", "keyed state", "chunks", "items", "state of"],
        [
            [
                each["stage"], each["uid"], bytes_text(each["keyedBytes"]), each["chunks"],
                f"{each['items']} ({bytes_text(each['itemBytes'])})" if each["items"] else 0, each["signature"] or "",
            ]
            for each in shown["operators"]
        ],
    )  # fmt: skip


@app.command("verify", epilog=epilog("headgate checkpoints verify /data/checkpoints/rides --all"))
def verify(
    location: Location,
    checkpoint_id: CheckpointId = None,
    every: Annotated[bool, typer.Option("--all", help="All checkpoints of the location, not only the newest.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read a checkpoint through and compare it with its checksums. The exit code is 1 if anything is damaged."""
    if every and checkpoint_id is not None:
        raise OptionError("--id and --all exclude each other: give one of them.", option="--id", value=checkpoint_id)
    checked = all_stored(location) if every else [stored(location, checkpoint_id)]
    sound: set[FileState] = set()
    found = [_verified(each, sound) for each in checked]
    if as_json:
        write_json(found)
    else:
        for each in found:
            write_lines(f"{each['name']}: " + ("whole" if not each["damages"] else f"{len(each['damages'])} damaged"))
            write_lines(*(f"  {damage}" for damage in each["damages"]))
    if any(each["damages"] for each in found):
        raise typer.Exit(BAD)


@app.command(
    "diff",
    epilog=epilog(
        """
        headgate checkpoints diff /data/checkpoints/rides

        headgate checkpoints diff /data/savepoints/before /data/savepoints/after
        """
    ),
)
def diff(
    first: Location,
    second: Annotated[
        str | None,
        typer.Argument(help="Another one; without it, the two newest checkpoints of the first are compared."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what changed between two checkpoints: positions, state, parallelism."""
    if second is None:
        all_found = all_stored(first)
        if len(all_found) < 2:
            raise OptionError(
                f"There is only {all_found[0].name} in {first}: give a second location to compare it with.",
                option="SECOND", value=None,
            )  # fmt: skip
        newer, older = all_found[:2]
    else:
        older, newer = stored(first), stored(second)
    found = differences(older.manifest(), newer.manifest())
    if as_json:
        write_json({"first": older.folder, "second": newer.folder, **found})
        return
    write_lines(f"from {older.name} in {older.folder}", f"to   {newer.name} in {newer.folder}", "")
    if not any(found.values()):
        write_lines("no difference")
    for name, title in (("facts", "fact"), ("splits", "split"), ("operators", "operator")):
        if found[name]:
            columns = [title, *(key for key in found[name][0] if key != "what")]
            write_table(columns, [list(each.values()) for each in found[name]])
            write_lines("")


def _line(found: Stored) -> dict[str, Any]:
    """Return a line of the list: of one that cannot be read what is wrong, without figures."""
    try:
        manifest, size_bytes = found.written()
    except StoredStateError as error:
        own = {"name": found.name, "id": found.checkpoint_id, "problem": error.message}
        return {**dict.fromkeys(_LINE), **own}
    shown = described(found, manifest, size_bytes)
    return {**{name: shown[name] for name in _LINE}, "problem": None}


def described(found: Stored, manifest: Manifest, manifest_bytes: int) -> dict[str, Any]:
    """Return what ``checkpoints show --json`` writes."""
    files = {file.path: 0 for file in _files(manifest)}
    parts = {(file.path, file.offset): file.size_bytes for file in _files(manifest)}
    for (path, _), size_bytes in parts.items():
        files[path] += size_bytes
    sources = [_source(manifest, uid) for uid in manifest.sources]
    return {
        "name": found.name,
        "id": manifest.checkpoint_id,
        "folder": found.folder,
        "kind": manifest.kind.value,
        "createdMs": manifest.created_ms,
        "queryId": manifest.query_id,
        "run": manifest.run,
        "epoch": manifest.epoch,
        "parallelism": manifest.parallelism,
        "maxParallelism": manifest.max_parallelism,
        "sizeBytes": manifest_bytes + sum(files.values()),
        "files": len(files),
        "splits": sum(each["splits"] for each in sources if each["splits"] is not None),
        "rowsInFlight": sum(each.rows for each in manifest.in_flight),
        "bytesInFlight": sum(each.size_bytes for each in manifest.in_flight),
        "sources": sources,
        "operators": _operators(manifest),
        "exchanges": [
            {"uid": uid, "kind": each.kind, "from": each.producer_stage, "to": each.consumer_stage}
            for uid, each in manifest.exchanges.items()
        ],
        "commits": {uid: len(each) for uid, each in manifest.commits.items()},
        "uncommittedEpochs": [each.epoch for each in manifest.uncommitted],
    }


def _files(manifest: Manifest) -> list[FileState]:
    from headgate.checkpoint.named_files import files_of

    enumerators = [entry.enumerator for entry in manifest.sources.values()]
    return [*files_of(manifest), *(each for each in enumerators if not hasattr(each, "data"))]


def _source(manifest: Manifest, uid: str) -> dict[str, Any]:
    entry = manifest.sources[uid]
    readers = [
        reader
        for subtasks in manifest.subtasks
        for subtask in subtasks
        if (reader := subtask.readers.get(uid)) is not None
    ]
    return {
        "uid": uid,
        "format": entry.name,
        "splits": sum(len(reader.splits) for reader in readers),
        "finished": sum(len(reader.finished) for reader in readers),
        "enumeratorBytes": _size(entry.enumerator),
        "fixedOptions": entry.fixed,
    }


def _size(handle: StateHandle) -> int:
    from headgate.protocol.state import InlineState

    return len(handle.data) if isinstance(handle, InlineState) else handle.size_bytes


def _operators(manifest: Manifest) -> list[dict[str, Any]]:
    found = []
    for number, (uids, subtasks) in enumerate(zip(manifest.stages, manifest.subtasks)):
        for uid in uids:
            if uid in manifest.sources:
                continue
            chunks = [each for subtask in subtasks if uid in subtask.keyed for each in subtask.keyed[uid].chunks]
            states = [subtask.operators[uid] for subtask in subtasks if uid in subtask.operators]
            items = [item for state in states for item in state.items]
            found.append(
                {
                    "uid": uid,
                    "stage": number,
                    "keyedBytes": sum(_size(each.handle) for each in chunks),
                    "chunks": len(chunks),
                    "items": len(items),
                    "itemBytes": sum(map(_size, items)),
                    "signature": manifest.signatures.get(uid),
                }
            )
    return found


def _verified(found: Stored, sound: set[FileState]) -> dict[str, Any]:
    try:
        manifest, _ = found.written()
    except StoredStateError as error:
        damages = [error.message]
    else:
        damages = [each.message for each in found.storage.damages(manifest, sound)]
    return {"name": found.name, "id": found.checkpoint_id, "folder": found.folder, "damages": damages}


def differences(older: Manifest, newer: Manifest) -> dict[str, list[dict[str, Any]]]:
    """Return what is not the same in two checkpoints."""
    from headgate.coordinator.sources.positions import split_positions

    def line(what: str, first: Any, second: Any) -> dict[str, Any]:
        is_number = type(first) is int and type(second) is int
        return {"what": what, "first": first, "second": second, "change": second - first if is_number else None}

    def lines(first: dict[str, Any], second: dict[str, Any]) -> list[dict[str, Any]]:
        names = [*first, *(name for name in second if name not in first)]
        return [line(name, first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)]

    def facts(manifest: Manifest) -> dict[str, Any]:
        return {
            "id": manifest.checkpoint_id, "kind": manifest.kind.value, "queryId": manifest.query_id,
            "run": manifest.run, "epoch": manifest.epoch, "createdMs": manifest.created_ms,
            "parallelism": manifest.parallelism, "rowsInFlight": sum(each.rows for each in manifest.in_flight),
            **{f"fixed options of {uid!r}": entry.fixed for uid, entry in manifest.sources.items()},
            **{f"signature of {uid!r}": text for uid, text in manifest.signatures.items()},
        }  # fmt: skip

    def splits(manifest: Manifest) -> dict[str, Any]:
        return {f"{each.source} / {each.split_id}": each.position for each in split_positions(manifest)}

    def state_bytes(manifest: Manifest) -> dict[str, Any]:
        return {each["uid"]: each["keyedBytes"] + each["itemBytes"] for each in _operators(manifest)}

    return {
        "facts": lines(facts(older), facts(newer)),
        "splits": lines(splits(older), splits(newer)),
        "operators": lines(state_bytes(older), state_bytes(newer)),
    }
