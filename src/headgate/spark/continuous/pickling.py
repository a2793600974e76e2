"""What users define, as pickles and back, in a process where their program runs.

Never: let that show in the program. cloudpickle recognises a class that this process defined or read before, and writes
over it what the pickle has: attributes as they were then, methods with globals of their own.
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
_one_at_a_time = threading.RLock()  # else one thread could get a class that another one has not filled yet


def dumps(value: Any) -> bytes:
    """Return the pickle of a value, with what cannot be imported."""
    return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def loads(data: bytes) -> Any:
    """Return the value: of the classes that this process knows, which stay as they are. Any thread."""
    with _one_at_a_time:
        return _Unpickler(io.BytesIO(data), _KnownClasses().replacement).load()


class _KnownClasses:
    """Skips what a pickle has of classes that this process knows."""

    def __init__(self) -> None:
        self._known: set[type] = set()

    def replacement(self, found: Any) -> Any:
        if any(found is each for each in _CLASS_MAKERS):
            return partial(self._make_class, found)
        return self._fill_class if found is _cloudpickle._class_setstate else found

    def _make_class(self, make: Callable[..., type], *arguments: Any) -> type:
        is_known = arguments[-2] in _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
        made = make(*arguments)
        if is_known:
            self._known.add(made)
        return made

    def _fill_class(self, made: type, state: Any) -> type:
        return made if made in self._known else cast(type, _cloudpickle._class_setstate(made, state))


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
        return _Unpickler(io.BytesIO(data), self._replacement).load()

    def _replacement(self, found: Any) -> Any:
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
    """``replacement`` returns what stands for a function that a pickle calls."""

    def __init__(self, file: io.BytesIO, replacement: Callable[[Any], Any]) -> None:
        super().__init__(file)
        self._replacement = replacement

    def find_class(self, module: str, name: str, /) -> Any:
        return self._replacement(super().find_class(module, name))
