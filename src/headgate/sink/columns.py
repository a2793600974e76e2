"""Finds the columns of rows that a broker knows, and checks their types.

Never: read rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from headgate.errors import OptionError

ColumnTypes = Mapping[str, tuple[Callable[[pa.DataType], bool], str]]
"""By a column's name which types it may have, and what to call them."""


def find_columns(
    sink: str, schema: pa.Schema, allowed: ColumnTypes, *, topic: str | None, topic_column: str
) -> dict[str, int]:
    """Return where the columns are that there are; there is one ``value``.

    Parameters
    ----------
    sink
        The name of the sink, for messages.
    schema
        The rows' columns; names count with their case, of equal ones the first.
    allowed
        The columns that the sink knows.
    topic
        The topic of all rows, which wins over a column; None: the rows name theirs.
    topic_column
        The column that names it.

    Raises
    ------
    OptionError
        A column is missing or has the wrong type.
    """
    found: dict[str, int] = {}
    for name, (is_allowed, types) in allowed.items():
        if name not in schema.names or (name == topic_column and topic is not None):
            continue
        found[name] = schema.names.index(name)
        data_type = schema.field(found[name]).type
        if not is_allowed(data_type):
            raise OptionError(
                f"{sink}: the column {name!r} must be {types}, not {data_type}. Cast it.",
                source=sink, option=name, value=str(data_type),
            )  # fmt: skip
    if "value" not in found:
        names = ", ".join(schema.names)
        raise OptionError(
            f"{sink}: the rows have no column 'value' ({names}). Name one so, or make one of others, like "
            f"to_json(struct({names})) AS value.",
            source=sink, option="value", value=None,
        )  # fmt: skip
    if topic is None and topic_column not in found:
        raise OptionError(
            f"{sink}: where should the rows go? Set the option 'topic', or add a column {topic_column!r}.",
            source=sink, option="topic", value=None,
        )  # fmt: skip
    return found


def is_text(data_type: pa.DataType) -> bool:
    """Return whether it is a string."""
    return data_type in (pa.string(), pa.large_string())


def is_text_or_bytes(data_type: pa.DataType) -> bool:
    """Return whether it is a string or binary."""
    return is_text(data_type) or data_type in (pa.binary(), pa.large_binary())
