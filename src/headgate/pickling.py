"""What users define, as pickles and back, in a process where their program runs.

Never: let that show in the program. cloudpickle recognises a class that this process defined or read before, and writes
over it what the pickle has: attributes as they were then, methods with globals of their own. Import PySpark: where it
is there, its copy of cloudpickle is used, which alone recognises the classes that Spark sent.
"""

from __future__ import annotations

import io
import pickle
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle

_one_at_a_time = threading.RLock()  # else one thread could get a class that another one has not filled yet


def dumps(value: Any) -> bytes:
    """Return the pickle of a value, with what cannot be imported."""
    return bytes(sys.modules.get("pyspark.cloudpickle", cloudpickle).dumps(value))


def loads(data: bytes) -> Any:
    """Return the value: of the classes that this process knows, which stay as they are. Any thread."""
    with _one_at_a_time:
        return _Unpickler(io.BytesIO(data)).load()


class _Unpickler(pickle.Unpickler):
    """Skips what a pickle has of classes that this process knows."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._known: set[type] = set()

    def find_class(self, module: str, name: str, /) -> Any:
        found = super().find_class(module, name)
        if module in ("cloudpickle.cloudpickle", "pyspark.cloudpickle.cloudpickle"):
            match name:
                case "_make_skeleton_class" | "_make_skeleton_enum":
                    return partial(self._make_class, found, sys.modules[module]._DYNAMIC_CLASS_TRACKER_BY_ID)
                case "_class_setstate":
                    return partial(self._fill_class, found)
        return found

    def _make_class(self, make: Callable[..., type], by_id: Any, *arguments: Any) -> type:
        """Return a class; the last two arguments are its id, and nothing."""
        known = by_id.get(arguments[-2])  # held, or the class could be collected before it is asked for again
        made = make(*arguments)
        if made is known:
            self._known.add(made)
        return made

    def _fill_class(self, fill: Callable[[type, Any], type], made: type, state: Any) -> type:
        return made if made in self._known else fill(made, state)
