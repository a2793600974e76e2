"""``headgate sources check``: what a source has to read, or what is wrong with it. A broker's part: tests/real."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headgate.errors import OptionError
from headgate.formats.ddl import parsed_schema
from tests.unit.cli.stored_query import run, run_json

OWN = """
import pyarrow as pa
import headgate

class Alphabet(headgate.SimpleSource):
    name = "alphabet"
    schema = "sign string"

    def splits(self):
        if self.options.get("fail"):
            raise ConnectionError("nobody is there")
        return ["a", "b"]

    def read(self, split_id, position):
        if position is None:
            yield pa.record_batch({"sign": [split_id]}), 1

class NotASource:
    pass
"""


def test_generated_rows(tmp_path: Path) -> None:
    found = run_json("sources", "check", "headgate.datagen", "-o", "numRows=10", "-o", "numPartitions=3")
    assert found["numSplits"] == 3 and found["row"]["value"] == 0
    assert [each["state"] for each in found["steps"]] == ["ok"] * 4
    endless = run_json("sources", "check", "headgate.datagen", "-o", "rowsPerSecond=1000000", "--schema", "value long")
    assert endless["numSplits"] == 1 and "as a stream" in endless["steps"][2]["text"]


def test_files_with_their_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ann,3\nbob,4\n")
    options = ("-o", f"path={tmp_path}", "-o", "fileFormat=csv")
    found = run_json("sources", "check", "headgate.files", *options, "--schema", "name string, n int")
    assert found["row"] == {"name": "ann", "n": 3} and found["columns"] == {"name": "string", "n": "int32"}
    text = run("sources", "check", "headgate.files", *options, "--schema", "name string, n int").output
    assert "ok       a row" in text and "ann" in text


def test_nothing_to_read_is_a_warning(tmp_path: Path) -> None:
    found = run_json(
        "sources", "check", "headgate.files", "-o", f"path={tmp_path}", "-o", "fileFormat=csv", "--schema", "a int"
    )
    assert found["steps"][-1]["state"] == "warning" and found["numSplits"] == 0


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "alphabet_for_checks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_source_of_ones_own(user_module: Path) -> None:
    found = run_json("sources", "check", "alphabet_for_checks:Alphabet")
    assert found["format"] == "alphabet" and found["numSplits"] == 2
    assert found["row"] in ({"sign": "a"}, {"sign": "b"})


def test_an_error_of_ones_own_source_is_a_step(user_module: Path) -> None:
    found = run_json("sources", "check", "alphabet_for_checks:Alphabet", "-o", "fail=yes", exit_code=1)
    assert found["steps"][-1]["step"] == "splits" and found["steps"][-1]["state"] == "problem"
    assert "nobody is there" in found["steps"][-1]["text"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("headgate.what",), "There is no format 'headgate.what'"),
        (("alphabet_for_checks:What",), "cannot be imported"),
        (("alphabet_for_checks:NotASource",), "is not a source"),
        (("headgate.datagen", "-o", "numRow=1"), "Did you mean 'numRows'"),
        (("headgate.datagen", "-o", "numRows"), "write it as NAME=VALUE"),
    ],
)
def test_what_is_wrong_with_the_command(user_module: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run("sources", "check", *arguments)
    assert result.exit_code == 2 and message in result.stderr


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    result = run(
        "sources", "check", "headgate.files", "-o", f"path={tmp_path}/no", "-o", "fileFormat=csv", "--schema", "a int"
    )
    assert result.exit_code == 1 and "problem  splits" in result.output and f"{tmp_path}/no" in result.output


def test_columns_as_spark_writes_them() -> None:
    found = parsed_schema(
        "a INT NOT NULL COMMENT 'it, is', `b c`: array<struct<x: decimal(9, 2), y: map<string, bigint>>>, "
        "d timestamp_ntz"
    )
    assert found == pa.schema(
        [
            pa.field("a", pa.int32(), nullable=False),
            pa.field(
                "b c",
                pa.list_(pa.struct([("x", pa.decimal128(9, 2)), ("y", pa.map_(pa.string(), pa.int64()))])),
            ),
            pa.field("d", pa.timestamp("us")),
        ]
    )
    for wrong in ("a", "a what", "a array<int, int>", ""):
        with pytest.raises(OptionError, match="is not understood"):
            parsed_schema(wrong)
