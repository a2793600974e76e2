"""``headgate state read``: windows as they are now, typed as the checkpoint says."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.unit.cli.stored_query import run, run_json, stored_query


@pytest.fixture
def location(tmp_path: Path) -> Path:
    return stored_query(tmp_path)


def test_operators_with_state_are_listed(location: Path) -> None:
    (found,) = run_json("state", "read", location)
    assert found["operator"] == "window" and found["stateBytes"] > 0


def test_windows_are_rows_with_their_aggregates(location: Path) -> None:
    found = run_json("state", "read", location, "--operator", "window")["tables"]["groups"]
    assert found["schema"]["k"] == "int64" and found["schema"]["sum(v)"] == "int64"
    assert sorted((each["k"], each["count(1)"], each["sum(v)"]) for each in found["first"]) == [(1, 2, 12), (2, 1, 11)]
    assert found["first"][0]["window"] == {"start": "1970-01-01T00:00:10+00:00", "end": "1970-01-01T00:00:20+00:00"}
    limited = run_json("state", "read", location, "--operator", "window", "--limit", 1)["tables"]["groups"]
    assert limited["rows"] == 2 and len(limited["first"]) == 1


def test_state_is_written_as_parquet(location: Path, tmp_path: Path) -> None:
    result = run("state", "read", location, "--operator", "window", "--output", tmp_path / "windows.parquet")
    assert result.exit_code == 0, result.output
    table = pq.read_table(tmp_path / "windows.parquet")
    assert sorted(table["sum(v)"].to_pylist()) == [11, 12]
    assert [each.name for each in tmp_path.glob("*parquet*")] == ["windows.parquet"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--operator", "sink"), "There is no state by key of 'sink': the checkpoint has that of 'window'"),
        (("--operator", "window", "--table", "left"), "has no table 'left'"),
        (("--output", "x.parquet"), "need --operator"),
    ],
)
def test_state_that_there_is_not(location: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run("state", "read", location, *arguments)
    assert result.exit_code == 2 and message in result.stderr
