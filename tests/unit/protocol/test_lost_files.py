"""What a barrier carries of files that are gone: all of them, few others, and never more than a frame takes."""

from __future__ import annotations

import pytest

from headgate.protocol.channels import Barrier, decode_event, encode_event
from headgate.protocol.data_frames import MAX_METADATA
from headgate.protocol.lost_files import lost_files, may_be_lost


@pytest.mark.parametrize("many", [1, 1000, 20_000])
def test_a_barrier_has_all_that_is_gone_and_fits_into_a_frame(many: int) -> None:
    gone = [f"shared/window/window-1-{number}-0-1-2" for number in range(many)]
    data = encode_event(Barrier(checkpoint_id=7, location="s3://bucket/" + "deep/" * 400, lost=lost_files(gone)))
    assert len(data) <= MAX_METADATA
    barrier = decode_event(data)
    assert isinstance(barrier, Barrier) and all(may_be_lost(path, barrier.lost) for path in gone)
    there = [f"shared/window/window-2-{number}-0-1-2" for number in range(1000)]
    seeming = sum(may_be_lost(path, barrier.lost) for path in there)
    assert many > 1000 or seeming <= 50, "of a thousand that are there, where a thousand are gone"
