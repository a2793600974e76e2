"""Finds the source for the name that a user gave to ``format``: one of ours, or one that was registered with Spark.

Never: keep a registry: Spark has one, and a class that is defined in a notebook travels with the query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from headgate.connectors.simple.source import SIMPLE_OPTIONS
from headgate.errors import OptionError
from headgate.source import OptionSpec, Source
from headgate.source.options import COMMON_OPTIONS
from headgate.source.simple import SimpleSource
from headgate.spark.continuous.python_data_source import registered_class
from headgate.spark.datasource import HeadgateDataSource, import_source, resolve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BUILT_IN = ("datagen", "files", "kafka", "kinesis", "pulsar")


class SourceFormat(msgspec.Struct, frozen=True):
    """A source that options can be given to.

    Parameters
    ----------
    make
        Makes a source of its options; raises `OptionError`.
    specs
        The options it says it has.
    """

    make: Callable[[Mapping[str, str]], Source[Any, Any]]
    specs: Sequence[OptionSpec]

    def with_defaults(self, given: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
        """Return the options that were given, and of the session's defaults those that the source has."""
        lower = {name.lower() for name in given}
        return {name: value for name, value in defaults.items() if name.lower() not in lower and self.has(name)} | dict(
            given
        )

    def has(self, name: str) -> bool:
        """Return whether the source has an option."""
        lower = name.lower()
        for spec in (*self.specs, *COMMON_OPTIONS):
            before, star, after = spec.name.lower().partition("*")
            matches = lower.startswith(before) and lower.endswith(after) if star else lower == before
            # A source that takes anything does not mean the session's settings by that.
            if matches and spec.status == "supported" and spec.name != "*":
                return True
        return False


def find_format(spark: SparkSession, name: str) -> SourceFormat:
    """Return the source of a format.

    Raises
    ------
    OptionError
        There is none of this name, or it is one that only Spark can read.
    """
    lower = name.lower()
    where: Any = None
    if lower.removeprefix("headgate.") in _BUILT_IN and lower.startswith("headgate."):
        where = import_module(f"pyspark_{lower.replace('.', '_')}").DefaultSource.source_class
    else:
        if not spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists(name):
            raise OptionError(
                f"There is no source {name!r}. Built in are headgate.{', headgate.'.join(_BUILT_IN)}; make one of your "
                "own known with headgate.register(spark, YourSource).",
                option="format", value=name,
            )  # fmt: skip
        registered = registered_class(name, spark)
        if not issubclass(registered, HeadgateDataSource):
            raise OptionError(
                f"The source {name!r} is a Python data source of Spark's, which a continuous query cannot read. Write "
                "it as a headgate.SimpleSource, or use spark.readStream.",
                option="format", value=name,
            )  # fmt: skip
        where = registered.source_class
    source_class = import_source(where)
    specs = tuple(getattr(source_class, "option_specs", None) or ())
    return SourceFormat(resolve(where), (*SIMPLE_OPTIONS, *specs) if issubclass(source_class, SimpleSource) else specs)
