"""``headgate query``: which query is meant, what it is asked, and what its answers become."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.stored_query import run, run_json

SNAPSHOT: dict[str, Any] = {
    "id": "11-aa", "runId": "r", "name": "rides", "state": "running", "parallelism": 2, "watermarkMs": None,
    "why": [{"severity": "warning", "text": "slot 2 is busy 97 % in 'parse'", "about": {"kind": "slot", "slot": 2}}],
    "stages": [{"stage": 0, "name": "rides", "rowsInPerSecond": 12_345.6, "rowsOutPerSecond": None, "busy": 0.97,
                "backPressured": 0.0, "idle": 0.03}],
    "sources": [{"uid": "rides", "rowsPerSecond": 5.0, "numSplits": 3, "lag": {"rowsBehind": 7}, "troubles": []}],
    "checkpoints": {"failed": 0, "last": {"id": 7, "durationMs": 20, "sizeBytes": 2048, "ageMs": 1000}},
    "restarts": {"count": 1, "recent": []},
}  # fmt: skip


class Served:
    """An endpoint that follows the protocol, with the queries that a test wants."""

    def __init__(self, home: Path, *queries: dict[str, Any]) -> None:
        self.queries = list(queries)
        self.asked: list[tuple[str, Any, str | None]] = []
        self.answers: dict[str, tuple[int, Any]] = {}
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/api/queries":
                    self.answer(200, [{key: each[key] for key in ("id", "name", "state")} for each in served.queries])
                else:
                    found = [each for each in served.queries if self.path == f"/api/queries/{each['id']}"]
                    self.answer(200, found[0]) if found else self.answer(404, {"error": "there is no such query"})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                served.asked.append((self.path, body, self.headers["Authorization"]))
                self.answer(*served.answers.get(self.path.rpartition("/")[2], (200, {"checkpointId": 8})))

            def answer(self, status: int, document: Any) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(document).encode())

            def log_message(self, *_: Any) -> None:
                """Write nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.secret_file(home, os.getpid())

    def secret_file(self, home: Path, pid: int) -> Path:
        path = home / "endpoints" / f"{pid}-{self.server.server_port}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"url": self.url, "token": "secret", "pid": pid, "startedMs": 0}))
        return path

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def served(home: Path) -> Iterator[Served]:
    endpoint = Served(home, SNAPSHOT)
    yield endpoint
    endpoint.close()


def test_queries_are_listed_with_where_they_are(served: Served) -> None:
    (found,) = run_json("query", "list")
    assert (found["name"], found["url"], found["pid"]) == ("rides", served.url, os.getpid())
    assert "rides" in run("query", "list").output


def test_an_endpoint_that_does_not_answer_is_named_beside_those_that_do(served: Served, home: Path) -> None:
    silent = Served(home)
    silent.close()
    result = run("query", "list", "--json")
    assert [each["url"] for each in json.loads(result.stdout)] == [served.url]
    assert result.exit_code == 0 and silent.url in result.stderr


def test_the_status_says_why(served: Served) -> None:
    assert run_json("query", "status") == SNAPSHOT
    text = run("query", "status", "rides").output
    assert "warning: slot 2 is busy 97 % in 'parse'" in text
    assert "12,346" in text and "97%" in text and "7, 1 s ago, 20 ms, 2.0 KiB" in text


