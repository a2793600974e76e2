"""Runs the checks of the kit over a source: each on a thread of its own, so that a call that never returns is seen.

Never: raise for a broken promise; wait longer for one than the caller allows.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from headgate.connectors.simple import adapt
from headgate.errors import OptionError
from headgate.source.simple import SimpleSource
from headgate.source.source import Source
from headgate.testing.conformance import (
    blocking,
    clients,
    discovery,
    event_time,
    fetching,
    pausing,
    planning,
    reading,
    recovery,
)
from headgate.testing.conformance.report import Promise, Report, Result
from headgate.testing.conformance.subject import Check, DoesNotApply, MakeSource, Subject

CHECKS: tuple[Check, ...] = (
    *reading.CHECKS,
    *recovery.CHECKS,
    *pausing.CHECKS,
    *event_time.CHECKS,
    *planning.CHECKS,
    *discovery.CHECKS,
    *blocking.CHECKS,
    *fetching.CHECKS,
    *clients.CHECKS,
)
PROMISES: tuple[Promise, ...] = tuple(each.promise for each in CHECKS)
"""All promises, in the order in which they are checked."""

_TIMEOUT_S = 120.0


def check(
    make_source: MakeSource,
    *,
    schema: pa.Schema | None = None,
    add_rows: Callable[[], object] | None = None,
    unavailable: Callable[[], AbstractContextManager[object]] | None = None,
    only: Collection[str] = (),
    timeout_s: float = _TIMEOUT_S,
) -> Report:
    """Check a source against the promises of the contract.

    The source should be small, some tens of batches: it is read many times, and restored after each of its batches.

    Parameters
    ----------
    make_source
        Makes the source afresh, with the same options over the same data each time. It is called often, on several
        threads, one at a time.
    schema
        The columns to read; None: what the source says.
    add_rows
        Adds rows to what the source reads. Without it, promises that need new rows do not apply.
    unavailable
        Returns a context manager within which the system that is read from fails or hangs. Likewise.
    only
        The names of the promises to check; empty: all.
    timeout_s
        The longest time that a promise may take, in seconds: a call of the source that does not return breaks it.

    Returns
    -------
    The verdict on each promise. A broken one raises nothing: `Report.require` does.

    Raises
    ------
    OptionError
        There is no promise of a name in ``only``. What ``make_source`` and ``schema()`` raise passes, too.
    """
    chosen = [each for each in CHECKS if not only or each.promise.name in only]
    unknown = sorted(set(only) - {each.name for each in PROMISES})
    if unknown:
        raise OptionError(
            f"There is no promise {unknown[0]!r}. The promises are {', '.join(each.name for each in PROMISES)}.",
            option="only", value=unknown[0],
        )  # fmt: skip
    subject = Subject(make_source, schema, add_rows=add_rows, unavailable=unavailable)
    return Report(source=make_source().name, results=[_result(each, subject, timeout_s) for each in chosen])


def simple(user_class: type[SimpleSource], options: Mapping[str, str] | None = None) -> Source[Any, Any]:
    """Return the source that a `SimpleSource` class describes, for ``make_source``.

    Parameters
    ----------
    user_class
        The class.
    options
        What a user would set.
    """
    return adapt(user_class)(options or {})


def _result(each: Check, subject: Subject, timeout_s: float) -> Result:
    subject.doing = None
    outcome: Future[None] = Future()
    thread = threading.Thread(
        target=_run, args=(each, subject, outcome), daemon=True, name=f"check-{each.promise.name}"
    )
    thread.start()
    try:
        outcome.result(timeout_s)
    except DoesNotApply as reason:
        return Result(promise=each.promise, verdict="does not apply", done=each.promise.how, seen=str(reason))
    except Exception as error:
        done, found = subject.doing or each.promise.how, error
        if not outcome.done():
            found = AssertionError(f"it did not end within {timeout_s:g} s; it is {_whereabouts(thread)}")
        seen = str(found) if isinstance(found, AssertionError) and str(found) else f"{type(found).__name__}: {found}"
        return Result(promise=each.promise, verdict="broken", done=done, seen=seen, error=found)
    thread.join()
    return Result(promise=each.promise, verdict="kept", done=each.promise.how)


def _run(each: Check, subject: Subject, outcome: Future[None]) -> None:
    try:
        each.run(subject)
    except Exception as error:
        outcome.set_exception(error)
    except BaseException as error:  # which would end who asks for the outcome
        outcome.set_exception(AssertionError(f"{type(error).__name__} was raised: {error}"))
    else:
        outcome.set_result(None)


def _whereabouts(thread: threading.Thread) -> str:
    """Return where a thread is, in words: its innermost lines."""
    frame = None if thread.ident is None else sys._current_frames().get(thread.ident)
    lines = [f"{each.filename}:{each.lineno} in {each.name}" for each in traceback.extract_stack(frame)][-3:]
    return " > ".join(lines)
