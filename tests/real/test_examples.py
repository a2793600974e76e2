"""Every program in examples/ runs as a script, the notebook as one; the ones about flights say what is in the data.

What breaks it breaks `tests/unit/test_examples_index.py`, `tests/real/test_entry_points.py`,
`tests/real/test_continuous_dataframe.py`,
`tests/real/test_continuous_foreach.py`, `tests/real/test_continuous_kafka.py`, `tests/real/test_event_time_stream.py`
and `tests/real/test_pulsar_stream.py` too.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from local.kafka import Broker
from local.pulsar_topics import Message, produce
from tests.shared_broker import PulsarAddresses
from tests.spark_java import SparkJava

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOK = ROOT / "examples" / "first_steps.ipynb"

HEADER = "year,month,day,dep_delay,carrier,flight,origin,time_hour\n"
LINES = {
    "EWR": ["2013,1,1,2,UA,1545,EWR,2013-01-01T10:00:00Z", "2013,1,1,NA,UA,1714,EWR,2013-01-01T10:00:00Z"],
    "JFK": ["2013,1,1,10,AA,1141,JFK,2013-01-01T10:00:00Z"],
    "LGA": ["2013,1,1,-4,DL,461,LGA,2013-01-01T11:00:00Z", "2013,1,2,6,UA,1696,LGA,2013-01-02T10:00:00Z"],
}

Run = Callable[..., str]


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    """Return a folder with one small file per airport."""
    folder = tmp_path / "flights"
    folder.mkdir()
    for airport, lines in LINES.items():
        (folder / f"flights-{airport}.csv").write_text(HEADER + "\n".join(lines) + "\n")
    return folder


@pytest.fixture
def run(tmp_path: Path, java: SparkJava) -> Run:
    """Return a function that runs an example as a user would, in an empty folder, and returns what it printed.

    It has a Java that others had before, unless it is to start one of its own.
    """

    def run(name: str, *arguments: object, own_java: bool = False) -> str:
        command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
        run = subprocess.run if own_java else java.run
        done = run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        return done.stdout

    return run


def rows_of(shown: str) -> list[list[str]]:
    """Return the cells of a table that `DataFrame.show` printed, without its heading."""
    lines = [line for line in shown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_flights_batch(run: Run, flights: Path) -> None:
    assert rows_of(run("flights_batch.py", flights, own_java=True)) == [
        ["AA", "1", "10.0"],
        ["UA", "3", "4.0"],
        ["DL", "1", "-4.0"],
    ]


def test_flights_sql(run: Run, flights: Path) -> None:
    assert rows_of(run("flights_sql.py", flights)) == [
        ["EWR", "2", "2.0"],
        ["JFK", "1", "10.0"],
        ["LGA", "2", "1.0"],
    ]


@pytest.mark.spark_since("read-limits")
def test_flights_stream_reads_only_what_is_new(run: Run, flights: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "read 5 new flights; the table has 5" in run("flights_stream.py", flights, out)
    (flights / "flights-more.csv").write_text(HEADER + "2013,2,1,1,B6,725,JFK,2013-02-01T10:00:00Z\n")
    assert "read 1 new flights; the table has 6" in run("flights_stream.py", flights, out)


def test_quiet_users(run: Run) -> None:
    """Every ride is in a visit that ended, once."""
    assert re.fullmatch(r"\d+ visits of 100 users, 4000 rides in all\n", run("quiet_users.py")), "rides are lost"


def test_continuous_flights(run: Run, flights: Path, tmp_path: Path) -> None:
    """Run again, it finds nothing new."""
    means = [["EWR", "2.0"], ["JFK", "10.0"], ["LGA", "6.0"]]
    shown = run("continuous_flights.py", flights, tmp_path / "out")
    assert "of 5 flights 3 left late" in shown
    assert rows_of(shown) == means
    shown = run("continuous_flights.py", flights, tmp_path / "out")
    assert "of 0 flights 0 left late" in shown
    assert rows_of(shown) == means


@pytest.mark.timeout(1800)
@pytest.mark.spark_since("read-limits")
def test_the_programs_of_kafka(run: Run, kafka: Broker, topic_name: str, tmp_path: Path) -> None:
    shown = run("kafka_windows.py", kafka.plain, topic_name)
    assert rows_of(shown) == [
        [f"2026-01-01 00:0{second // 60}:{second % 60:02}", "100", str(sum(n % 50 for n in range(100)))]
        for second in range(0, 60, 10)
    ]
    copy = ("kafka_to_kafka.py", kafka.plain, topic_name, f"{topic_name}-large", tmp_path / "checkpoint")
    assert "has 120 large rides" in run(*copy)
    assert "has 120 large rides" in run(*copy)
    shown = run("continuous_kafka.py", kafka.plain, topic_name, f"{topic_name}-at-once")
    assert "is after 600 rides" in shown
    assert "resumed on 2 slots; 0 rides were new" in shown
    assert "has 120 large rides" in shown


def test_pulsar_windows(run: Run, pulsar: PulsarAddresses, topic_name: str) -> None:
    shown = run("pulsar_windows.py", pulsar.service_url, pulsar.admin_url, topic_name)
    total = sum(n % 50 for n in range(100))
    windows = [line for line in shown.splitlines() if " rides " in line]
    assert windows == [f"00:00:{second:02}  100 rides  {total}" for second in range(0, 60, 10)]


@pytest.mark.spark_since("stream-arrow-writer", "read-limits")
def test_pulsar_to_pulsar(run: Run, pulsar: PulsarAddresses, topic_name: str, tmp_path: Path) -> None:
    """Run again, it copies what is new."""
    target = f"persistent://public/once/{topic_name}-large"
    copy = ("pulsar_to_pulsar.py", pulsar.service_url, pulsar.admin_url, topic_name, target, tmp_path / "checkpoint")
    rides = [Message(json.dumps({"driver": f"driver-{n % 7}", "amount": n % 50}).encode()) for n in range(200)]
    for large in (40, 80):
        produce(pulsar, topic_name, rides)
        assert f"has {large} large rides" in run(*copy)


def test_continuous_windows(run: Run, kafka: Broker, topic_name: str, tmp_path: Path) -> None:
    """Suspended and resumed with twice the slots, each window holds its rides once."""
    shown = run("continuous_windows.py", kafka.plain, topic_name, tmp_path / "out")
    assert "of rides is after 600 rides" in shown
    assert "its watermark is 2026-01-01T00:00:54.900Z" in shown
    assert "active: False, error: None" in shown
    assert "resumed on 2 slots; 600 rides were new" in shown
    assert rows_of(shown) == [
        [f"2026-01-01 00:{second // 60:02}:{second % 60:02}", "7", "100", str(sum(n % 50 for n in range(100)))]
        for second in range(0, 120, 10)
    ]


def test_continuous_dataframe(run: Run, tmp_path: Path) -> None:
    """The program of a DataFrame gives what Spark's batch gives."""
    shown = run("continuous_dataframe.py", tmp_path / "out")
    assert re.search(r"^[1-9]\d* totals, 0 of them other than in Spark's batch$", shown, re.MULTILINE)
    assert "  rides.1.filter:" in shown
    sizes = {size: (int(rides), int(total)) for size, rides, total in rows_of(shown)}
    assert sizes.keys() == {"big", "small"}
    assert all(9 * rides <= total for rides, total in sizes.values())


