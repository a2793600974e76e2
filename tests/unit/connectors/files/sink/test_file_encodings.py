"""Several staged files put into one: their rows, in order, as if they had been written to one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
import pytest

from headgate.connectors.files.sink.csv_lines import CsvDialect
from headgate.connectors.files.sink.encodings import CsvEncoding, FileEncoding, JsonEncoding, ParquetEncoding

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())])
FILES = pa_fs.LocalFileSystem()


def written(folder: Path, encoding: FileEncoding, *contents: list[str | None]) -> list[str]:
    """Write files with these texts, a row group per text, and return their paths."""
    paths = []
    for number, texts in enumerate(contents):
        paths.append(str(folder / f"{number}.{encoding.extension}"))
        file = encoding.create(FILES, paths[-1], SCHEMA)
        for row, text in enumerate(texts):
            file.write(pa.Table.from_pylist([{"id": 10 * number + row, "s": text}], SCHEMA))
        file.close()
    return paths


def merged(folder: Path, encoding: FileEncoding, *contents: list[str | None]) -> str:
    target = str(folder / "merged")
    encoding.merge(FILES, written(folder, encoding, *contents), target)
    return target


@pytest.mark.parametrize("group_bytes", [1, 1 << 20], ids=["many row groups", "one row group"])
def test_parquet(tmp_path: Path, group_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.connectors.files.sink.encodings._GROUP_BYTES", group_bytes)
    target = merged(tmp_path, ParquetEncoding("zstd"), ["a", None], ["b"], ["c"])
    with pq.ParquetFile(target) as file:
        assert file.schema_arrow.equals(SCHEMA)
        assert file.read().to_pydict() == {"id": [0, 1, 10, 20], "s": ["a", None, "b", "c"]}
        assert file.num_row_groups == (4 if group_bytes == 1 else 1)
        assert file.metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_json(tmp_path: Path, compression: str) -> None:
    encoding = JsonEncoding(compression)
    target = merged(tmp_path, encoding, ["a", None], ["b"])
    with FILES.open_input_stream(target, compression=None if compression == "none" else "gzip") as stream:
        assert stream.read() == b'{"id":0,"s":"a"}\n{"id":1}\n{"id":10,"s":"b"}\n'


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_csv_with_one_header(
    tmp_path: Path, compression: str, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.connectors.files.sink.encodings._CHUNK_BYTES", chunk_bytes)
    encoding = CsvEncoding(compression, CsvDialect(header=True))
    target = merged(tmp_path, encoding, ["a", None], ["b\nc"], ["d"])
    with FILES.open_input_stream(target, compression=None if compression == "none" else "gzip") as stream:
        assert stream.read() == b'id,s\n0,a\n1,\n10,"b\nc"\n20,d\n'


def test_csv_without_header(tmp_path: Path) -> None:
    target = merged(tmp_path, CsvEncoding("none", CsvDialect()), ["a"], ["b"])
    assert Path(target).read_bytes() == b"0,a\n10,b\n"


def test_a_large_batch_is_written_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.connectors.files.sink.encodings._SLICE_BYTES", 8)
    encoding = JsonEncoding("none")
    file = encoding.create(FILES, str(tmp_path / "x"), pa.schema({"id": pa.int64()}))
    file.write(pa.table({"id": range(100)}))
    file.close()
    assert (tmp_path / "x").read_text() == "".join(f'{{"id":{number}}}\n' for number in range(100))
