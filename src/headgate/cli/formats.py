"""Finds the source class of a format's name, or of ``module:Class``.

Never: import a connector that is not asked for, or Spark.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from headgate.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headgate.source import Source

BUILT_IN = {
    "headgate.datagen": "headgate.connectors.datagen.source:DatagenSource",
    "headgate.files": "headgate.connectors.files.source:FilesSource",
    "headgate.kafka": "headgate.connectors.kafka.source:KafkaSource",
    "headgate.kinesis": "headgate.connectors.kinesis.source:KinesisSource",
    "headgate.pulsar": "headgate.connectors.pulsar.source:PulsarSource",
}


def built_in(name: str) -> type[Source[Any, Any]] | None:
    """Return the source of a format of Headgate's; None: it has none of that name."""
    if name not in BUILT_IN:
        return None
    module, _, attribute = BUILT_IN[name].partition(":")
    found: type[Source[Any, Any]] = getattr(importlib.import_module(module), attribute)
    return found


def source_maker(format_name: str) -> Callable[[Mapping[str, str]], Source[Any, Any]]:
    """Return what makes a source of options, by the name of a format or as ``module:Class``.

    Raises
    ------
    OptionError
        There is no such format, module or class, or it is not a source.
    """
    found = built_in(format_name)
    if found is not None:
        return found
    module_name, colon, attribute = format_name.partition(":")
    if not colon:
        raise OptionError(
            f"There is no format {format_name!r}: Headgate has {', '.join(BUILT_IN)}. For a source of your own give "
            "module:Class, like my_source:MySource.",
            option="FORMAT", value=format_name,
        )  # fmt: skip
    if os.getcwd() not in sys.path:  # as `python -m` does
        sys.path.insert(0, os.getcwd())
    try:
        found_class = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"{format_name} cannot be imported: {error}. Run headgate in the folder of the module, or set PYTHONPATH.",
            option="FORMAT", value=format_name,
        ) from error  # fmt: skip
    from headgate.connectors.simple.source import adapt
    from headgate.source import Source
    from headgate.source.simple import SimpleSource

    if isinstance(found_class, type) and issubclass(found_class, SimpleSource):
        return adapt(found_class)
    if isinstance(found_class, type) and issubclass(found_class, Source):
        return found_class
    raise OptionError(
        f"{format_name} is not a source: it must be a subclass of headgate.SimpleSource or of headgate.source.Source.",
        option="FORMAT", value=format_name,
    )  # fmt: skip