def test_actions_carry_the_token_and_name_folders_as_the_driver_sees_them(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "checkpoint 8 is complete" in run("query", "checkpoint").output
    assert run_json("query", "savepoint", "saved", "rides")["location"] == str(tmp_path / "saved")
    assert run("query", "savepoint", "s3://bucket/saved").exit_code == 0
    assert run("query", "rescale", 4, "11").exit_code == 0, "the beginning of its id is enough"
    assert run("query", "stop", "--savepoint", "last", "--drain").exit_code == 0
    assert run("query", "stop").exit_code == 0
    assert [(path.rpartition("/")[2], body) for path, body, _ in served.asked] == [
        ("checkpoint", {}),
        ("savepoint", {"location": str(tmp_path / "saved")}),
        ("savepoint", {"location": "s3://bucket/saved"}),
        ("rescale", {"parallelism": 4}),
        ("stop", {"savepoint": str(tmp_path / "last"), "drain": True}),
        ("stop", {}),
    ]
    assert {token for _, _, token in served.asked} == {"Bearer secret"}
    assert {path.rpartition("/")[0] for path, _, _ in served.asked} == {"/api/queries/11-aa"}


@pytest.mark.parametrize(("status", "code"), [(409, 1), (400, 2), (403, 2), (404, 2)])
def test_what_the_query_refuses_is_an_error_with_its_words(served: Served, status: int, code: int) -> None:
    served.answers["rescale"] = status, {"error": "it has 128 key groups only"}
    result = run("query", "rescale", 1000)
    assert (result.exit_code, result.stderr) == (code, "headgate: it has 128 key groups only\n")


def test_no_query_is_guessed_among_several(served: Served) -> None:
    served.queries.append({**SNAPSHOT, "id": "12-bb", "name": None})
    result = run("query", "stop")
    assert result.exit_code == 2 and "11-aa (rides), 12-bb (without a name)" in result.stderr
    assert run("query", "stop", "1").exit_code == 2, "both begin so"
    assert run("query", "stop", "other").exit_code == 2
    assert served.asked == []
    assert run("query", "stop", "12").exit_code == 0


def test_one_that_has_ended_is_not_meant_while_another_runs(served: Served) -> None:
    served.queries.append({**SNAPSHOT, "id": "10-ended", "state": "ended"})
    assert run("query", "checkpoint").exit_code == 0
    assert run("query", "checkpoint", "rides").exit_code == 0, "a start before has the same name"
    assert [path for path, _, _ in served.asked] == ["/api/queries/11-aa/checkpoint"] * 2
    assert run_json("query", "status", "10-ended")["state"] == "ended"


def test_of_several_ended_starts_of_one_query_the_newest_is_meant(served: Served) -> None:
    ended = {**SNAPSHOT, "id": "10-ended", "name": "fares", "state": "ended"}
    served.queries += [{**ended, "runId": "second"}, {**ended, "runId": "first"}]
    assert run_json("query", "status", "fares")["runId"] == "second"
    assert run_json("query", "status", "10-e")["runId"] == "second"


def test_files_of_processes_that_are_gone_are_deleted(served: Served, home: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    path = served.secret_file(home, gone.pid)
    (home / "endpoints/half-written.json").write_text("{")
    assert len(run_json("query", "list")) == 1
    assert not path.exists() and (home / "endpoints/half-written.json").exists()


def test_nothing_to_ask_is_another_exit_code(home: Path) -> None:
    result = run("query", "list")
    assert result.exit_code == 3 and "No driver process has an endpoint" in result.stderr
    endpoint = Served(home, SNAPSHOT)
    endpoint.close()
    result = run("query", "status")
    assert result.exit_code == 3 and f"does not answer at {endpoint.url}" in result.stderr


@pytest.mark.parametrize("answer", [b"-ERR unknown command\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[]"])
def test_what_is_no_driver_is_not_reached(home: Path, answer: bytes) -> None:
    """A port of a driver that is gone may be another program's by now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        (home / "endpoints").mkdir()
        (home / "endpoints/1-1.json").write_text(json.dumps({"url": url, "token": "secret", "pid": os.getpid()}))
        result = run("query", "list")
    assert result.exit_code == 3 and f"does not answer at {url}" in result.stderr


def test_a_file_without_an_address_is_not_reached(home: Path) -> None:
    (home / "endpoints").mkdir()
    (home / "endpoints/1-1.json").write_text(json.dumps({"url": "driver", "token": "secret", "pid": os.getpid()}))
    assert run("query", "list").exit_code == 3
