"""A subtask with a source whose split reader is lent to it, beside others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.source import InputStatus, ReaderOutput, SourceReaderContext
from tests.unit.runtime.handed_source import HandedSource
from tests.unit.runtime.toy_query import Running, ToyReader, ToySource, rows
from tests.waiting import wait_until


class AlwaysMore(ToyReader):
    """Says that it has more, and never has any."""

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        super().poll_next(output)
        return InputStatus.MORE_AVAILABLE


class Backlog(ToySource):
    def __init__(self) -> None:
        super().__init__()
        self.is_long = False

    def create_reader(self, context: SourceReaderContext) -> ToyReader:
        source = self

        class Reader(AlwaysMore):
            def poll_next(self, output: ReaderOutput) -> InputStatus:
                status = super().poll_next(output)
                return status if source.is_long else InputStatus.NOTHING_AVAILABLE

        self.readers.append(Reader(self, context))
        return self.reader


@pytest.fixture
def running() -> Iterator[tuple[Running, Backlog, HandedSource]]:
    backlog, handed = Backlog(), HandedSource()
    made = Running(handed=handed, backlog=backlog)
    yield made, backlog, handed
    made.close()


def test_a_source_that_always_has_more_keeps_no_lent_one_from_being_read(
    running: tuple[Running, Backlog, HandedSource],
) -> None:
    made, backlog, handed = running
    made.start("s")
    made.assign("t", source="backlog")
    reader: Any = made.runner.subtask.execution.inputs["handed"].reader  # type: ignore[union-attr]

    def hand(number: int) -> None:
        handed.split_reader.hand(rows(number))
        wait_until(lambda: len(made.sink.rows) > number)

    sent = 0
    while not any(each.is_lent for each in reader._fetchers.values()):
        hand(sent)
        sent += 1
    backlog.is_long = True
    backlog.reader.wake()
    for number in range(sent, sent + 5):
        hand(number)
    assert made.sink.numbers == list(range(sent + 5))
