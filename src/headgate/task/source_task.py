"""Runs one `SourceReader` by a mailbox: rows, timers, checkpoints and messages, one at a time on one thread.

Never: call the reader from another thread than that of `run` (or of `step`), or poll it while letters wait.

    loop: run letters -> the reader has more, and no letter waits: poll again
                      -> it has nothing: wait for a letter; `SourceReader.available` posts one
                      -> end of input: final watermark, close, done

Follows FLIP-27, "Reader Interface and Threading Model".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from headgate.source.events import SourceEvent
from headgate.source.reader import InputStatus, SourceReader
from headgate.source.split import Split
from headgate.task.mailbox import Letter, Mailbox
from headgate.task.outputs import TaskOutput

SplitT = TypeVar("SplitT", bound=Split)


def wall_clock_ms() -> int:
    """Return the time in milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000


class SourceTask(Generic[SplitT]):
    """Drives a reader. All methods but `run` and `step` may be called by any thread and do not block.

    Parameters
    ----------
    reader
        A reader that was not started yet.
    output
        Takes what the reader emits.
    now_ms
        Reads the clock, in milliseconds.
    """

    def __init__(
        self, reader: SourceReader[SplitT], output: TaskOutput, now_ms: Callable[[], int] = wall_clock_ms
    ) -> None:
        self._reader = reader
        self._output = output
        self._now_ms = now_ms
        self._mailbox = Mailbox(now_ms)
        self._started = False
        self._ended = False
        self._status = InputStatus.MORE_AVAILABLE

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Give splits to the reader. From then on they hold the watermark."""
        self._post(lambda: self._add_splits(splits))

    def notify_no_more_splits(self) -> None:
        """Tell the reader that it gets no more splits."""
        self._post(self._reader.notify_no_more_splits)

    def pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        """Pause and resume splits by id. An `UnsupportedOperationError` ends the task."""
        self._post(lambda: self._pause_or_resume_splits(splits_to_pause, splits_to_resume))

    def handle_source_event(self, event: SourceEvent) -> None:
        """Hand an event of the enumerator to the reader."""
        self._post(lambda: self._reader.handle_source_event(event))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell the reader that a checkpoint is durable."""
        self._post(lambda: self._reader.notify_checkpoint_complete(checkpoint_id))

    def trigger_checkpoint(self, checkpoint_id: int) -> Future[list[SplitT]]:
        """Return the future of the reader's state between two batches; it is cancelled if the task ends before."""
        snapshot: Future[list[SplitT]] = Future()
        self._mailbox.post(Letter(lambda: self._checkpoint(checkpoint_id, snapshot), snapshot.cancel))
        return snapshot

    def cancel(self) -> None:
        """End the task before the end of its input, without a final watermark."""
        self._post(self._cancel)

    def run(self) -> None:
        """Run to the end of the input or until `cancel`, on the calling thread. The reader is closed in any case.

        Raises
        ------
        HeadgateError
            What the reader raised: the task is to be restored from a checkpoint.
        """
        try:
            while self.step():
                if self._status is InputStatus.NOTHING_AVAILABLE:
                    self._mailbox.wait()
        finally:
            self.close()

    def step(self) -> bool:
        """Run the waiting letters, then poll once if there is something; return whether the task goes on.

        For harnesses, which call it instead of `run`. Does not wait.
        """
        if not self._started:
            self._started = True
            self._reader.start()
            self._arm_timer()
        self._mailbox.run_letters()
        if not self._ended and self._status is InputStatus.MORE_AVAILABLE:
            self._poll()
        return not self._ended

    def close(self) -> None:
        """Close the reader and discard letters. Called by `run`; by who calls `step` himself."""
        self._ended = True
        self._mailbox.close()
        self._reader.close()

    def _poll(self) -> None:
        self._output.advance_time(self._now_ms())
        self._status = self._reader.poll_next(self._output)
        if self._status is InputStatus.END_OF_INPUT:
            self._output.end_input()
            self._ended = True
        elif self._status is InputStatus.NOTHING_AVAILABLE:
            available = self._reader.available()
            if available.done():
                self._status = InputStatus.MORE_AVAILABLE
            else:
                available.add_done_callback(lambda _: self._post(self._on_available))

    def _on_available(self) -> None:
        self._status = InputStatus.MORE_AVAILABLE

    def _add_splits(self, splits: Sequence[SplitT]) -> None:
        for split in splits:
            self._output.create_output_for_split(split.split_id)
        self._reader.add_splits(splits)

    def _pause_or_resume_splits(self, to_pause: Collection[str], to_resume: Collection[str]) -> None:
        self._reader.pause_or_resume_splits(to_pause, to_resume)
        self._output.pause_or_resume_splits(to_pause, to_resume)

    def _checkpoint(self, checkpoint_id: int, snapshot: Future[list[SplitT]]) -> None:
        if not snapshot.set_running_or_notify_cancel():
            return
        try:
            snapshot.set_result(self._reader.snapshot_state(checkpoint_id))
        except BaseException as error:
            snapshot.set_exception(error)
            raise

    def _cancel(self) -> None:
        self._ended = True

    def _arm_timer(self) -> None:
        if self._output.timer_period_ms is not None:
            self._mailbox.run_after(self._output.timer_period_ms, Letter(self._on_timer))

    def _on_timer(self) -> None:
        self._output.advance_time(self._now_ms())
        self._arm_timer()

    def _post(self, run: Callable[[], None]) -> None:
        self._mailbox.post(Letter(run))
