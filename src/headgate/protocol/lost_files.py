"""Which files of a checkpoint location are gone, as a barrier carries it: a Bloom filter of their paths.

Never: leave out a file that is gone. One that is there may seem to be gone; then it is written once more, under the
same name.

A barrier passes each channel, and thousands of files may be gone: the filter has one size, whatever their number.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

_BITS = 1 << 16


def lost_files(paths: Iterable[str]) -> bytes:
    """Return the filter of these paths; it is empty if there are none.

    Examples
    --------
    >>> lost = lost_files(["shared/window/a"])
    >>> may_be_lost("shared/window/a", lost), may_be_lost("shared/window/b", lost), len(lost)
    (True, False, 8192)
    >>> may_be_lost("shared/window/a", lost_files([]))
    False
    """
    lost = bytearray()
    for path in paths:
        lost = lost or bytearray(_BITS // 8)
        bit = _bit(path)
        lost[bit // 8] |= 1 << bit % 8
    return bytes(lost)


def may_be_lost(path: str, lost: bytes) -> bool:
    """Return whether a filter has this path, or seems to have it."""
    if not lost:
        return False
    bit = _bit(path)
    return bool(lost[bit // 8] >> bit % 8 & 1)


def _bit(path: str) -> int:
    return zlib.crc32(path.encode()) % _BITS
