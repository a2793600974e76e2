"""Seeds of the simulators that once failed, with what they showed: each ordinary run tries them first.

Those so far are from bugs that others shipped, planted by ``tests/scenarios/test_planted_*.py``; those that show most
come first. A seed that fails in a search is added at the end, with its error's first line.
"""

from __future__ import annotations

FAILED: dict[int, str] = {
    7: "splits in no place or in two, after an enumerator's or a reader's failure; a commit before its manifest",
    26: "paused in vain by a vote that is stale, or by an announcement that never came",
    83: "splits of a subtask that is gone after a rescale; several that come back at once",
    5: "a bounded source that is restored never ends",
    21: "an idle split is never resumed",
    50: "some readers have two splits, some none",
    165: "a subtask is running before its readers are registered",
    176: "an assignment overtakes a barrier",
    232: "the bounds of event time overflow when all readers are idle",
    1: "a reader's vote is dropped, or counted though it has none",
    3: "an idle split's watermark is the final one",
    8: "a remainder has no vote",
    31: "splits come back, and nobody who waits is woken",
    41: "a source that ends at once emits no final watermark",
    145: "what is pending for a subtask that is gone after a rescale is in no place",
    466: "the same",
    711: "a reader heard that nothing is unassigned before all had reported what they have",
}
"""Of clusters: ``./run simulate --replay SEED``."""

KEYED_FAILED: dict[int, str] = {
    10: "rows that are stored before a rescale are lost, doubled or out of order",
    11: "rows before recovery is over: credit, watermarks, snapshots and final watermarks that come too soon",
    13: "a subtask stores rows of another one",
    41: "a watermark that passes an idle input; a custom partitioner after a rescale",
    2: "rows that were staged for a failed checkpoint",
    14: "one aligned exchange aligns all",
    117: "a stateless stage after a rescale",
    52: "a watermark that waits for nobody who is idle",
    32: "a final watermark that passes idle producers",
}
"""Of keyed pipelines: ``./run simulate --keyed --replay SEED``."""
