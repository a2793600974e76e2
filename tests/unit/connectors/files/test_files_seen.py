import random

import numpy as np
import pytest

from headgate.connectors.files.seen_files import SeenFiles, SeenFilesState, file_hashes
from headgate.errors import CorruptStateError

DAY_MS = 86_400_000


def test_a_file_is_found_again_after_a_restore():
    seen = SeenFiles(None)
    hashes = file_hashes(["/a", "/b", "/c"])
    seen.add(int(hashes[0]), 5000)
    seen.add(int(hashes[2]), 6001)
    assert seen.lookup(hashes).tolist() == [5, -1, 7]
    restored = SeenFiles(None, seen.snapshot())
    assert restored.lookup(hashes).tolist() == [5, -1, 7]
    assert len(restored) == 2


def test_a_snapshot_without_news_is_the_same():
    seen = SeenFiles(DAY_MS)
    seen.add(1, 1000)
    first = seen.snapshot()
    assert seen.snapshot() == first
    assert SeenFiles(DAY_MS, first).snapshot() == first


def test_segments_are_few_and_mostly_unchanged():
    seen = SeenFiles(None)
    rng = random.Random(7)
    before: set[str] = set()
    written = 0
    for _ in range(2000):
        for _ in range(5):
            seen.add(rng.getrandbits(64), 1000)
        segments = set(seen.snapshot().segments)
        written += sum(len(each) for each in segments - before)
        before = segments
        assert len(segments) <= 15
    # Every entry (16 characters) is written about log2(2000) times, not 2000 times.
    assert written < 16 * 10_000 * 13


def test_old_files_are_ignored_by_time_and_their_hashes_dropped():
    seen = SeenFiles(7 * DAY_MS)
    for day in range(30):
        for file in range(10):
            seen.add(day * 100 + file, day * DAY_MS)
        state = seen.snapshot()
    assert state.ignored_before_ms == 22 * DAY_MS
    assert len(seen) < 2 * 8 * 10 + 10
    young = np.array([22 * 100, 29 * 100 + 9], np.uint64)
    assert (seen.lookup(young) >= 0).all()


def test_the_bound_never_goes_back_when_the_age_is_raised():
    seen = SeenFiles(DAY_MS)
    seen.add(1, 10 * DAY_MS)
    wider = SeenFiles(9 * DAY_MS, seen.snapshot())
    wider.add(2, 10 * DAY_MS + 1)
    assert wider.snapshot().ignored_before_ms == 9 * DAY_MS


def test_state_stops_growing_over_a_million_files_in_thirty_days():
    """33,334 files a day with age seven days: what is kept is bounded by twice what is young."""
    seen = SeenFiles(7 * DAY_MS)
    per_batch, batches_a_day = 1667, 20
    sizes, counts = [], []
    number = 0
    for day in range(30):
        for batch in range(batches_a_day):
            now = day * DAY_MS + batch * DAY_MS // batches_a_day
            for hashed in file_hashes(f"/data/file-{number + i}.json" for i in range(per_batch)).tolist():
                seen.add(hashed, now)
            number += per_batch
            state = seen.snapshot()
        sizes.append(sum(len(each) for each in state.segments))
        counts.append(len(state.segments))
    assert number > 1_000_000
    young = 7 * batches_a_day * per_batch
    assert max(sizes) <= 16 * (2 * young + 2 * per_batch * batches_a_day)
    assert max(sizes[20:]) <= max(sizes[:20])
    assert max(counts) <= 20


@pytest.mark.parametrize("text", ["?", "AAAA"])
def test_a_damaged_segment_is_refused(text):
    with pytest.raises(CorruptStateError, match="seen files"):
        SeenFiles(None, SeenFilesState(segments=(text,)))


def test_a_file_dated_after_2106_stays_seen():
    """Its time does not fit into a segment: it must not be purged while it is young enough to be found again."""
    far_ms = 5_000_000_000_000
    seen = SeenFiles(DAY_MS)
    seen.add(7, far_ms)
    for _ in range(3):
        restored = SeenFiles(DAY_MS, seen.snapshot())
        assert restored.lookup(np.array([7], np.uint64))[0] >= 0
        restored.add(8, far_ms + 1)
        seen = restored
