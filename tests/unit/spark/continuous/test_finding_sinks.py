"""Sinks by name, each imported only when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from headgate.errors import OptionError
from headgate.spark.continuous.sinks import BUILT_IN, make_sink

SCHEMA = pa.schema({"value": pa.string()})
NEEDED = {
    "parquet": {"path": "/x"}, "json": {"path": "/x"}, "csv": {"path": "/x"},
    "kafka": {"kafka.bootstrap.servers": "nobody:1", "topic": "t"},
    "headgate.kafka": {"kafka.bootstrap.servers": "nobody:1", "topic": "t"},
    "headgate.pulsar": {"service.url": "pulsar://nobody:1", "topic": "t"},
}  # fmt: skip


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_sink_can_be_made(name: str) -> None:
    sink = make_sink(name.upper(), NEEDED.get(name, {}), SCHEMA)
    assert sink.name.removeprefix("headgate.") == name.removeprefix("headgate.")


def test_an_unknown_name_lists_those_that_there_are() -> None:
    with pytest.raises(OptionError, match=r"no sink 'parket'.*console, csv.*parquet"):
        make_sink("parket", {}, SCHEMA)


def test_what_is_not_asked_for_is_not_imported() -> None:
    program = (
        "import sys, pyarrow as pa; from headgate.spark.continuous.sinks import make_sink; "
        "make_sink('noop', {}, pa.schema([])); "
        "print([m for m in sys.modules if m.split('.')[0] in ('pyspark', 'confluent_kafka', 'pulsar')"
        " or m.startswith(('headgate.connectors.files', 'headgate.connectors.kafka', 'headgate.connectors.pulsar',"
        " 'headgate.connectors.debug.',"
        " 'headgate.spark.continuous.python_data_source')) and m != 'headgate.connectors.debug.noop'])"
    )
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "[]"