def test_continuous_foreach_batch(run: Run, tmp_path: Path) -> None:
    """Spark's own writer stores each row once."""
    shown = run("continuous_foreach_batch.py", tmp_path / "out")
    assert re.search(r"^5000 rides, 5000 of them different, in [1-9]\d* batches$", shown, re.MULTILINE)


def test_continuous_updates(run: Run) -> None:
    """Groups are updated as they grow; what came too late is in the other sink, and nowhere else."""
    shown = run("continuous_updates.py")
    (found,) = re.findall(r"^(\d+) updates of (\d+) groups, which have (\d+) rides$", shown, re.MULTILINE)
    updates, groups, rides = map(int, found)
    assert (groups, rides) == (30, 6000 - 12)
    assert updates > groups
    assert rows_of(shown) == [["user-0", "4"], ["user-1", "4"], ["user-2", "4"]]


def test_continuous_autoscaler(run: Run) -> None:
    """A load of twice what a slot can process takes three or four, and the reason is printed."""
    shown = run("continuous_autoscaler.py")
    assert re.search(r"^parallelism 1 to [34]: scale up", shown, re.MULTILINE), shown
    assert re.search(r"^rescaled to [34] slots$", shown, re.MULTILINE)


def test_continuous_stream_joins(run: Run) -> None:
    """Every order is counted once, paid or not, in windows downstream of the join."""
    shown = run("continuous_stream_joins.py")
    paid = sum(1 for order in range(6000) if order % 3 and order % 13 <= 10)
    assert f"6000 orders, {paid} paid in time" in shown
    assert len(re.findall(r"orders, \d+ paid within a second$", shown, re.MULTILINE)) == 3
    assert "until ordered is at the watermark - 1001 ms" in shown


