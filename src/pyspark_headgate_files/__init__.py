"""Lets Spark find the format ``headgate.files`` automatically: it looks for top-level modules named ``pyspark_*``."""

from headgate.spark.datasource import HeadgateDataSource


class DefaultSource(HeadgateDataSource):
    format_name = "headgate.files"
    source_class = "headgate.connectors.files.source:FilesSource"
