"""What was late before a restore is late after it, key group by key group."""

from __future__ import annotations

import numpy as np

from headgate.protocol.key_groups import KeyGroupRange
from headgate.state.watermarks import LEAST_US, KeyGroupWatermarks


def nobody() -> None:
    raise AssertionError("key groups make no difference")


def test_one_watermark_for_all() -> None:
    watermarks = KeyGroupWatermarks(KeyGroupRange(2, 5), 8)
    assert watermarks.of(nobody) == LEAST_US
    assert watermarks.advance(7) and not watermarks.advance(7) and not watermarks.advance(3)
    assert watermarks.of(nobody) == 7 and watermarks.are_one
    assert watermarks.ranges() == [(2, 5, 7)]


def test_of_two_former_subtasks() -> None:
    """Each key group has the watermark that it had, until that of the subtask is beyond it."""
    watermarks = KeyGroupWatermarks(KeyGroupRange(2, 5), 8)
    watermarks.take_on([(0, 3, 10)])
    watermarks.take_on([(4, 6, 20), (7, 7, 30)])
    watermarks.settle()
    assert (watermarks.now_us, watermarks.most_restored_us, watermarks.are_one) == (10, 20, False)
    assert watermarks.of(lambda: np.array([2, 5, 4])).tolist() == [10, 20, 20]
    watermarks.advance(15)
    assert watermarks.of(lambda: np.array([2, 5, 4])).tolist() == [15, 20, 20]
    assert watermarks.restored(np.array([2, 5])).tolist() == [10, 20]
    assert watermarks.ranges() == [(2, 3, 15), (4, 5, 20)]
    watermarks.advance(20)
    assert watermarks.of(nobody) == 20 and watermarks.ranges() == [(2, 5, 20)]
