"""The short way of a few rows through a chain: each part is called at once, and nothing is measured.

Never: take more rows to a part than it may have in a call, take longer than a step may as far as is known, or read a
clock. What does not fit this way is left to the long one (`StageChain.process_some`), in its order.

A batch of few rows costs less than what it takes to queue and to measure it, part by part. What a call of so many rows
takes is known from those that went the long way, as one in `_MEASURED` does; so much is what it counts for.

Follows FLIP-27, "Reader Interface and Threading Model".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import pyarrow as pa

from headgate.operators.operator import Operator
from headgate.runtime.chain_figures import OperatorFigures
from headgate.runtime.overdue_progress import UnderWay
from headgate.runtime.slices import SliceController

FEW_ROWS = 1024
"""More rows go the long way."""
_MEASURED = 16
"""Of so many batches one goes the long way."""


class Rows(msgspec.Struct, frozen=True):
    """Rows of a source's split for an operator or the sink, which has them from its input of this number."""

    uid: str
    input: int
    batch: pa.RecordBatch
    source: str
    split: str


class FewRows:
    """Takes batches through the parts of a chain.

    Parameters
    ----------
    operators
        By uid, those that take rows.
    writes
        By uid, what takes the rows of exchanges and of the sink.
    inputs_of
        By the uid of a source or an operator, to which inputs of which parts its rows go.
    calls
        By the uid of a part: how many rows it may have in a call, and how long that takes.
    figures
        By the uid of a part: what is counted.
    failed
        Called with rows of which an operator raised an error, and with that.
    longest_ms
        How long a batch may take, in milliseconds.
    """

    def __init__(
        self,
        operators: Mapping[str, Operator],
        writes: Mapping[str, Callable[[pa.RecordBatch], None]],
        inputs_of: Mapping[str, Sequence[tuple[str, int]]],
        calls: Mapping[str, SliceController],
        figures: Mapping[str, OperatorFigures],
        failed: Callable[[Rows, Exception | SystemExit], None],
        longest_ms: float,
    ) -> None:
        self._operators = operators
        self._plain = {  # which do not distinguish their inputs
            uid: each.process for uid, each in operators.items() if type(each).process_input is Operator.process_input
        }
        self._writes = writes
        self._inputs_of = inputs_of
        self._calls = calls
        self._figures = figures
        self._failed = failed
        self._longest_ms = longest_ms
        self._batches = 0
        self.under_way: UnderWay | None = None
        """The call that an operator or a sink is in. Replaced as a whole: any thread may read it."""

    def is_next(self) -> bool:
        """Return whether the next batch goes this way, as all but a few do."""
        self._batches += 1
        return self._batches % _MEASURED != 0

    def take(self, source: str, batch: pa.RecordBatch, split: str, now_ms: float) -> list[Rows]:
        """Take rows of a source through; return what is left to the long way, in order. ``now_ms`` is of any clock.

        Raises
        ------
        HeadgateError
            As `StageChain.process_some`.
        """
        left_ms = self._longest_ms
        waiting: list[Rows] = []
        for uid, number in reversed(self._inputs_of[source]):
            waiting.append(Rows(uid, number, batch, source, split))
        while waiting:
            item = waiting.pop()
            uid, rows = item.uid, item.batch.num_rows
            expected_ms = self._calls[uid].expected_call_ms(rows)
            if expected_ms > left_ms:
                waiting.append(item)
                break
            left_ms -= expected_ms
            self.under_way = UnderWay(uid, now_ms)
            write = self._writes.get(uid)
            if write is not None:
                write(item.batch)
            else:
                emitted: list[Rows] = []
                try:
                    self._process(item, emitted)
                except (Exception, SystemExit) as error:
                    self.under_way = None
                    self._failed(item, error)
                    break
                waiting += reversed(emitted)
            figures = self._figures[uid]
            figures.rows_in += rows
            figures.busy_ms += expected_ms
        self.under_way = None
        return waiting[::-1]

    def _process(self, item: Rows, emitted: list[Rows]) -> None:
        to, rows_out = self._inputs_of[item.uid], 0

        def emit(batch: pa.RecordBatch, split: str) -> None:
            nonlocal rows_out
            if batch.num_rows:
                rows_out += batch.num_rows
                for uid, number in to:
                    emitted.append(Rows(uid, number, batch, item.source, split))

        process = self._plain.get(item.uid)
        if process is not None:
            process(item.batch, item.split, emit)
        else:
            self._operators[item.uid].process_input(item.input, item.batch, item.split, emit)
        self._figures[item.uid].rows_out += rows_out
