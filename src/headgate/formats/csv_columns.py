"""Which column of the schema is where in the lines of a file, by its header.

Never: read lines other than the header.

Follows Spark 4.3's ``CSVHeaderChecker`` and ``CSVUtils.makeSafeHeader``, and ``docs/files-differences.md``: with a
header, columns are found by name, where Spark goes by position and leaves it to the user that the order is right.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headgate.errors import BadDataError
from headgate.formats.csv_options import CsvSettings
from headgate.formats.csv_rows import FileColumns
from headgate.formats.csv_tokenizer import Tokenizer, Tokens
from headgate.formats.names import Names


def header_names(header: bytes, settings: CsvSettings, tokenizer: Tokenizer) -> list[str]:
    """Return the names of the columns of a file with a header line."""
    text = header.decode(settings.encoding, "replace").removeprefix("\ufeff")
    if settings.dialect.is_skipped(text):
        return []
    return safe_names(tokenizer.cut_line(text, settings.line_separator)[0], settings)


def safe_names(tokens: Tokens, settings: CsvSettings) -> list[str]:
    """Return usable names: one that is missing or that another column has too gets its number."""
    return distinct_names(tokens, settings, Names.of(settings.values))


def distinct_names(tokens: Tokens, settings: CsvSettings, rule: Names) -> list[str]:
    """Return usable names, of which no two are one."""
    if not settings.header:
        return [f"_c{index}" for index in range(len(tokens))]
    keys = [rule.key(token or "") for token in tokens]
    names = []
    for index, token in enumerate(tokens):
        if not token or token == settings.dialect.null_value:
            names.append(f"_c{index}")
        elif keys.count(keys[index]) > 1:
            rule.folded |= tokens.count(token) < keys.count(keys[index])
            names.append(f"{token}{index}")
        else:
            names.append(token)
    return names


def map_columns(
    schema: pa.Schema, corrupt_index: int | None, names: Sequence[str] | None, settings: CsvSettings, path: str
) -> FileColumns:
    """Return where each column of the schema is.

    Raises
    ------
    BadDataError
        The header has not every column, and not as many as the schema either.
    """
    wanted = [field.name for index, field in enumerate(schema) if index != corrupt_index]
    if names is None or not names:
        return _by_position(schema, corrupt_index, len(wanted))
    key = Names.of(settings.values).key
    places: dict[str, int] = {}
    for place, name in enumerate(names):
        places.setdefault(key(name), place)
    missing = [name for name in wanted if key(name) not in places]
    if not missing:
        indexes = [None if i == corrupt_index else places[key(field.name)] for i, field in enumerate(schema)]
        return FileColumns(len(names), tuple(indexes))
    if settings.enforce_schema and len(names) == len(wanted):
        return _by_position(schema, corrupt_index, len(wanted))
    raise BadDataError(
        f"The header of {path} lacks the columns {', '.join(map(repr, missing))}. It has: {', '.join(names)}. Name the "
        " columns of the schema as the header does, or give as many as the header has, to match them by position.",
        path=path, byte_offset=0, missing=missing, header=list(names),
    )  # fmt: skip


def _by_position(schema: pa.Schema, corrupt_index: int | None, count: int) -> FileColumns:
    position = iter(range(count))
    return FileColumns(count, tuple(None if i == corrupt_index else next(position) for i in range(len(schema))))
