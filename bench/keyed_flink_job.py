"""Flink's side of ``./run bench keyed --peer flink``: run by the Python that has PyFlink, a job for each line it reads.

Never: import anything of Headgate or of its environment. One process runs all jobs, so that Java is warm.

A line is a JSON object: ``rows``, ``folder`` (for checkpoints), ``csv`` (where the windows are written to; null:
nowhere), ``servers`` and ``topic`` (null: generated rows), ``jars``, and the figures of the rows. The answer is a line
that begins with RESULT, with the job's seconds by Flink's own count.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.table import Schema, StreamTableEnvironment

WINDOWS = """
INSERT INTO windows SELECT window_start, window_end, key, SUM(v), COUNT(*)
FROM TABLE(TUMBLE(TABLE input, DESCRIPTOR(`at`), INTERVAL '10' SECOND)) GROUP BY window_start, window_end, key
"""
WATERMARK = "`at` - INTERVAL '0.001' SECOND"
"""Rows come in order, and in Flink's milliseconds several have the same time."""
COLUMNS = "window_start TIMESTAMP(3), window_end TIMESTAMP(3), key BIGINT, total BIGINT, n BIGINT"


def run(job: dict[str, Any]) -> float:
    """Run one job and return its seconds."""
    settings = {
        "parallelism.default": "2",
        "taskmanager.numberOfTaskSlots": "2",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": f"file://{job['folder']}",
        "state.backend.type": "hashmap",
        "pipeline.object-reuse": "true",
        "table.local-time-zone": "UTC",
    }
    if job["jars"]:
        settings["pipeline.jars"] = ";".join(f"file://{each}" for each in job["jars"])
    configuration = Configuration()
    for name, value in settings.items():
        configuration.set_string(name, value)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    table = StreamTableEnvironment.create(environment)
    if job["topic"] is None:
        _generated(environment, table, job)
    else:
        table.execute_sql(
            f"CREATE TABLE input (key BIGINT, v BIGINT, `at` TIMESTAMP_LTZ(3), WATERMARK FOR `at` AS {WATERMARK}) "
            f"WITH ('connector' = 'kafka', 'properties.bootstrap.servers' = '{job['servers']}', "
            f"'topic' = '{job['topic']}', 'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = "
            "'latest-offset', 'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601')"
        )
    sink = "'connector' = 'blackhole'"
    if job["csv"] is not None:
        sink = f"'connector' = 'filesystem', 'path' = '{job['csv']}', 'format' = 'csv'"
    table.execute_sql(f"CREATE TABLE windows ({COLUMNS}) WITH ({sink})")
    result = table.execute_sql(WINDOWS)
    result.wait()
    return result.get_job_client().get_job_execution_result().result().get_net_runtime() / 1000


def _generated(environment: Any, table: Any, job: dict[str, Any]) -> None:
    """Register the generated rows.

    Not with the connector ``datagen``, which keeps every number that is still to come in its state. The source here
    gives each of two subtasks half of the numbers, so they are dealt out again: both go through all of event time.
    """
    rows, half = job["rows"], job["rows"] // 2
    assert rows % 2 == 0
    numbers = environment.from_source(
        NumberSequenceSource(0, rows - 1), WatermarkStrategy.no_watermarks(), "rows", Types.LONG()
    )
    row = f"(CASE WHEN f0 < {half} THEN f0 * 2 ELSE (f0 - {half}) * 2 + 1 END)"
    columns = (
        Schema.new_builder().column("f0", "BIGINT").column_by_expression("v", row)
        .column_by_expression("key", f"MOD(MOD({row} * {job['multiplier']}, {job['prime']}), {job['keys']})")
        .column_by_expression("at", f"TO_TIMESTAMP_LTZ({row} * {job['row_us']} / 1000, 3)")
        .watermark("at", WATERMARK).build()
    )  # fmt: skip
    table.create_temporary_view("input", table.from_data_stream(numbers, columns))


for line in sys.stdin:
    print("RESULT", json.dumps({"seconds": run(json.loads(line))}), flush=True)
