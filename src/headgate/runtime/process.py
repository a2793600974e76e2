"""The process that a slot runs in: its own, which ends when the slot is stuck, or one that others run in as well.

Never (a shared process): end it, or change anything of it: signal handlers, `faulthandler`, the environment, modules.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import os
import pickle
import resource
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

_log = logging.getLogger(__name__)

STUCK_STATUS = 87
"""With which a process ends that is stuck."""
_KEPT_BYTES = 32 << 20
_KEPT_BLOCK_BYTES = 2 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_STDERR = 2
"""By its number: what ``sys`` has may be replaced, or be nothing."""


class SlotProcess(Protocol):
    """What a slot knows of its process, and may do to it.

    Parameters
    ----------
    executor
        Names what the process belongs to, for the status of the query.
    local_folders
        Where the slot may put what it spills; empty: where the machine has its temporary files.
    when_stuck
        What happens to a slot that is stuck, for messages.
    load
        Reads a pickled object of the user's. Any thread.
    """

    executor: str
    local_folders: tuple[str, ...]
    when_stuck: str
    load: Callable[[bytes], Any]

    def beat(self, timeout_s: float) -> None:
        """Note that the process is alive; the next beat follows within the time-out, in seconds."""

    def rest(self) -> None:
        """Note that no beat follows."""

    def end(self, status: int) -> None:
        """End the process at once, if it is the slot's own; else return, and the slot has to end alone."""


class OwnProcess:
    """A Python worker of Spark's, which is this slot and nothing else. Made on the slot's own thread."""

    when_stuck = "the process ends"

    def __init__(self) -> None:
        _keep_freed_memory()
        _allow_open_files()
        self.executor = os.environ.get("SPARK_EXECUTOR_DIRS", "")
        folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")  # that Spark gives its tasks for what they spill
        self.local_folders = tuple(filter(None, folders))
        self.load: Callable[[bytes], Any] = pickle.loads
        self._parent = os.getppid()

    def beat(self, timeout_s: float) -> None:
        """As in `SlotProcess`. If no other follows, a thread of C's, which needs no GIL, ends the process."""
        faulthandler.dump_traceback_later(timeout_s, exit=True, file=_STDERR)
        if os.getppid() != self._parent:
            _log.error("Spark's daemon is gone, and the executor with it: this slot's process ends")
            os._exit(1)

    def rest(self) -> None:
        """As in `SlotProcess`."""
        faulthandler.cancel_dump_traceback_later()

    def end(self, status: int) -> None:
        """As in `SlotProcess`."""
        os._exit(status)


class SharedProcess:
    """The driver's process, in which several slots run beside the user's program.

    Parameters
    ----------
    local_folders, load
        As in `SlotProcess`.
    """

    executor = "driver"
    when_stuck = "its thread cannot be ended and is abandoned, and another slot takes its place"

    def __init__(self, local_folders: tuple[str, ...], load: Callable[[bytes], Any]) -> None:
        self.local_folders = local_folders
        self.load = load

    def beat(self, timeout_s: float) -> None:
        """As in `SlotProcess`: nothing. Code that holds the GIL holds up the whole program."""

    def rest(self) -> None:
        """As in `SlotProcess`."""

    def end(self, status: int) -> None:
        """As in `SlotProcess`: it returns."""


def _keep_freed_memory() -> None:
    """Have glibc keep what is freed, up to a limit.

    What each batch needs for its own time, numpy's arrays above all, would else be given back to the kernel and asked
    for again with the next one: a page costs more to get than to fill. Larger blocks, as of a chunk that is uploaded,
    are given back at once: what lies between them could not be used for the next ones, in any of the threads.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        pa.set_memory_pool(pa.system_memory_pool())  # Arrow's, too: its own allocator gives back soon


def _allow_open_files() -> None:
    """Allow as many open files as the system lets the process have: each part of spilled state is one, or two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # where all that may be is more than there can be
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
