"""What Spark's own readers make of the cases of the table: ``python tests/real/spark_answers.py`` writes it down.

So files are compared with Spark's answers where there is no query of Spark's, in a tenth of the time.
"""

import importlib
import json
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from spark_table import Case, read, table_time_zone

HERE = Path(__file__).parent
ANSWERS = HERE / "files_by_spark.json"
CASES: list[Case] = [
    case
    for table in ("spark_table_csv", "spark_table_json", "spark_table_bulk")
    for case in importlib.import_module(table).CASES
]


def main() -> None:
    """Read all cases with Spark, and write down what that made of them."""
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    answers = {}
    with table_time_zone(spark), tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(CASES):
            case.write(Path(folder) / str(number))
            answers[case.called] = read(spark.read.format(case.format), case, Path(folder) / str(number)).written_down()
    ANSWERS.write_text(json.dumps(answers, indent=0, ensure_ascii=True) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
