"""What is done with a record on which a function fails: it ends the subtask, is skipped, or goes to a sink of its own.

Never: skip an error that says nothing of the record: a program that cannot work ends the query, whatever is set.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa

from headgate.errors import HeadgateError, UserFunctionError

SCHEMA = pa.schema(
    [
        pa.field("error", pa.string()),
        pa.field("source", pa.string()),
        pa.field("split", pa.string()),
        pa.field("position", pa.string()),
        pa.field("record", pa.string()),
    ]
)
"""The columns of the sink of bad records. ``position`` is where the source's split had got to when the record failed;
``record`` the row that the function was given, as JSON."""


class FailedCall(msgspec.Struct, frozen=True, kw_only=True):
    """Which call failed.

    Parameters
    ----------
    operator, function
        The uid of the operator, and the name of the user's function or the text of the expression.
    subtask
        Where.
    source, split
        Where its rows come from.
    """

    operator: str
    function: str
    subtask: int
    source: str
    split: str


def is_of_the_record(error: Exception) -> bool:
    """Return whether other records may well go through: a function raised, or its output had a bad value."""
    return not isinstance(error, HeadgateError) or isinstance(error, UserFunctionError)


def explain(error: BaseException, call: FailedCall, *, can_be_skipped: bool = False) -> HeadgateError:
    """Return the error to raise, from the original, for one of a call: of the same kind if it was one of ours.

    ``can_be_skipped``: the option ``badRecords`` could have helped.
    """
    facts: dict[str, Any] = {**msgspec.to_builtins(call), **getattr(error, "facts", {})}
    where = f"(operator {call.operator}, subtask {call.subtask}, source {call.source}, split {call.split!r})"
    if isinstance(error, HeadgateError):
        return type(error)(f"{error.message} {where}", **facts)
    hint = " The option badRecords skips such records ('skip') or writes them elsewhere (the format of a sink)."
    raised = f"{call.function} raised {type(error).__name__}: {error} {where}."
    return UserFunctionError(raised + hint if can_be_skipped else raised, **facts)


def describe(record: pa.RecordBatch, error: Exception, call: FailedCall, position: str | None) -> pa.RecordBatch:
    """Return the row that describes one bad record in the sink of bad records."""
    text = json.dumps(record.to_pylist()[0], default=_as_text, ensure_ascii=False)
    description = f"{type(error).__name__}: {error}" if not isinstance(error, HeadgateError) else error.message
    row = {"error": description, "source": call.source, "split": call.split, "position": position, "record": text}
    return pa.RecordBatch.from_pylist([row], schema=SCHEMA)


def _as_text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
