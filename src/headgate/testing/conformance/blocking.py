"""Promises about what may not block: constructors, all of the enumerator, and the reader on its task's thread.

Never: take a short time for a proof that nothing blocks: files that are opened, connections that are made and sleeps
are seen by Python's audit events, however quick they were. What compiled clients do is invisible there: it is timed.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

from headgate.source.enumerator import Boundedness
from headgate.source.reader import SourceReaderContext
from headgate.source.source import Source
from headgate.testing.conformance.report import is_the_authors
from headgate.testing.conformance.subject import DoesNotApply, Subject, promise, ready_made
from headgate.testing.enumerator_harness import EnumeratorHarness

_BLOCKING = {
    "open": "opens the file {!r}",
    "os.listdir": "lists the folder {!r}",
    "os.scandir": "lists the folder {!r}",
    "socket.connect": "connects to {1!r}",
    "socket.getaddrinfo": "looks up the host {!r}",
    "sqlite3.connect": "opens the database {!r}",
    "subprocess.Popen": "starts the program {!r}",
    "time.sleep": "sleeps {} s",
}
BLOCKED_S = 1.0
_TRIES = 3
_watched = threading.local()


@cache
def _install() -> None:
    """Listen to audit events, from now on: Python has no way to stop that. Only watched threads take notes."""
    sys.addaudithook(_on_audit_event)


def _on_audit_event(event: str, arguments: tuple[Any, ...]) -> None:
    notes: list[str] | None = getattr(_watched, "notes", None)
    if notes is None or event not in _BLOCKING:
        return
    _watched.notes = None  # looking at the stack may open files of sources
    try:
        stack = list(traceback.walk_stack(sys._getframe(1)))
        frames = traceback.StackSummary.extract(stack, lookup_lines=False)
        of_its_own = _watched.within is None or any(_watched.within(frame) for frame, _ in stack)
        if of_its_own and not any("importlib" in frame.filename for frame in frames):
            authors = [frame for frame in frames if is_the_authors(frame.filename)]
            where = f"{authors[0].filename}:{authors[0].lineno} in {authors[0].name} " if authors else ""
            notes.append(f"{where}{_BLOCKING[event].format(*arguments)}")
    finally:
        _watched.notes = notes


@contextmanager
def _nothing_blocks(what: str, within: Callable[[FrameType], bool] | None = None) -> Iterator[None]:
    """Assert that this thread neither opens, nor connects, nor sleeps; if given, within such a call only."""
    _install()
    notes: list[str] = []
    _watched.notes, _watched.within = notes, within
    try:
        yield
    finally:
        _watched.notes = None
    assert not notes, f"{what} may not block, but {notes[0]}"


@promise(
    name="making-it-does-nothing",
    sentence="The source's constructor only checks options; create_reader, the factory of split readers, "
    "create_enumerator and restore_enumerator do not block: clients are made when they are used.",
    how="Make the source, a reader, a split reader and enumerators, and watch for files, connections and sleeps.",
    contract='docs/full-source.md, "The source"',
)
def making_it_does_nothing(subject: Subject) -> None:
    """Watch constructors."""
    subject.make_source()  # what is imported when it is first needed
    subject.does("Make the source.")
    with _nothing_blocks("the constructor", _is_a_sources_constructor):  # what else the factory does is its own affair
        source = subject.make_source()
    subject.does("Make a reader.")
    context = SourceReaderContext(
        subtask=0, schema=subject.schema, host=None, request_split=lambda: None, send_event=lambda event: None
    )
    with _nothing_blocks("create_reader"):
        reader = source.create_reader(context)
    with _nothing_blocks("SourceReader.start"):
        reader.start()
    try:
        make_split_reader = ready_made(reader).split_reader_factory
    except DoesNotApply:
        pass
    else:
        subject.does("Make a split reader.")
        with _nothing_blocks("the factory of split readers"):
            split_reader = make_split_reader()
        split_reader.close()
    reader.close()
    for boundedness in filter(source.supports, Boundedness):
        subject.does(f"Make an enumerator of a {boundedness.value} read, and one from its state.")
        with _nothing_blocks("create_enumerator"):
            fresh = EnumeratorHarness(source, schema=subject.schema, boundedness=boundedness)
        fresh.start()
        fresh.run_due_calls()
        state = fresh.snapshot()
        fresh.close()
        with _nothing_blocks("restore_enumerator"):
            restored = EnumeratorHarness(source, schema=subject.schema, boundedness=boundedness, state=state)
        restored.close()


def _is_a_sources_constructor(frame: FrameType) -> bool:
    return frame.f_code.co_name == "__init__" and isinstance(frame.f_locals.get("self"), Source)


@promise(
    name="enumerator-does-not-block",
    sentence="No method of an enumerator blocks, nor a handler of call_async: slow work runs off its thread.",
    how="Drive an enumerator through a read, watch its thread for files, connections and sleeps, and time its calls.",
    contract='docs/full-source.md, "The enumerator"',
)
def enumerator_does_not_block(subject: Subject) -> None:
    """Watch the enumerator's thread, if possible while the system does not answer as well."""
    for boundedness in filter(subject.make_source().supports, Boundedness):
        subject.does(f"Drive an enumerator through a {boundedness.value} read.")
        _drive_enumerator(subject, boundedness)
        try:
            context = subject.unavailable()
        except DoesNotApply:
            continue
        with context:
            subject.does(f"Start an enumerator of a {boundedness.value} read while the system is not available.")
            _drive_enumerator(subject, boundedness, answers=False)


