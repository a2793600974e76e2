"""``headgate positions``: where a checkpoint reads on, and a new savepoint that reads on elsewhere.

Never: change a savepoint or a checkpoint that there is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli.app import AsJson, CheckpointId, Location, command_group, epilog, write_json, write_lines, write_table
from headgate.cli.stored import check_target, shown, stored
from headgate.errors import OptionError

if TYPE_CHECKING:
    from headgate.checkpoint.manifest import Manifest
    from headgate.coordinator.sources.positions import Move, Wanted

app = command_group(
    "Look at the positions of splits, and make a savepoint with others.",
    """
    headgate positions show /data/savepoints/rides

    headgate positions set /data/savepoints/rides --set 'rides-3=+1' --to /data/savepoints/rides-mended
    """,
)


@app.command("show", epilog=epilog("headgate positions show s3://bucket/checkpoints/rides --source rides"))
def show_positions(
    location: Location,
    checkpoint_id: CheckpointId = None,
    source: Annotated[str | None, typer.Option(help="The uid of a source: only its splits.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show where a checkpoint reads on: the position of each split."""
    from headgate.coordinator.sources.positions import split_positions

    found = stored(location, checkpoint_id)
    manifest = found.manifest()
    if source is not None and source not in manifest.sources:
        uids = ", ".join(map(repr, manifest.sources))
        raise OptionError(f"The checkpoint has no source {source!r}: it has {uids}.", option="--source", value=source)
    splits = [each for each in split_positions(manifest) if source in (None, each.source)]
    if as_json:
        write_json(
            {
                "folder": found.folder,
                "splits": [
                    {
                        "source": each.source, "format": manifest.sources[each.source].name, "split": each.split_id,
                        "position": each.position, "subtask": each.subtask, "stored": each.fields,
                    }
                    for each in splits
                ],
            }
        )  # fmt: skip
        return
    write_table(
        ["source", "split", "position", "in the state of"],
        [
            [
                each.source, each.split_id, _shown(each.position),
                "the enumerator" if each.subtask is None else f"subtask {each.subtask}",
            ]
            for each in splits
        ],
    )  # fmt: skip


@app.command(
    "set",
    epilog=epilog(
        """
        headgate positions set /data/savepoints/rides --set rides-3=+1 --to /data/savepoints/rides-mended

        headgate positions set /data/savepoints/rides --source rides --set 'rides-*=0' --to s3://bucket/rides-again
        """
    ),
)
def set_positions(
    location: Location,
    positions: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="SPLIT=POSITION",
            help="A split's id, or a pattern with * and ?, and its new position as JSON: a number, +N or -N from where "
            "it is, or what `positions show` shows. May be given several times.",
        ),
    ],
    to: Annotated[str, typer.Option(help="The folder of the new savepoint: a path or s3://...")],
    source: Annotated[str | None, typer.Option(help="The uid of the source, if the query has several.")] = None,
    checkpoint_id: CheckpointId = None,
    as_json: AsJson = False,
) -> None:
    """Write a new savepoint that is as the old one, but reads on at other positions."""
    from headgate.coordinator.sources.positions import moved, moves

    found = stored(location, checkpoint_id)
    check_target(to)
    manifest = found.manifest()
    all_moves = moves(manifest, source, [parsed(each) for each in positions])
    changed = moved(manifest, all_moves)
    _check_source_reads(changed, all_moves[0].source)
    found.storage.copy_savepoint(changed, to)
    notes = consequences(manifest, all_moves)
    if as_json:
        lines = [{"split": each.split_id, "before": each.before, "after": each.after} for each in all_moves]
        write_json(
            {"from": found.folder, "to": shown(to), "source": all_moves[0].source, "moves": lines, "notes": notes}
        )
        return
    write_table(
        ["split", "before", "after", "change"],
        [
            [
                each.split_id, _shown(each.before), _shown(each.after),
                "" if each.distance is None else f"{each.distance:+d}",
            ]
            for each in all_moves
        ],
    )  # fmt: skip
    write_lines("", *notes, f"written to {shown(to)}")


def parsed(text: str) -> Wanted:
    """Return what ``SPLIT=POSITION`` asks for.

    Raises
    ------
    OptionError
        It has no position, or that is not JSON.
    """
    from headgate.coordinator.sources.positions import Wanted

    splits, equals, position = text.rpartition("=")
    value = position.strip()
    try:
        if not equals or not splits:
            raise ValueError("it has no '='")
        if value[:1] in ("+", "-") and value[1:].isdigit():
            return Wanted(splits=splits, position=int(value), relative=True)
        return Wanted(splits=splits, position=json.loads(value))
    except ValueError as error:
        raise OptionError(
            f"--set {text}: {error}. Write SPLIT=POSITION with a position as JSON, like rides-3=1200, rides-3=+1, or "
            "'shard-0={\"kind\":\"TRIM_HORIZON\"}'.",
            option="--set", value=text,
        ) from error  # fmt: skip


def consequences(manifest: Manifest, all_moves: list[Move]) -> list[str]:
    """Return what becomes of rows that are skipped or read again, in sentences."""
    forward = any(each.distance is None or each.distance > 0 for each in all_moves)
    back = any(each.distance is None or each.distance < 0 for each in all_moves)
    keyed = sorted(
        {uid for stage in manifest.subtasks for task in stage for uid, each in task.keyed.items() if each.chunks}
    )
    in_flight = sum(each.rows for each in manifest.in_flight)
    notes = []
    if forward:
        notes.append(
            "Rows that are skipped are not read by this query any more; start from the old savepoint to read them."
        )
    if back:
        notes.append(
            "Rows that are read again are written again: sinks keep what was committed, and do not know these rows."
        )
        if keyed:
            notes.append(
                f"The state by key of {', '.join(map(repr, keyed))} stays: rows that are read again are counted again, "
                "and are late where their windows have been emitted."
            )
    elif keyed:
        notes.append(f"The state by key of {', '.join(map(repr, keyed))} stays as it is.")
    if in_flight:
        notes.append(
            f"{in_flight} rows in flight were read before: they are processed whatever the positions are. A savepoint "
            "has none if the option 'execution.checkpointing.unaligned.enabled' of its query is false."
        )
    notes.append(
        "Start with it, .start(fromSavepoint=...), at another 'checkpointLocation': at its own the query goes on from "
        "the newest checkpoint there."
    )
    if any(entry.name == "headgate.files" for uid, entry in manifest.sources.items() if uid == all_moves[0].source):
        notes.append(
            "A position in a file of lines must be that of a line's first byte, else the rest of a line is a row."
        )
    return notes


def _check_source_reads(manifest: Manifest, uid: str) -> None:
    """Raise if the source would not read its splits as they are now; of formats of others nothing is known here."""
    from headgate.cli.formats import built_in
    from headgate.coordinator.sources.positions import check_readable
    from headgate.errors import CorruptStateError

    found = built_in(manifest.sources[uid].name)
    if found is None:
        return
    try:
        check_readable(manifest, uid, found.split_serializer.deserialize, found.state_serializer.deserialize)
    except CorruptStateError as error:
        raise OptionError(
            f"{manifest.sources[uid].name} cannot read such a position: {error.message} Write it as "
            "`headgate positions show` shows others.",
            option="--set", value=None,
        ) from error  # fmt: skip


def _shown(position: Any) -> str:
    return "the beginning" if position is None else json.dumps(position, ensure_ascii=False, default=str)
