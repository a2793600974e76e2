"""Seeds of the simulator that once failed, with what they showed: each ordinary run tries them first.

A seed that fails in a search is added at the end, with its error's first line. Those that find planted bugs are in
``tests/scenarios/test_planted_*.py``.
"""

from __future__ import annotations

FAILED: dict[int, str] = {
    711: "a reader heard that nothing is unassigned before all had reported what they have",
    1243: "once all was calm, aligned barriers waited for large pieces of rows longer than a checkpoint may take",
}
"""``./run simulate --replay SEED``."""