@pytest.mark.spark_since("repartition-by-id")
def test_continuous_exchanges(run: Run) -> None:
    """Repartitioned rows come to all slots, those of a key to one, and those of an id to the one that it names."""
    found = re.findall(
        r"^(.+): (\[.*\]) rows, of the thousands (\[.*\])$", run("continuous_exchanges.py"), re.MULTILINE
    )
    rows = {name: json.loads(counts) for name, counts, _ in found}
    thousands = {name: json.loads(of_slots) for name, _, of_slots in found}
    assert rows["as it is"] == [10_000]
    assert len(rows["repartition"]) == 3 and sum(rows["repartition"]) == 10_000
    assert sorted(each for of_slot in thousands["by key"] for each in of_slot) == list(range(10))
    assert rows["by id"] == [3000, 3000, 4000]
    assert thousands["by id"] == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


@pytest.mark.spark_since("micro-batch-alignment")
def test_event_time_alignment(run: Run) -> None:
    """The same data, query and sizes of micro-batches: aligned, no row comes too late."""
    shown = run("event_time_alignment.py")
    lost = dict(re.findall(r"^(\w+): .*; ([\d,]+) came too late$", shown, re.MULTILINE))
    assert int(lost["unaligned"].replace(",", "")) > 10_000
    assert lost["aligned"] == "0"


def test_continuous_alignment(run: Run) -> None:
    """The drift is half a minute, and a batch of buses about ten seconds."""
    found = re.findall(r"^max-drift (.*): .* up to (\d+) seconds", run("continuous_alignment.py"), re.MULTILINE)
    ahead = {max_drift: int(seconds) for max_drift, seconds in found}
    assert ahead["None"] > 120
    assert ahead["30 seconds"] < 60


def test_the_notebook(java: SparkJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs from its first cell to its last and draws a picture; its kernel leaves nothing in the user's home."""
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    command = [sys.executable, "-m", "jupyter", "execute", "--output", tmp_path / "executed.ipynb", NOTEBOOK]
    done = java.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    cells = json.loads((tmp_path / "executed.ipynb").read_text())["cells"]
    shown = [output["data"] for cell in cells for output in cell.get("outputs", []) if "data" in output]
    assert sum(ast.literal_eval("".join(shown[0]["text/plain"])).values()) == 20_000
    assert ["True"] in [data["text/plain"] for data in shown], "the continuous query has the rows of the batch"
    assert "image/png" in shown[-1]


APART = ("flights_", "kafka_", "pulsar_", "continuous_", "event_time_", "quiet_users")


NEEDS = {
    "own_source.py": [pytest.mark.spark_since("read-limits")],
    "sessions_with_state.py": [pytest.mark.spark_since("transform-with-state-rows")],
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(path.name, marks=NEEDS.get(path.name, [])) for path in EXAMPLES if not path.name.startswith(APART)],
)
def test_other_examples(run: Run, name: str) -> None:
    """The examples that need no input run to their end and print something."""
    assert run(name).strip()
