"""``headgate savepoint``: copies a savepoint, or a checkpoint as one, to another folder or store.

Never: name a file in the copy that is not in its folder, or report a copy that was not read again.
"""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.app import AsJson, CheckpointId, Location, bytes_text, command_group, epilog, write_json, write_lines
from headgate.cli.stored import Stored, check_target, shown, stored

app = command_group("Copy savepoints.", "headgate savepoint copy /data/savepoints/rides s3://bucket/savepoints/rides")


@app.callback()
def _group() -> None:
    """Copy savepoints."""


@app.command(
    "copy",
    epilog=epilog(
        """
        headgate savepoint copy /data/savepoints/rides s3://bucket/savepoints/rides

        headgate savepoint copy s3://bucket/checkpoints/rides /tmp/rides --id 17
        """
    ),
)
def copy(
    location: Location,
    to: Annotated[str, typer.Argument(help="The folder of the copy, which has no savepoint yet: a path or s3://...")],
    checkpoint_id: CheckpointId = None,
    as_json: AsJson = False,
) -> None:
    """Copy a savepoint, or a checkpoint as a savepoint, with all its files; then read the copy through."""
    found = stored(location, checkpoint_id)
    check_target(to)
    manifest = found.manifest()
    size_bytes = found.storage.copy_savepoint(manifest, to)
    copied = verified_copy(to)
    if as_json:
        write_json({"from": found.folder, "to": copied.folder, "id": manifest.checkpoint_id, "sizeBytes": size_bytes})
        return
    write_lines(
        f"copied {found.name} of {found.folder} to {copied.folder}: {bytes_text(size_bytes)}, read again and whole",
        f"start from it with .start(fromSavepoint={shown(to)!r})",
    )


def verified_copy(location: str) -> Stored:
    """Return a savepoint that was just written, after reading all of it.

    Raises
    ------
    CorruptStateError
        The storage did not keep what was written.
    """
    copied = stored(location)
    manifest, _ = copied.written()
    for damage in copied.storage.damages(manifest, set()):
        raise damage
    return copied
