"""Copies of what users define: those of a slot in the driver's process are its own, as in a process of its own.

Never: let what becomes of a copy show in the user's program.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, cast

from pyspark import cloudpickle
from pyspark.core import broadcast
from pyspark.core.broadcast import Broadcast

_cloudpickle: Any = cloudpickle.cloudpickle
_CLASS_MAKERS = (_cloudpickle._make_skeleton_class, _cloudpickle._make_skeleton_enum)
"""What cloudpickle makes a class with that cannot be imported; the last two arguments are its id, and nothing."""


class Copies:
    """Reads pickles as another process would: classes that cannot be imported are its own.

    What is pickled of them is known to the program by the same id.

    Parameters
    ----------
    broadcasts
        The broadcast variables that functions may use: these are the driver's.
    """

    def __init__(self, broadcasts: Collection[Broadcast[Any]] = ()) -> None:
        self._broadcasts = {cast(Any, each)._jbroadcast.id(): each for each in broadcasts}
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._classes: dict[str, type] = {}

    def loads(self, data: bytes) -> Any:
        """Return the value. Any thread."""
        return _Unpickler(io.BytesIO(data), self).load()

    def replacement(self, found: Any) -> Any:
        """Return what stands for a function that a pickle calls."""
        if any(found is each for each in _CLASS_MAKERS):
            return partial(self._make_class, found)
        return self._broadcast if found is broadcast._from_id else found

    def _broadcast(self, number: int) -> Broadcast[Any]:
        known = self._broadcasts.get(number)
        return broadcast._from_id(number) if known is None else known

    def _make_class(self, make: Callable[..., type], *arguments: Any) -> type:
        *what, identity, extra = arguments
        with self._lock:
            if identity not in self._classes:
                made = make(*what, None, extra)
                with _cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK:
                    _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS[made] = identity
                self._classes[identity] = made
            return self._classes[identity]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, copies: Copies) -> None:
        super().__init__(file)
        self._copies = copies

    def find_class(self, module: str, name: str, /) -> Any:
        return self._copies.replacement(super().find_class(module, name))
