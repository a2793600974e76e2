"""A continuous query whose rows Spark's JDBC writer stores, each once: a transaction adds a batch and notes its number.

The database is Derby, which Spark brings along; another one needs its driver (spark.jars) and its URL.

python examples/continuous_jdbc.py [FOLDER] [RIDES]
"""

import contextlib
import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate


@contextlib.contextmanager
def transaction():
    """Give statements that are carried out all together or not at all."""
    connection = spark._jvm.java.sql.DriverManager.getConnection(url)
    try:
        connection.setAutoCommit(False)
        yield connection.createStatement()
        connection.commit()
    finally:
        connection.rollback()
        connection.close()


def create_tables() -> None:
    """Make the tables, unless they are there."""
    with transaction() as sql:
        if not sql.getConnection().getMetaData().getTables(None, None, "RIDES", None).next():
            sql.execute("CREATE TABLE rides (ride BIGINT, city BIGINT, batch BIGINT)")
            sql.execute("CREATE TABLE batches (last_one BIGINT)")
            sql.execute("INSERT INTO batches VALUES (-1)")


def store(batch: DataFrame, number: int) -> None:
    """Store a batch. After a crash the last one may come again, as it was; its number says whether it is there."""
    batch.write.jdbc(url, "staged", mode="overwrite")
    with transaction() as sql:
        if sql.executeUpdate(f"UPDATE batches SET last_one = {number} WHERE last_one < {number}"):
            sql.execute(f'INSERT INTO rides SELECT "ride", "city", {number} FROM staged')


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
    folder = sys.argv[1] if len(sys.argv) > 1 else ".cache/jdbc-rides"
    url = f"jdbc:derby:{os.path.abspath(folder)}/database;create=true"
    spark = SparkSession.builder.master("local[3]").appName("continuous-jdbc").getOrCreate()
    rides = (
        spark.readStream.format("headgate.datagen")
        .options(numRows=sys.argv[2] if len(sys.argv) > 2 else 5000, rowsPerSecond=2000, numPartitions=2)
        .option("fields.ride.kind", "sequence")
        .schema("ride long, city long")
        .load()
    )
    create_tables()
    query = (
        headgate.continuous(rides, parallelism=2)  # a core is left for `store`
        .writeStream.queryName("jdbc-rides")
        .foreachBatch(store)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(continuous="500 milliseconds")
        .start()
    )
    query.awaitTermination()  # the generator ends; what comes from Kafka does not

    found = spark.read.jdbc(url, "rides").agg(F.count("ride"), F.countDistinct("ride"), F.countDistinct("batch")).head()
    print("{} rides, {} of them different, in {} batches".format(*found))
