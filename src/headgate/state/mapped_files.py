"""Files of spilled state, mapped into memory, which do not stay there: what was read of them is given back.

Never: copy what is mapped, or give back what has not been written to the file.

The system counts pages of a mapped file as the process's own until it needs them, so that state which was spilled for
want of memory would count all the same once a merge or an upload had read it. Containers are ended by such counts.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from typing import Any

import numpy as np
import pyarrow as pa

RESIDENT_BYTES = 48 << 20
"""So much of all mapped files of a process, its libraries among them, may be in memory before any is given back."""

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
_lock = threading.Lock()
_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()  # guarded by _lock


def mapped_table(path: str) -> Any:
    """Return the table in an Arrow file, whose columns lie in the file."""
    with open(path, "rb") as file:
        made = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    _add(made)
    return pa.ipc.open_file(pa.BufferReader(pa.py_buffer(made))).read_all()


def mapped_array(path: str, kind: Any, mode: Any = "r") -> Any:
    """Return the numbers in a file."""
    array = np.memmap(path, kind, mode)
    _add(array._mmap)  # type: ignore[attr-defined]
    return array


def give_back() -> None:
    """Give back what was read of mapped files, if it is much; it is read again when it is needed. Any thread."""
    with _lock:
        files = list(_mapped)
    if not files or _resident_bytes() <= RESIDENT_BYTES:
        return
    for each in files:
        each.madvise(mmap.MADV_DONTNEED)


def give_back_freed() -> None:
    """Give back memory that was freed and is kept for later, by Arrow and by the C library. Any thread."""
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)


def _add(made: mmap.mmap) -> None:
    with _lock:
        _mapped.add(made)


def _resident_bytes() -> int:
    """Return how much of mapped files is in memory; where the system does not say, more than may be."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[2]) * mmap.PAGESIZE
    except FileNotFoundError:
        return RESIDENT_BYTES + 1
