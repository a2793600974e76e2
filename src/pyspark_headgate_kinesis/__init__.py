"""Lets Spark find the format ``headgate.kinesis`` automatically: it looks for top-level modules named ``pyspark_*``."""

from headgate.spark.datasource import HeadgateDataSource


class DefaultSource(HeadgateDataSource):
    format_name = "headgate.kinesis"
    source_class = "headgate.connectors.kinesis.source:KinesisSource"
