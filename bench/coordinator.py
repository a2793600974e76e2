"""The coordinator of one source with many splits: machine, enumerator's runner and write-ahead log, without Spark.

The peer of each case is the time that is required of it at a million splits and 10,000 readers. Each case is also run
with a tenth and a hundredth of the splits; the table says how the time grows with them.

    assign      an enumerator hands all splits out: checked, serialised, logged to a local disk, put on the streams
    checkpoint  half of the splits are in the enumerator's state, half were assigned since the last one; until pruned
    give-back   one reader is lost: until the enumerator has its splits back and it may be deployed again
    rescale     all splits are reported by three times as many readers, and assigned anew
"""

from __future__ import annotations

import argparse
import gc
import resource
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.fs as pa_fs
from rich.table import Table

from bench.frame import Case, WorkerMemory, chosen, console, measure, report
from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.enumerator_runner import EnumeratorRunner, SlowWork
from headgate.coordinator.sources.source_coordinator import SourceCoordinator
from headgate.coordinator.sources.write_ahead_log import WriteAheadLog
from headgate.protocol import messages as msg
from headgate.protocol.state import SplitState
from headgate.source.enumerator import Boundedness, SplitEnumerator, SplitEnumeratorContext
from headgate.source.reader import SourceReader, SourceReaderContext
from headgate.source.serialization import VersionedSerializer
from headgate.source.source import Source, SupportsSplitReassignmentOnRecovery
from headgate.source.split import Split

SUMMARY = "the coordinator of a source with up to a million splits"
REQUIRED_S = {"assign": 10.0, "checkpoint": 2.0, "give-back": 0.05, "rescale": 10.0}
REQUIRED_MIB = 2048
SPLITS_PER_READER = 100
UID = "bench"


class Range(Split, frozen=True, kw_only=True):
    """A split as connectors have them."""

    topic: str = "topic"
    position: int = 0
    stop: int | None = None


class Ranges(msgspec.Struct, frozen=True):
    """The enumerator's state."""

    pending: tuple[Range, ...] = ()


class Enumerator(SplitEnumerator[Range, Ranges]):
    """Deals what is pending to the readers in turn, once all are there; ``held_back`` splits stay with it."""

    def __init__(self, context: SplitEnumeratorContext[Range], splits: Sequence[Range], held_back: int) -> None:
        self._context = context
        self._pending = list(splits)
        self._held_back = held_back

    def start(self) -> None:
        pass

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        pass

    def add_reader(self, subtask: int) -> None:
        readers = self._context.registered_readers
        for split in readers[subtask].reported_splits_on_registration:
            assert isinstance(split, Range)
            self._pending.append(split)
        if len(readers) == self._context.current_parallelism:
            given, self._pending = self._pending[self._held_back :], self._pending[: self._held_back]
            self._context.assign_splits({each: given[each :: len(readers)] for each in readers})

    def add_splits_back(self, splits: Sequence[Range], subtask: int) -> None:
        self._pending.extend(splits)

    def notify_splits_finished(self, split_ids: Collection[str]) -> None:
        pass

    def snapshot_state(self, checkpoint_id: int) -> Ranges:
        return Ranges(tuple(self._pending))

    def close(self) -> None:
        pass


class RangesSource(Source[Range, Ranges], SupportsSplitReassignmentOnRecovery):
    """Has as many splits as configured."""

    name = "bench"
    split_serializer = VersionedSerializer(Range, version=1, what="a split of the bench")
    state_serializer = VersionedSerializer(Ranges, version=1, what="a state of the bench")

    def __init__(self, splits: Sequence[Range], held_back: int = 0) -> None:
        super().__init__({})
        self.splits = splits
        self.held_back = held_back

    def schema(self) -> pa.Schema:
        return pa.schema([])

    def create_enumerator(self, context: SplitEnumeratorContext[Range]) -> Enumerator:
        return Enumerator(context, self.splits, self.held_back)

    def restore_enumerator(self, context: SplitEnumeratorContext[Range], state: Ranges) -> Enumerator:
        return Enumerator(context, state.pending, self.held_back)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[Range]:
        raise NotImplementedError


class Coordination:
    """A coordinator whose orders are carried out at once. Messages to readers are counted and dropped."""

    def __init__(self, source: RangesSource, readers: int, folder: Path) -> None:
        self.source, self.readers = source, readers
        self.machine = SourceCoordinator(UID, reassigns_on_recovery=True, parallelism=readers)
        self.log = WriteAheadLog(pa_fs.LocalFileSystem(), str(folder))
        self.sent = 0
        self.ready = False
        self.reset = False
        self._events: deque[src.Event] = deque()
        self.handle(src.SourceStarted())

    def handle(self, event: src.Event) -> None:
        self._events.append(event)
        while self._events:
            for action in self.machine.handle(self._events.popleft(), 0):
                self._carry_out(action)

    def register(self, subtask: int, reported: tuple[SplitState, ...] = (), execution: int = 1) -> None:
        message = msg.ReaderRegistered(stage=0, execution=execution, source=UID, host="h", reported_splits=reported)
        self.handle(src.FromReader(subtask, message))

    def _carry_out(self, action: src.Action) -> None:
        match action:
            case src.StartEnumerator():
                self._runner = EnumeratorRunner(
                    self.source,
                    UID,
                    incarnation=action.incarnation,
                    boundedness=Boundedness.CONTINUOUS_UNBOUNDED,
                    schema=self.source.schema(),
                    parallelism=self.readers,
                    state=action.state,
                    checkpoint_id=action.checkpoint_id,
                    call_async=_no_slow_work,
                )
                self._events.extend(self._runner.reported(self._runner.start()))
            case src.CallEnumerator(call=call):
                self._events.extend(self._runner.reported(self._runner.call(call)))
            case src.AppendLog() | src.DropLog():
                answer = self.log.carry_out(action)
                if answer is not None:
                    self._events.append(answer)
            case src.SendToReader(message=message):
                self.sent += len(message.splits) if isinstance(message, msg.AssignSplits) else 0
            case src.EnumeratorStateReady():
                self.ready = True
            case src.ReaderReset():
                self.reset = True
            case _:
                raise AssertionError(action)


