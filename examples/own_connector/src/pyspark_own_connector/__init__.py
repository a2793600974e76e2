"""Lets Spark find the format own_connector automatically: it looks for top-level modules named ``pyspark_*``.

Spark imports all of them to find a format, and one that fails to import hides the others. So this one imports nothing
but Headgate; the source itself is imported when it is used.
"""

from headgate.spark.datasource import HeadgateDataSource


class DefaultSource(HeadgateDataSource):
    format_name = "own_connector"
    source_class = "own_connector:OwnConnector"
