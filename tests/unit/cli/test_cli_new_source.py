"""``headgate sources new``: it makes what is in examples/own_connector; names that cannot be are refused."""

from __future__ import annotations

import ast
import os
import tomllib
from pathlib import Path

import pytest

from tests.unit.cli.stored_query import run, run_json

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "own_connector"
LEFT_BY_PYTHON = ("__pycache__", ".pytest_cache")


def files_of(folder: Path) -> dict[str, str]:
    """Return the text of each file of a folder; without what running it leaves there."""
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file() and not {*path.parts}.intersection(LEFT_BY_PYTHON)
    }


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_example_is_what_it_makes() -> None:
    """Of a difference: change connector_template, and make the example again."""
    result = run("sources", "new", "own_connector")
    assert result.exit_code == 0, result.output
    assert files_of(Path("own_connector")) == files_of(EXAMPLE)


def test_it_lists_what_it_made_and_what_comes_next() -> None:
    result = run("sources", "new", "own_connector", "--folder", "connectors/first")
    made, *lines = result.output.splitlines()
    assert made == "made connectors/first:"
    assert {line.strip() for line in lines[: lines.index("Next:")]} == set(files_of(EXAMPLE))
    assert "  cd connectors/first" in lines and "  pytest" in lines


def test_the_same_as_json() -> None:
    found = run_json("sources", "new", "own_connector", "--folder", "connectors/first")
    assert (found["name"], found["folder"]) == ("own_connector", "connectors/first")
    assert set(found["files"]) == set(files_of(EXAMPLE))


def test_another_name_is_in_everything() -> None:
    assert run("sources", "new", "weather_stations2").exit_code == 0
    files = files_of(Path("weather_stations2"))
    assert [name for name, text in files.items() if "own" in name or "$" in text or "NAME" in text] == []
    assert tomllib.loads(files["pyproject.toml"])["project"]["name"] == "weather-stations2"
    for name in ("src/weather_stations2/__init__.py", "tests/test_weather_stations2.py"):
        assert "WeatherStations2" in files[name] and ast.parse(files[name])
    assert 'source_class = "weather_stations2:WeatherStations2"' in files["src/pyspark_weather_stations2/__init__.py"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Weather", "use a-z, 0-9 and _"),
        ("my-source", "use a-z, 0-9 and _"),
        ("9lives", "use a-z, 0-9 and _"),
        ("trailing_", "use a-z, 0-9 and _"),
        ("../up", "use a-z, 0-9 and _"),
        ("lambda", "use a-z, 0-9 and _"),
        ("kafka", "a format of Spark's own"),
        ("json", "a format of Spark's own"),
        ("tomllib", "there is a module 'tomllib'"),
        ("pyarrow", "there is a module 'pyarrow'"),
        ("headgate_files", "there is a module 'pyspark_headgate_files'"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name: str, why: str) -> None:
    result = run("sources", "new", name)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"headgate: {name!r} ") and why in result.stderr
    assert os.listdir() == []


def test_a_folder_of_the_same_name_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weather").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run("sources", "new", "weather", "--folder", "connector").exit_code == 0


def test_a_folder_that_exists_is_left_alone() -> None:
    Path("weather").mkdir()
    result = run("sources", "new", "weather")
    assert result.exit_code == 2 and "weather exists already" in result.stderr
    assert files_of(Path("weather")) == {}


def test_a_folder_that_cannot_be_made_is_an_error_in_one_line() -> None:
    Path("file").write_text("")
    result = run("sources", "new", "weather", "--folder", "file/weather")
    assert result.exit_code == 2
    assert result.stderr.startswith("headgate: file/weather cannot be made: ") and result.stderr.count("\n") == 1