def _no_slow_work(work: SlowWork) -> None:
    raise AssertionError("the bench has none")


def _splits(count: int) -> list[Range]:
    return [Range(split_id=f"topic-{number}", position=number) for number in range(count)]


def _readers_of(splits: int) -> int:
    return max(1, splits // SPLITS_PER_READER)


def _assigned(splits: int, folder: Path, held_back: int = 0) -> Coordination:
    """Return a coordinator all of whose readers but the last have come; its registration hands everything out."""
    readers = _readers_of(splits)
    made = Coordination(RangesSource(_splits(splits), held_back), readers, folder)
    for subtask in range(readers - 1):
        made.register(subtask)
    return made


def _timed(action: Callable[[], Any]) -> float:
    gc.collect()
    gc.freeze()  # what the bench itself holds would cost time in every collection
    try:
        begin = time.perf_counter()
        action()
        return time.perf_counter() - begin
    finally:
        gc.unfreeze()


def _assign(splits: int, folder: Path) -> float:
    made = _assigned(splits, folder)
    seconds = _timed(lambda: made.register(made.readers - 1))
    assert made.sent == splits
    return seconds


def _checkpoint(splits: int, folder: Path) -> float:
    made = _assigned(splits, folder, held_back=splits // 2)
    made.register(made.readers - 1)

    def take() -> None:
        made.handle(src.CheckpointStarted(1))
        assert made.ready
        made.handle(src.BarriersSent(1))
        made.handle(src.SourceCheckpointCompleted(1))

    return _timed(take)


def _give_back(splits: int, folder: Path) -> float:
    made = _assigned(splits, folder)
    made.register(made.readers - 1)
    seconds = _timed(lambda: made.handle(src.ReaderFailed(0, 0)))
    assert made.reset
    return seconds


def _rescale(splits: int, folder: Path) -> float:
    readers = _readers_of(splits)
    serialize = RangesSource.split_serializer.serialize
    states = [SplitState(split.split_id, serialize(split)) for split in _splits(splits)]
    made = Coordination(RangesSource([]), readers, folder)
    before = max(1, readers // 3)

    def restart() -> None:
        for subtask in range(readers):
            made.register(subtask, tuple(states[subtask::before]) if subtask < before else ())

    seconds = _timed(restart)
    assert made.sent == splits
    return seconds


RUNS: dict[str, Callable[[int, Path], float]] = {
    "assign": _assign,
    "checkpoint": _checkpoint,
    "give-back": _give_back,
    "rescale": _rescale,
}


def _run(name: str, splits: int) -> float:
    folder = Path(tempfile.mkdtemp(prefix="headgate-bench-"))
    try:
        return RUNS[name](splits, folder)
    finally:
        shutil.rmtree(folder)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Coordinator has no options of its own; ``--rows`` is the largest number of splits."""


def run(arguments: argparse.Namespace) -> None:
    """Measure and report."""
    largest = arguments.rows or (100_000 if arguments.quick else 1_000_000)
    sizes = [max(1, largest // 100), max(1, largest // 10)]
    cases = chosen(
        [
            Case(name, lambda name=name: _run(name, largest), lambda name=name: REQUIRED_S[name], "required")
            for name in RUNS
        ],
        arguments.only,
    )
    memory = WorkerMemory()
    smaller = {case.name: [min(_run(case.name, size) for _ in range(3)) for size in sizes] for case in cases}
    results = [measure(case, arguments.rounds, memory) for case in cases]
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    table = Table(title="seconds by the number of splits", title_justify="left", header_style="bold")
    for heading in ("case", *(f"{size:,}" for size in (*sizes, largest)), "growth from the middle one"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for result in results:
        times = [*smaller[result.case.name], min(result.headgate)]
        table.add_row(result.case.name, *(f"{each:.4f}" for each in times), f"{times[2] / times[1]:.1f} times")
    console.print(table)
    console.print("Linear is 10 times; give-back depends on the reader's splits alone.")
    verdict = "less" if peak_mib < REQUIRED_MIB else "MORE"
    footer = (
        f"{largest:,} splits, {_readers_of(largest):,} readers, {arguments.rounds} rounds. "
        f"Largest resident set of this process: {peak_mib:,} MiB, {verdict} than the {REQUIRED_MIB:,} required."
    )
    report("coordinator", results, memory, footer)
