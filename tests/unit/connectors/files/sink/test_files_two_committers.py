"""Two committers that live at once, as when a run is taken over while it commits: each row once, at every instant.

What they do to the file system is interleaved operation by operation. To look whether a file is there and to give
another one its name is one of them, as it is for a local disk (`os.link`). The folder is a real one: in pyarrow's
memory bytes are lost when a file is deleted while it is open.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pytest
from faulty_files import (
    OUTPUT,
    SMALL,
    DyingHandler,
    assert_tidy,
    committer,
    listed,
    visible,
)
from faulty_files import writer as make_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.connectors.files.sink.committer import FilesCommitter, PublishingLimits
from headgate.connectors.files.sink.encodings import JsonEncoding
from headgate.connectors.files.sink.staged_files import StagedNames
from headgate.errors import StoredStateError
from headgate.protocol.operator_context import OperatorContext

SCHEMA = pa.schema({"id": pa.int64()})
ONE_BY_ONE = PublishingLimits(interval_ms=10_000, size_bytes=1 << 20, file_bytes=8)
OLD, NEW = 0, 1
_TIMEOUT_S = 60


class Steps:
    """Lets one of several threads run at a time, from one operation to the next."""

    def __init__(self) -> None:
        self._go: list[threading.Semaphore] = []
        self._back = threading.Semaphore(0)
        self.alive: list[bool] = []
        self.errors: list[Exception | None] = []

    def add(self, act: Callable[[], object]) -> None:
        number = len(self._go)
        self._go.append(threading.Semaphore(0))
        self.alive.append(True)
        self.errors.append(None)
        threading.Thread(target=self._run, args=(number, act), daemon=True).start()

    def _run(self, number: int, act: Callable[[], object]) -> None:
        assert self._go[number].acquire(timeout=_TIMEOUT_S)
        try:
            act()
        except Exception as error:
            self.errors[number] = error
        self.alive[number] = False
        self._back.release()

    def pause(self, number: int) -> None:
        """Wait for the next turn; on the thread."""
        self._back.release()
        assert self._go[number].acquire(timeout=_TIMEOUT_S)

    def step(self, number: int) -> None:
        """Let a thread do its next operation."""
        if self.alive[number]:
            self._go[number].release()
            assert self._back.acquire(timeout=_TIMEOUT_S)


class SteppedHandler(DyingHandler):
    """Waits for its turn before each operation, and while a file that it began is empty."""

    def __init__(self, inner: Any, steps: Steps, number: int, dies_at: int | None = None) -> None:
        super().__init__(inner, dies_at)
        self._steps = steps
        self._number = number
        self._looked_for: str | None = None

    def _change(self, method: str, *arguments: Any, **named: Any) -> Any:
        if method != "move" or arguments[1] != self._looked_for:
            self._steps.pause(self._number)
        result = super()._change(method, *arguments, **named)
        if method == "open_output_stream":
            self._steps.pause(self._number)
        return result

    def get_file_info(self, paths: Sequence[str]) -> Any:
        self._steps.pause(self._number)
        self._looked_for = paths[0] if paths else None
        return super().get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        self._steps.pause(self._number)
        return super().get_file_info_selector(selector)

    def open_input_stream(self, path: str) -> Any:
        self._steps.pause(self._number)
        return super().open_input_stream(path)


def stage(handler: DyingHandler, rows: Sequence[int], run: int) -> list[bytes]:
    """Stage a file per row."""
    who = OperatorContext(uid="sink", subtask=0, parallelism=1, run=run, execution=1, query_id="q")
    writer = make_writer(handler, StagedNames(who, "json"), SCHEMA)
    staged: Sequence[bytes] = ()
    for checkpoint_id, row in enumerate(rows, 1):
        writer.write(pa.record_batch({"id": pa.array([row], pa.int64())}))
        staged = writer.prepare_commit(checkpoint_id, final=False).result(_TIMEOUT_S).committables
    writer.close()
    return list(staged)


def file_system_of(folder: tempfile.TemporaryDirectory[str]) -> Any:
    return pa_fs.SubTreeFileSystem(folder.name, pa_fs.LocalFileSystem())


@cache  # hundreds of stories begin alike
def begun(
    rows: tuple[int, ...], before: tuple[int, ...]
) -> tuple[tempfile.TemporaryDirectory[str], list[bytes], list[bytes]]:
    """Return a folder with some rows published, and what was staged there by the old run and by the new one."""
    folder = tempfile.TemporaryDirectory()
    files = file_system_of(folder)
    files.create_dir(f"{OUTPUT}/_staging")
    committer(DyingHandler(files)).open()
    for number, row in enumerate(before, 1):
        committer(DyingHandler(files)).commit(stage(DyingHandler(files), [row], 1), epoch=number, final=True)
    return folder, stage(DyingHandler(files), rows, 1), stage(DyingHandler(files), [3], 2)


class TakenOver:
    """A story: an old run commits rows while a new one commits those too, because of its checkpoint, and row 3.

    Parameters
    ----------
    limits
        Whether staged files are merged or published one by one.
    rows
        Those of the old run; each is a staged file.
    batches
        So many were published before.
    checked
        Whether the old run finds out that it was taken over.
    dies_at
        The operation at which the old run dies.
    """

    def __init__(
        self,
        limits: PublishingLimits = SMALL,
        *,
        rows: Sequence[int] = (1, 2),
        batches: int = 0,
        checked: bool = False,
        dies_at: int | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.files = file_system_of(self._folder)
        self.limits = limits
        self.rows = rows
        self.before = [-number for number in range(batches)]
        beginning, self.staged, self.more = begun(tuple(rows), tuple(self.before))
        shutil.copytree(beginning.name, self._folder.name, dirs_exist_ok=True)
        self.steps = Steps()
        self.dies = dies_at is not None
        self.taken_over = False
        self.handlers = [SteppedHandler(self.files, self.steps, each, (dies_at, None)[each]) for each in (OLD, NEW)]
        old = committer(self.handlers[OLD], limits)
        if checked:
            old.check_owner = self._check_owner
        self.steps.add(lambda: old.commit(self.staged, epoch=9, final=True))
        self.steps.add(self._take_over)
        self.seen = visible(self.files)

    def _check_owner(self) -> None:
        if self.taken_over:
            raise StoredStateError("taken over", newer_run=2)

    def _take_over(self) -> None:
        self.taken_over = True
        new = committer(self.handlers[NEW], self.limits)
        new.open()
        new.commit([*self.staged, *self.more], epoch=9, final=True)

    def run(self, turns: Iterable[int]) -> None:
        """Give turns to the two; then the new one ends, and the old one."""
        for turn in turns:
            self.step(turn)
        for turn in (NEW, OLD):
            while self.steps.alive[turn]:
                self.step(turn)
        self.check_end()

    def step(self, turn: int) -> None:
        changes = sum(each.operations for each in self.handlers)
        self.steps.step(turn)
        if changes == sum(each.operations for each in self.handlers):
            return
        seen = visible(self.files)  # raises if a file that the log names is not there
        assert len(seen) == len(set(seen)) and set(self.seen) <= set(seen), (self.seen, seen)
        assert set(seen) <= {*self.before, *self.rows, 3}
        self.seen = seen

    def check_end(self) -> None:
        old, new = self.steps.errors
        assert new is None, repr(new)
        if not self.dies:
            assert old is None or isinstance(old, StoredStateError), repr(old)
        assert self.seen == sorted([*self.before, *self.rows, 3])
        again = committer(DyingHandler(self.files), self.limits)
        assert again.commit([*self.staged, *self.more], epoch=11, final=True) == []
        assert again.commit(stage(DyingHandler(self.files), [4], 3), epoch=12, final=True) == []
        assert visible(self.files) == sorted([*self.before, *self.rows, 3, 4])
        if not self.dies:
            assert_tidy(self.files)
        self._folder.cleanup()


def turns_of(first: int, *counts: int) -> Iterator[int]:
    """Yield turns for the one and for the other alternately."""
    for position, count in enumerate(counts):
        yield from [(first + position) % 2] * count


LIMITS = [pytest.param(SMALL, id="merged"), pytest.param(ONE_BY_ONE, id="one by one")]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("batches", [0, 8], ids=["plain", "compact"])
def test_wherever_the_old_one_stops_and_the_new_one_ends(limits: PublishingLimits, batches: int) -> None:
    """The old committer stands still at each of its operations in turn, until the new one is done."""
    stops_at, running = 0, True
    while running:
        story = TakenOver(limits, batches=batches)
        for turn in turns_of(OLD, stops_at):
            story.step(turn)
        running = story.steps.alive[OLD]
        story.run([])
        stops_at += 1
    assert stops_at > 20


@pytest.mark.parametrize("limits", LIMITS)
def test_schedules_of_two_switches(limits: PublishingLimits) -> None:
    """The old one stops anywhere, the new one stops at every other operation, the old one ends, the new one ends."""
    old_stops, old_runs = 0, True
    while old_runs:
        new_stops, new_runs = 1 + old_stops % 2, True
        while new_runs:
            story = TakenOver(limits, rows=(1,))
            for turn in turns_of(OLD, old_stops):
                story.step(turn)
            old_runs = story.steps.alive[OLD]
            for turn in turns_of(NEW, new_stops):
                story.step(turn)
            new_runs = story.steps.alive[NEW]
            while story.steps.alive[OLD]:
                story.step(OLD)
            story.run([])
            new_stops += 2
        old_stops += 1
    assert old_stops > 15


@settings(max_examples=50)
@given(
    limits=st.sampled_from([SMALL, ONE_BY_ONE]),
    rows=st.sampled_from([(), (1, 2)]),
    batches=st.sampled_from([0, 8]),
    checked=st.booleans(),
    dies_at=st.one_of(st.none(), st.integers(1, 14)),
    first=st.sampled_from([OLD, NEW]),
    counts=st.lists(st.integers(1, 12), max_size=20),
)
def test_any_schedule(
    limits: PublishingLimits,
    rows: Sequence[int],
    batches: int,
    checked: bool,
    dies_at: int | None,
    first: int,
    counts: list[int],
) -> None:
    TakenOver(limits, rows=rows, batches=batches, checked=checked, dies_at=dies_at).run(turns_of(first, *counts))


class SlowEncoding(JsonEncoding):
    """Lets something happen before it merges."""

    def __init__(self, before: Callable[[], None]) -> None:
        super().__init__("none")
        self.before = before

    def merge(self, file_system: pa_fs.FileSystem, paths: Sequence[str], target: str) -> None:
        self.before()
        super().merge(file_system, paths, target)


class LocalFolder:
    """An output folder on a real disk, with staged files of the rows 1 and 2."""

    def __init__(self, folder: Path, limits: PublishingLimits) -> None:
        self.files = pa_fs.SubTreeFileSystem(str(folder), pa_fs.LocalFileSystem())
        self._output = str(folder / OUTPUT)
        self._limits = limits
        self.staged = stage(DyingHandler(self.files), [1, 2], 1)
        self.staged = [each.replace(b'"output":"out"', f'"output":"{self._output}"'.encode()) for each in self.staged]

    def committer(self, encoding: JsonEncoding | None = None) -> FilesCommitter:
        local, encoding = pa_fs.LocalFileSystem(), encoding or JsonEncoding("none")
        made = FilesCommitter(local, self._output, Path(self._output).as_uri(), encoding, SCHEMA, self._limits)
        made.open()
        return made

    def take_over(self) -> None:
        new = self.committer()
        assert new.commit(self.staged, epoch=1, final=True) == [] and visible(self.files) == [1, 2]

    def check(self) -> None:
        """Nothing is lost or seen twice, and nothing lies about."""
        assert visible(self.files) == [1, 2]
        self.take_over()
        assert_tidy(self.files)


@pytest.mark.parametrize("limits", LIMITS)
def test_the_new_one_publishes_before_the_old_one_appends(tmp_path: Path, limits: PublishingLimits) -> None:
    folder = LocalFolder(tmp_path, limits)
    old = folder.committer()
    old.check_owner = folder.take_over
    assert old.commit(folder.staged, epoch=1, final=True) == []
    folder.check()


def test_the_new_one_publishes_while_the_old_one_merges(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path, SMALL)
    old = folder.committer(SlowEncoding(folder.take_over))
    assert old.commit(folder.staged, epoch=1, final=True) == []
    folder.check()


@pytest.mark.parametrize("limits", LIMITS)
def test_the_new_one_opens_before_the_old_one_appends(tmp_path: Path, limits: PublishingLimits) -> None:
    folder = LocalFolder(tmp_path, limits)
    old, new = folder.committer(), []
    old.check_owner = lambda: new.append(folder.committer())
    assert old.commit(folder.staged, epoch=1, final=True) == []
    assert visible(folder.files) == [1, 2]
    assert new[0].commit(folder.staged, epoch=1, final=True) == []
    folder.check()


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("calls", [0, 1], ids=["before the append", "after it"])
def test_the_old_one_ends_when_it_was_taken_over(tmp_path: Path, limits: PublishingLimits, calls: int) -> None:
    folder = LocalFolder(tmp_path, limits)
    old = folder.committer()
    answers = iter([None] * calls)

    def check_owner() -> None:
        if next(answers, "taken over") is not None:
            raise StoredStateError("taken over", newer_run=2)

    old.check_owner = check_owner
    with pytest.raises(StoredStateError, match="taken over"):
        old.commit(folder.staged, epoch=1, final=True)
    assert visible(folder.files) == ([1, 2] if calls else [])
    assert len(listed(folder.files, f"{OUTPUT}/_staging")) == 2 + calls, "the staged files stay"
    folder.take_over()
    folder.check()
