"""The same folder from SQL alone: Spark finds the format automatically.

python examples/flights_sql.py [FOLDER]
"""

import os
import sys

from pyspark.sql import SparkSession

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
folder = sys.argv[1] if len(sys.argv) > 1 else ".cache/flights"
spark = SparkSession.builder.master("local[2]").appName("flights-sql").getOrCreate()

spark.sql(f"""
    CREATE TEMPORARY VIEW flights (carrier string, origin string, dep_delay double, time_hour timestamp)
    USING headgate.files
    OPTIONS (path '{folder}', fileFormat 'csv', header 'true', nullValue 'NA')
""")
spark.sql("""
    SELECT origin, count(*) AS flights, round(avg(dep_delay), 1) AS delay
    FROM flights GROUP BY origin ORDER BY origin
""").show()

spark.stop()
