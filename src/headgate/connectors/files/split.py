"""A piece of a file to read, with the position in it, and how both are written down.

Never: open the file. What is left to read follows from the split alone.

Follows FLIP-27, "Reader Interface and Threading Model" (the split is the state of reading it).
"""

from __future__ import annotations

import hashlib

import msgspec

from headgate.source.serialization import VersionedSerializer
from headgate.source.split import Remaining, Split


class FileSplit(Split, frozen=True, kw_only=True, omit_defaults=True):
    """A byte range of one file as it was when it was listed.

    Lines belong to the range that holds their first byte; unit ``i`` of ``n`` (row group, stripe, record batch) of a
    file of ``size`` bytes belongs to the range that holds byte ``i * size // n``. So every row belongs to exactly
    one of the ranges a file is cut into, whatever the cuts.

    Parameters
    ----------
    path
        The file, in the spelling of its file system.
    size
        Bytes that the file had when it was listed. What was appended later is never read.
    modified_ms
        When it had been modified last, in milliseconds since 1970-01-01 UTC.
    start, end
        The byte range, end excluded. Files that cannot be cut have one range, the whole file.
    position
        Where reading continues; None: at the start of the range. Lines: the byte offset of the next line, for
        compressed files in the decompressed text. Units: the next row in ``unit``. Documents: rows already read.
    unit
        The unit in which reading continues, for formats that are made of units; None: not begun, or no such format.
    partitions
        The file's partition columns: the texts in its folders' names, unescaped; None for Hive's null.
    """

    path: str
    size: int
    modified_ms: int
    start: int
    end: int
    position: int | None = None
    unit: int | None = None
    partitions: dict[str, str | None] = msgspec.field(default_factory=dict)

    def remaining(self) -> Remaining:
        """Return the bytes left. Exact for lines of plain files; else the whole range until it is finished."""
        left = self.end - self.start
        if self.unit is None and self.position is not None and self.start <= self.position <= self.end:
            left = self.end - self.position
        return Remaining(bytes=left, file=self.path)

    def cut(self, length: int) -> tuple[FileSplit, FileSplit | None]:
        """Return the first ``length`` bytes of a range that was not begun, and the rest of it (None: no rest)."""
        stop = self.start + length
        if stop >= self.end:
            return self, None
        rest = msgspec.structs.replace(self, split_id=split_id_of(self.path, stop), start=stop)
        return msgspec.structs.replace(self, end=stop), rest


def split_id_of(path: str, start: int) -> str:
    """Return the id of the split of a file that begins at byte ``start``: short, and free of what a path may reveal."""
    return f"{hashlib.blake2b(path.encode(), digest_size=8).hexdigest()}:{start}"


SPLIT_SERIALIZER: VersionedSerializer[FileSplit] = VersionedSerializer(
    FileSplit, version=1, what="a split of headgate.files"
)
"""Version 1 since 0.1.0."""
