"""What a chain has done since its deployment, as numbers.

Never: compute anything.
"""

from __future__ import annotations

import msgspec


class OperatorFigures(msgspec.Struct):
    """What an operator or the sink did since the deployment: rows it took and gave, and its time in milliseconds."""

    rows_in: int = 0
    rows_out: int = 0
    busy_ms: float = 0.0


class ChainFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a chain did since the deployment.

    Parameters
    ----------
    rows_in
        By the uid of a source: rows that it emitted, of which processing has begun.
    rows_out
        By the uid of a sink: rows that it was given.
    busy_ms
        By the uid of an operator or a sink: the time it took, in milliseconds.
    watermark_ms
        The sink's watermark; None: there is none.
    skipped
        Records that could not be processed, whether written elsewhere or not.
    late
        Rows that came after the watermark, whether written elsewhere or not.
    unpublished_ms
        By the uid of a sink: how long its oldest rows of a complete checkpoint have waited to be published; absent:
        none wait.
    operators
        By the uid of an operator or the sink: rows in and out.
    rows_received, rows_sent
        Rows of the exchanges that the stage consumes, and that it produces.
    """

    rows_in: dict[str, int]
    rows_out: dict[str, int]
    busy_ms: dict[str, int]
    watermark_ms: int | None
    skipped: int
    late: int
    unpublished_ms: dict[str, int]
    operators: dict[str, OperatorFigures]
    rows_received: int
    rows_sent: int
