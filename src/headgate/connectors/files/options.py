"""The options of `headgate.files`: those of all formats, and which options belong to which format.

Never: open or list anything. Options are values; the source acts on them.

Follows Spark 4.3, "Generic File Source Options" and ``FileStreamOptions``. Each of their options is supported, a no-op
with a reason, or rejected with a reason.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping

from headgate.errors import OptionError
from headgate.formats import arrow_ipc, csv, orc, parquet
from headgate.formats import json as json_format
from headgate.formats import text as text_format
from headgate.formats.row_filter import parse_row_filter
from headgate.source.options import OptionSpec, boolean, choice, duration_ms, integer, size_bytes, text

NAME = "headgate.files"

FORMAT_OPTIONS: dict[str, tuple[OptionSpec, ...]] = {
    "text": text_format.OPTIONS,
    "csv": csv.OPTIONS,
    "json": json_format.OPTIONS,
    "parquet": parquet.OPTIONS,
    "orc": orc.OPTIONS,
    "arrow": arrow_ipc.OPTIONS,
}
"""The options of each value of ``fileFormat``."""


def path_list(value: str) -> tuple[str, ...]:
    """Parse a JSON array of paths, which is how Spark passes ``load([...])``."""
    try:
        paths = json.loads(value)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not paths or not all(isinstance(each, str) and each for each in paths):
        raise ValueError("a JSON array of paths")
    return tuple(paths)


def moment(value: str) -> datetime.datetime:
    """Parse a point in time as Spark's ``modifiedAfter`` has it: ``2026-01-31T12:00:00``."""
    try:
        return datetime.datetime.fromisoformat(value.strip())
    except ValueError:
        raise ValueError("a time like '2026-01-31T12:00:00'") from None


def _rejected(name: str, why: str) -> OptionSpec:
    return OptionSpec(name, text, status="rejected", why=why)


GENERAL_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec("path", text, None, "a file, folder or glob; set by load(path)"),
    OptionSpec("paths", path_list, None, "several of them, as a JSON array; set by load([...])"),
    OptionSpec("fileFormat", choice(*FORMAT_OPTIONS), None, "the format of the files; required", False),
    OptionSpec("pathGlobFilter", text, None, "only files whose names match this glob"),
    OptionSpec("recursiveFileLookup", boolean, False, "enter all folders; folders then make no columns"),
    OptionSpec("basePath", text, None, "the folder below which folders named key=value make columns"),
    OptionSpec(
        "caseSensitive", boolean, None, "whether names that differ only in case are two; unset: the session's setting"
    ),
    OptionSpec("modifiedAfter", moment, None, "only files modified after this moment"),
    OptionSpec("modifiedBefore", moment, None, "only files modified before this moment"),
    OptionSpec("ignoreMissingFiles", boolean, False, "warn of files that vanish or shrink, and go on"),
    OptionSpec("ignoreCorruptFiles", boolean, False, "warn of damaged files, and go on without the rest of them"),
    OptionSpec("splitSize", size_bytes, 128 << 20, "bytes of a file that one split holds"),
    OptionSpec("rowFilter", parse_row_filter, None, "only these rows; parts without any are skipped by statistics"),
    OptionSpec("discovery.interval", duration_ms, 1000, "time between two listings of a stream"),
    OptionSpec("maxFilesPerTrigger", integer(1), None, "most files that are begun in a micro-batch"),
    OptionSpec("maxBytesPerTrigger", size_bytes, None, "most bytes of a micro-batch; one split at least is read"),
    OptionSpec(
        "maxFileAge", duration_ms, 7 * 86_400_000, "how much older than the newest file a new file of a stream may be"
    ),
    OptionSpec("latestFirst", boolean, False, "read the files modified last first", changeable=False),
    OptionSpec("fileNameOnly", boolean, False, "files of one name are one file, whatever their folder", False),
    OptionSpec(
        "maxCachedFiles", integer(0), None, status="no-op",
        why="files that were found and not read are kept until the next listing, however many they are",
    ),
    OptionSpec(
        "discardCachedInputRatio", text, None, status="no-op", why="see maxCachedFiles",
    ),
    OptionSpec(
        "maxPartitionBytes", size_bytes, None, status="no-op", why="splitSize says how files are cut"
    ),
    _rejected("cleanSource", "Headgate never moves or deletes what it reads; delete files that a batch has committed."),
    _rejected("sourceArchiveDir", "Headgate never moves what it reads (see cleanSource)."),
)  # fmt: skip
"""The options that do not depend on the format."""


def specs_for(options: Mapping[str, str]) -> tuple[OptionSpec, ...]:
    """Return the options that apply to the format that the user chose.

    Raises
    ------
    OptionError
        ``fileFormat`` is missing, or an option is set that only other formats have.
    """
    by_lower = {name.lower(): value for name, value in options.items()}
    chosen = by_lower.get("fileformat", "").strip().lower()
    if not chosen:
        raise OptionError(
            f"{NAME} needs the option 'fileFormat': one of {', '.join(FORMAT_OPTIONS)}.",
            source=NAME, option="fileFormat", value=None,
        )  # fmt: skip
    if chosen not in FORMAT_OPTIONS:
        return GENERAL_OPTIONS  # parsing says what is allowed
    own = {spec.name.lower() for spec in (*GENERAL_OPTIONS, *FORMAT_OPTIONS[chosen])}
    for name in by_lower:
        owners = [each for each, specs in FORMAT_OPTIONS.items() if name in {spec.name.lower() for spec in specs}]
        if name not in own and owners:
            raise OptionError(
                f"{NAME}: the option {name!r} belongs to fileFormat {' and '.join(owners)}, but fileFormat is "
                f"{chosen!r}. Leave it out, or change fileFormat.",
                source=NAME, option=name, value=by_lower[name],
            )  # fmt: skip
    return (*GENERAL_OPTIONS, *FORMAT_OPTIONS[chosen])
