"""Headgate: write a source once, read it from Spark as a batch, a stream or a continuous pipeline.

The public names, nothing else. They are imported when first used: Spark imports every ``pyspark_*`` module to find
formats, and one that fails to import hides them all.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.source.simple import SimpleSource
    from headgate.spark.continuous.data_frame import ContinuousDataFrame, continuous
    from headgate.spark.continuous.manager import streams
    from headgate.spark.continuous.query import ContinuousQuery
    from headgate.spark.registration import register
    from headgate.versions import __version__

_HOMES = {
    "ContinuousQuery": "headgate.spark.continuous.query",
    "ContinuousDataFrame": "headgate.spark.continuous.data_frame",
    "continuous": "headgate.spark.continuous.data_frame",
    "SimpleSource": "headgate.source.simple",
    "register": "headgate.spark.registration",
    "streams": "headgate.spark.continuous.manager",
    "__version__": "headgate.versions",
}

__all__ = [
    "ContinuousDataFrame", "ContinuousQuery", "SimpleSource", "__version__", "continuous", "register", "streams",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'headgate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
