"""Lets Spark find the format ``headgate.pulsar`` automatically: it looks for top-level modules named ``pyspark_*``."""

from headgate.spark.pulsar_sink import PulsarDataSource


class DefaultSource(PulsarDataSource):
    pass
