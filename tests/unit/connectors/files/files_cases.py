"""Small files of every format, for tests that run over all of them."""

import bz2
import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def table(first=0, rows=30):
    return pa.table(
        {"id": list(range(first, first + rows)), "name": [f"n{i}" for i in range(first, first + rows)]}, SCHEMA
    )


def csv_bytes(data, line_end="\n"):
    rows = [f"{row['id']},{row['name']}" for row in data.to_pylist()]
    return (line_end.join(["id,name", *rows]) + line_end).encode()


def json_bytes(data):
    return "".join(json.dumps(row) + "\n" for row in data.to_pylist()).encode()


def parquet_bytes(data, row_group_size=7):
    sink = io.BytesIO()
    pq.write_table(data, sink, row_group_size=row_group_size)
    return sink.getvalue()


def orc_bytes(data):
    sink = io.BytesIO()
    orc.write_table(data, sink)
    return sink.getvalue()


def arrow_bytes(data, batch_rows=7):
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, data.schema) as writer:
        writer.write_table(data, max_chunksize=batch_rows)
    return sink.getvalue()


CASES = {
    # name: (options, file name, content of a table)
    "csv": ({"fileFormat": "csv", "header": "true"}, "a.csv", csv_bytes),
    "csv-crlf": ({"fileFormat": "csv", "header": "true"}, "a.csv", lambda data: csv_bytes(data, "\r\n")),
    "csv-gzip": ({"fileFormat": "csv", "header": "true"}, "a.csv.gz", lambda data: gzip.compress(csv_bytes(data))),
    "csv-multiline": ({"fileFormat": "csv", "header": "true", "multiLine": "true"}, "a.csv", csv_bytes),
    "json": ({"fileFormat": "json"}, "a.json", json_bytes),
    "json-bzip2": ({"fileFormat": "json"}, "a.json.bz2", lambda data: bz2.compress(json_bytes(data))),
    "json-multiline": (
        {"fileFormat": "json", "multiLine": "true"}, "a.json", lambda data: json.dumps(data.to_pylist()).encode(),
    ),
    "parquet": ({"fileFormat": "parquet"}, "a.parquet", parquet_bytes),
    "orc": ({"fileFormat": "orc"}, "a.orc", orc_bytes),
    "arrow": ({"fileFormat": "arrow"}, "a.arrow", arrow_bytes),
}  # fmt: skip


def write(folder, case, files=3, rows=30):
    """Write some files; return the options that read them and the rows in them."""
    options, name, content = CASES[case]
    folder.mkdir(parents=True, exist_ok=True)
    expected = []
    for number in range(files):
        data = table(number * 1000, rows)
        (folder / f"{number}-{name}").write_bytes(content(data))
        expected += data.to_pylist()
    return {**options, "path": str(folder)}, expected
