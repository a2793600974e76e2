"""Lets Spark find the format ``headgate.pulsar`` automatically: it looks for top-level modules named ``pyspark_*``."""

from headgate.spark.datasource import HeadgateDataSource


class DefaultSource(HeadgateDataSource):
    format_name = "headgate.pulsar"
    source_class = "headgate.connectors.pulsar.source:PulsarSource"