def _drive_enumerator(subject: Subject, boundedness: Boundedness, *, answers: bool = True) -> None:
    took: dict[str, float] = {}
    for _ in range(_TRIES):  # others may have held the machine up: the quickest time is the enumerator's own
        took = {}
        enumerator = subject.enumerator(boundedness=boundedness)
        with _timed(took, "start"):
            enumerator.start()
        with _timed(took, "add_reader"):
            enumerator.register_reader(0)
        for _ in range(5 if answers else 1):
            if 0 not in enumerator.no_more_splits:
                with _timed(took, "handle_split_request"):
                    enumerator.request_split(0)
            due = list(enumerator.calls) if answers else []
            for call in due:
                enumerator.clock.advance_to(call.due_ms)
                call.run_work()
                with _timed(took, "a handler of call_async"):
                    enumerator.finish_call(call)
        with _timed(took, "snapshot_state"):
            enumerator.snapshot()
        with _timed(took, "unassigned_event_time_ms"):
            enumerator.enumerator.unassigned_event_time_ms()
        with _timed(took, "add_splits_back"):
            enumerator.fail_reader(0)
        with _timed(took, "close"):
            enumerator.close()
        if max(took.values()) < BLOCKED_S:
            return
    slowest = max(took, key=lambda each: took[each])
    raise AssertionError(f"{slowest} took {took[slowest]:.1f} s; no method of an enumerator may block")


@contextmanager
def _timed(took: dict[str, float], what: str) -> Iterator[None]:
    began = time.monotonic()
    with _nothing_blocks(what):
        yield
    took[what] = max(took.get(what, 0.0), time.monotonic() - began)


@promise(
    name="reader-does-not-block",
    sentence="No method of a reader blocks its task's thread; whatever does is for the fetchers.",
    how="Read to the end with two readers, and watch their tasks' thread for files, connections and sleeps.",
    contract='docs/full-source.md, "What you write"',
)
def reader_does_not_block(subject: Subject) -> None:
    """Watch the task's thread."""
    subject.needs(Boundedness.BOUNDED)
    with subject.harness(parallelism=2) as harness:
        while not harness.ended:
            with _nothing_blocks("a reader"):
                harness.poll()
            harness.step()
            with _nothing_blocks("SourceReader.snapshot_state"):
                for reader in harness.readers:
                    reader.snapshot()


CHECKS = (making_it_does_nothing, enumerator_does_not_block, reader_does_not_block)
