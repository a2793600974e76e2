"""Lets Spark find the format ``headgate.kafka`` automatically: it looks for top-level modules named ``pyspark_*``."""

from headgate.spark.kafka_sink import KafkaDataSource


class DefaultSource(KafkaDataSource):
    pass
