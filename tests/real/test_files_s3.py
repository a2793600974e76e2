"""Files on S3: batch, stream and restart over moto's server, by the address that docs/files.md documents."""

from __future__ import annotations

import io
import json
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from headgate.connectors.files.source import FilesSource
from headgate.errors import OptionError, SourceUnavailableError
from headgate.testing import SourceHarness
from headgate.testing.conformance import conformance_test
from local.kinesis import ACCESS_KEY, REGION, SECRET_KEY, MotoServer, running_moto

ARROW_SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})
SCHEMA = "id bigint, name string"


class Bucket:
    """A bucket of a test's own."""

    def __init__(self, server: MotoServer) -> None:
        self.name = f"rides-{uuid.uuid4().hex[:8]}"
        self.server = server
        self.endpoint = server.url
        self.s3 = server.client("s3")
        self.s3.create_bucket(Bucket=self.name)

    def put(self, key: str, body: bytes) -> None:
        self.s3.put_object(Bucket=self.name, Key=key, Body=body)

    def put_csv(self, key: str, ids: range) -> None:
        self.put(key, "".join(f"{n},name-{n}\n" for n in ids).encode())

    def path(self, path: str, credentials: str = f"{ACCESS_KEY}:{SECRET_KEY}@", scheme: str = "s3") -> str:
        return f"{scheme}://{credentials}{self.name}/{path}?region={REGION}&endpoint_override={self.endpoint}"


@pytest.fixture
def bucket(aws: MotoServer) -> Bucket:
    return Bucket(aws)


def read(path: str, **options: str) -> list[dict[str, Any]]:
    with SourceHarness(
        FilesSource({"fileFormat": "csv", **({"path": path} if path else {}), **options}), schema=ARROW_SCHEMA
    ) as harness:
        harness.run_to_end()
        return harness.rows()


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["id"] for row in rows)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, bucket: Bucket) -> Iterator[None]:
    for name, value in {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": bucket.endpoint,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    yield


@pytest.mark.usefixtures("environment")
def test_an_address_without_parameters_takes_everything_from_the_environment(bucket: Bucket) -> None:
    bucket.put_csv("in/a.csv", range(10))
    bucket.put_csv("in/b.csv", range(10, 20))
    bucket.put_csv("other/c.csv", range(20, 30))
    assert ids(read(f"s3://{bucket.name}/in")) == list(range(20))
    assert ids(read(f"s3a://{bucket.name}/*/[bc].csv", splitSize="30")) == list(range(10, 30))
    with pytest.raises(OptionError, match="does not exist"):
        read(f"s3://{bucket.name}/none")


def test_partition_folders_and_parquet(bucket: Bucket) -> None:
    for day, numbers in {"2026-01-01": range(100), "2026-01-02": range(100, 300)}.items():
        table = pa.table({"id": list(numbers), "name": [str(n) for n in numbers]})
        target = io.BytesIO()
        pq.write_table(table, target, row_group_size=50)
        bucket.put(f"table/day={day}/part.parquet", target.getvalue())
    path = bucket.path("table", scheme="s3n")
    assert ids(read(path, fileFormat="parquet", splitSize="1000")) == list(range(300))
    assert ids(read(path, fileFormat="parquet", rowFilter="id >= 250")) == list(range(250, 300))
    assert FilesSource({"fileFormat": "parquet", "path": path}).schema().names == ["id", "name", "day"]


def test_a_refusal_is_no_damaged_file(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    bucket.put_csv("in/a.csv", range(10))
    with pytest.raises(SourceUnavailableError, match=r"ACCESS_DENIED.*s3://KEY:SECRET@bucket"):
        read(bucket.path("in", credentials=""), ignoreCorruptFiles="true")


def test_a_key_is_in_no_error(bucket: Bucket, aws: MotoServer) -> None:
    with pytest.raises(OptionError, match="different file systems") as raised:
        read("", paths=json.dumps([bucket.path("in"), bucket.path("in", credentials="OTHER:SEC%2FRET@")]))
    shown = f"{raised.value} {raised.value.facts}"
    assert f"s3://{bucket.name}/in" in shown
    assert not any(secret in shown for secret in (ACCESS_KEY, SECRET_KEY, "OTHER", "SEC%2FRET"))


@pytest.mark.spark_since("read-limits")
def test_spark_reads_a_batch_and_a_stream_that_goes_on(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    bucket.put_csv("in/a.csv", range(100))
    bucket.put_csv("in/b.csv", range(100, 200))
    reader = spark.read.format("headgate.files").option("fileFormat", "csv").schema(SCHEMA)
    assert [row.id for row in reader.load(bucket.path("in")).orderBy("id").collect()] == list(range(200))

    def run() -> None:
        frame = (
            spark.readStream.format("headgate.files").option("fileFormat", "csv").option("maxFilesPerTrigger", 1)
            .schema(SCHEMA).load(bucket.path("in"))
        )  # fmt: skip
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start(
        ).awaitTermination()  # fmt: skip

    run()
    bucket.put_csv("in/c.csv", range(200, 300))
    run()
    table = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(row.id for row in table.collect()) == list(range(300))
    files = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file() and path.suffix != ".crc"]
    text = "".join(path.read_text() for path in files)
    assert "in/c.csv" in text and SECRET_KEY not in text and ACCESS_KEY not in text


class SmallBlocks(FilesSource):
    """Makes many batches of small files."""

    block_bytes = 64


@contextmanager
def frozen(server: MotoServer) -> Iterator[None]:
    """Let a server stand still."""
    server.send(signal.SIGSTOP)
    try:
        yield
    finally:
        server.send(signal.SIGCONT)


@pytest.fixture(scope="module")
def freezable() -> Iterator[Bucket]:
    """Return a bucket of a server that only these tests stop."""
    with running_moto() as server:
        bucket = Bucket(server)
        for number in range(4):
            bucket.put_csv(f"rides/{number}.csv", range(number * 100, number * 100 + 60))
        yield bucket


test_s3_keeps = conformance_test(
    lambda freezable: SmallBlocks({"fileFormat": "csv", "path": freezable.path("rides"), "splitSize": "300"}),
    schema=ARROW_SCHEMA,
    unavailable=lambda freezable: frozen(freezable.server),
    only=[
        "making-it-does-nothing",
        "enumerator-does-not-block",
        "reader-does-not-block",
        "unavailability-loses-nothing",
    ],
)
