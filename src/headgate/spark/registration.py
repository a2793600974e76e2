"""Makes a source of one's own known to Spark under its name.

Never: keep a registry. The class travels with the query, so one defined in a notebook works too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.errors import ConnectorContractError
from headgate.source import Source
from headgate.source.simple import SimpleSource
from headgate.spark.datasource import HeadgateDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession, source: type[Source[Any, Any]] | type[SimpleSource]) -> None:
    """Make ``spark.read.format(source.name)`` and ``spark.readStream.format(source.name)`` work.

    Parameters
    ----------
    spark
        The session; with Spark Connect too.
    source
        A subclass of `SimpleSource` or of `headgate.source.Source`. Registering another class under the same name
        replaces the first.

    Raises
    ------
    ConnectorContractError
        The class is neither, or has no ``name``.
    """
    spark.dataSource.register(data_source_for(source))


def data_source_for(source: Any) -> type[HeadgateDataSource]:
    """Return Spark's view of a source class."""
    if not (isinstance(source, type) and issubclass(source, (Source, SimpleSource))):
        raise ConnectorContractError(
            f"headgate.register takes a subclass of headgate.SimpleSource or headgate.source.Source, not {source!r}.",
            method="register",
        )
    name = getattr(source, "name", None)
    if not isinstance(name, str) or not name:
        raise ConnectorContractError(
            f"{source.__name__} has no name: set the class attribute 'name' to what users give to format().",
            connector=source.__name__,
            method="name",
        )
    return type(f"{source.__name__}DataSource", (HeadgateDataSource,), {"format_name": name, "source_class": source})
