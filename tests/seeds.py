"""Seeds of the simulator that once failed, with what they showed: each ordinary run tries them first.

A seed that fails in a search is added at the end, with its error's first line. Those that find planted bugs are in
``tests/scenarios/test_planted_*.py``.
"""

from __future__ import annotations

FAILED: dict[int, str] = {
    1550: "a reader of a bounded read of Kinesis that asked for a split and was gone was given one",
    1836: "a split counted as paused in vain for as long as nobody had read, though others were slower meanwhile",
    2336: "a split that a turn had found idle counted as the slowest while the same turn read",
    2565: "a drained subtask that was given a split that had ended asked for another one, which ended the query",
    3974: "a subtask that woke up sent rows in one exchange and its watermark, which came sooner, in another one",
    91013: "Kafka's enumerator, restored from a state of after the end of a split, was given that split back",
}
"""``./run simulate --replay SEED``."""
