"""Errors on their way from a slot to the driver: what a report holds, and the error that the user sees.

Never: lose the original: its text always travels, the object itself where it can be pickled.
"""

from __future__ import annotations

import contextlib
import pickle
import traceback
from typing import Any

from pyspark import cloudpickle

from headgate.errors import HeadgateError, UserFunctionError
from headgate.protocol.messages import ErrorReport

_MAX_PICKLED_BYTES = 1 << 20


def report_of(error: BaseException, **facts: Any) -> ErrorReport:
    """Return what the driver is told of an error."""
    original = error.__cause__ or error
    pickled: bytes | None = None
    with contextlib.suppress(Exception):
        data: bytes = cloudpickle.dumps(original)  # type: ignore[no-untyped-call]
        pickle.loads(data)  # an error that cannot be read again is worth nothing there
        pickled = data if len(data) <= _MAX_PICKLED_BYTES else None
    if isinstance(error, HeadgateError):
        facts = {**facts, **{name: value for name, value in error.facts.items() if _is_plain(value)}}
    return ErrorReport(
        error_type=type(error).__name__,
        message=str(error),
        traceback="".join(traceback.format_exception(error)),
        pickled=pickled,
        facts=facts,
    )


def error_of(report: ErrorReport) -> HeadgateError:
    """Return the error to raise for a report: ours of the same type where it was one of ours, with its cause."""
    import headgate.errors

    kind = getattr(headgate.errors, report.error_type, None)
    if not (isinstance(kind, type) and issubclass(kind, HeadgateError)):
        kind = UserFunctionError if "function" in report.facts else HeadgateError
    message = report.message if report.message else report.error_type
    error: HeadgateError = kind(f"{message}\n\n{report.traceback}".rstrip(), **report.facts)
    if report.pickled is not None:
        try:
            cause = pickle.loads(report.pickled)
        except Exception:  # its class is not known here; the text has everything
            return error
        if isinstance(cause, BaseException):
            error.__cause__ = cause
    return error


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)
