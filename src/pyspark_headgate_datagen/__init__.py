"""Lets Spark find the format ``headgate.datagen`` automatically: it looks for top-level modules named ``pyspark_*``."""

from headgate.spark.datasource import HeadgateDataSource


class DefaultSource(HeadgateDataSource):
    format_name = "headgate.datagen"
    source_class = "headgate.connectors.datagen.source:DatagenSource"
