"""Errors on their way from a slot to the driver: what a report holds, and the error that the user sees.

Never: lose the original: its text always travels, the object itself where it can be pickled.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from headgate import errors
from headgate.errors import HeadgateError, UserFunctionError, is_final
from headgate.pickling import dumps, loads
from headgate.protocol.messages import ErrorReport

_MAX_PICKLED_BYTES = 1 << 20
_PLACE = ("stage", "subtask", "source", "split", "position")
_PACKAGE = errors.__file__.removesuffix("errors.py")


def report_of(error: BaseException, **facts: Any) -> ErrorReport:
    """Return the report of an error for the driver."""
    original = error.__cause__ or error
    pickled: bytes | None = None
    with contextlib.suppress(Exception):
        data = dumps(original)
        loads(data)  # an error that cannot be read again is worth nothing there
        pickled = data if len(data) <= _MAX_PICKLED_BYTES else None
    if isinstance(error, HeadgateError):
        facts = {**facts, **{name: value for name, value in error.facts.items() if _is_plain(value)}}
    return ErrorReport(
        error_type=type(error).__name__,
        message=str(error),
        traceback=_shown(error),
        pickled=pickled,
        facts=facts,
        final=is_final(error),
    )


def peer_of(slot: int, facts: Mapping[str, Any]) -> int | None:
    """Return the other slot, by the facts of an error of a connection between two; None: they do not say."""
    ends = {facts.get("producer"), facts.get("consumer")} - {None}
    others = ends - {slot}
    return others.pop() if slot in ends and others else None


def error_of(report: ErrorReport, given_up: str = "") -> HeadgateError:
    """Return the error to raise for a report: ours of the same type where it was one of ours, with its cause.

    ``given_up``: why there was no other try, which its message says too.
    """
    kind = getattr(errors, report.error_type, None)
    if not (isinstance(kind, type) and issubclass(kind, HeadgateError)):
        kind = UserFunctionError if "function" in report.facts else HeadgateError
    message = "\n\n".join(
        filter(None, (report.message or report.error_type, _where(report), given_up, report.traceback.rstrip()))
    )
    error: HeadgateError = kind(message, **report.facts)
    if report.pickled is not None:
        try:
            cause = loads(report.pickled)
        except Exception:  # its class is not known here; the text has everything
            return error
        if isinstance(cause, BaseException):
            error.__cause__ = cause
    return error


def _where(report: ErrorReport) -> str:
    """Return the place of an error in one line, as far as it is known; empty: nothing is."""
    named = [f"{name} {report.facts[name]}" for name in _PLACE if report.facts.get(name) not in (None, "")]
    return f"Where: {', '.join(named)}." if named else ""


def _shown(error: BaseException) -> str:
    """Return a traceback as text: of what the user's own function raised, only what is the user's."""
    own = error.__cause__ if isinstance(error, UserFunctionError) else None
    if own is None:
        if error.__traceback__ is None and error.__cause__ is None:
            return ""  # it was not raised anywhere: its message is all there is
        return "".join(traceback.format_exception(error))
    begin = own.__traceback__
    while begin is not None and begin.tb_next is not None and _is_ours(begin):
        begin = begin.tb_next
    return "".join(traceback.format_exception(type(own), own, begin))


def _is_ours(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)
