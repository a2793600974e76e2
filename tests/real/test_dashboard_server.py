"""The endpoint's server on real sockets: one per process, its file, its limits, and what clients cannot do to it."""

from __future__ import annotations

import http.client
import json
import logging
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.monitor.endpoint import of_process, registry, server
from headgate.monitor.endpoint.of_process import Endpoint
from local.ports import free_ports
from tests.real.running_queries import wait_until
from tests.unit.monitor.endpoint.documents import RecordedQuery

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def endpoint(home: Path) -> Iterator[Endpoint]:
    made = Endpoint("127.0.0.1", 0)
    made.registry.enter(RecordedQuery("rides"))
    yield made
    made.close()


def ask(endpoint: Endpoint, path: str, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    """Return status, headers and body of a response."""
    connection = http.client.HTTPConnection(endpoint.url.split("/")[2], timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def address(endpoint: Endpoint) -> tuple[str, int]:
    host, _, port = endpoint.url.split("/")[2].rpartition(":")
    return host, int(port)


def test_every_response_forbids_what_is_from_elsewhere(endpoint: Endpoint) -> None:
    for path in ("/", "/assets/app.js", "/api/queries", "/nothing", "/metrics"):
        _, headers, body = ask(endpoint, path)
        assert "default-src 'none'; script-src 'self'" in headers["Content-Security-Policy"], path
        assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store"), path
        assert "Access-Control-Allow-Origin" not in headers
        assert endpoint.token.encode() not in body, path


def test_the_page_uses_only_what_the_package_has(endpoint: Endpoint) -> None:
    """No address of another server, no script or style within the page: the policy would refuse it."""
    names = [each.name for each in (ROOT / "src/headgate/monitor/endpoint/assets").iterdir()]
    assert {"index.html", "app.js", "style.css"} <= set(names)
    for name in names:
        status, _, body = ask(endpoint, f"/assets/{name}")
        text = body.decode().replace("http://www.w3.org/2000/svg", "")
        assert status == 200
        assert "http:" not in text and "https:" not in text and "innerHTML" not in text, name
        assert "style=" not in text and "<style" not in text and "onclick=" not in text, name


def test_events_come_until_the_endpoint_closes(home: Path) -> None:
    endpoint = Endpoint("127.0.0.1", 0)
    query = RecordedQuery("rides")
    endpoint.registry.enter(query)
    with socket.create_connection(address(endpoint), 60) as client:
        client.sendall(b"GET /api/queries/rides/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        stream = client.makefile("rb")
        seen: list[int] = []
        for line in stream:
            if line.startswith(b"data: {") and len(line) > 20:
                seen.append(json.loads(line[6:])["nowMs"])
                query.now_ms += 1
            if len(seen) == 3:
                break
        assert seen == [seen[0], seen[0] + 1, seen[0] + 2]
        closing = threading.Thread(target=endpoint.close)
        closing.start()
        assert not [line for line in stream if line.startswith(b"event: snapshot\n")][5:]
        closing.join(60)
    with pytest.raises(OSError):
        socket.create_connection(address(endpoint), 5)


def test_prometheus_reads_all_queries(endpoint: Endpoint) -> None:
    """How one has ended, too, as long as it is visible: an alarm about a failed one is raised by its state."""
    ended = RecordedQuery("flights")
    endpoint.registry.enter(ended)
    ended.state = "failed"
    endpoint.registry.leave(ended)
    status, headers, body = ask(endpoint, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert (status, headers["Content-Type"].partition(";")[0]) == (200, "application/openmetrics-text")
    assert b'headgate_query_state{query="rides",state="running"} 1.0' in body
    assert b'headgate_query_state{query="flights",state="failed"} 1.0' in body


def test_a_body_that_is_too_large_is_not_read(endpoint: Endpoint) -> None:
    status, _, body = ask(
        endpoint, "/api/queries/rides/savepoint", "POST", None,
        **{"Content-Length": "1000000000", "Authorization": f"Bearer {endpoint.token}"},
    )  # fmt: skip
    assert status == 413 and b"1,000,000,000" in body
    status, _, body = ask(endpoint, "/api/queries/rides/stop", "POST", None, **{"Transfer-Encoding": "chunked"})
    assert status == 411


def test_slow_clients_hold_nobody_up(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are connections send half a request; then somebody asks a whole one."""
    monkeypatch.setattr(server, "_REQUEST_S", 1.0)
    slow = [socket.create_connection(address(endpoint), 60) for _ in range(server._CONNECTIONS)]
    try:
        for each in slow:
            each.sendall(b"GET / HTTP/1.1\r\nHost: loc")

        def served() -> bool:
            try:
                return ask(endpoint, "/api/queries")[0] == 200
            except (OSError, http.client.HTTPException):
                return False

        wait_until(served)
        assert all(each.recv(1) == b"" for each in slow), "they were let go"
    finally:
        for each in slow:
            each.close()


def test_pages_beyond_the_limit_are_refused_and_others_served(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = []
    try:
        for _ in range(server._STREAMS):
            client = socket.create_connection(address(endpoint), 60)
            clients.append(client)
            client.sendall(b"GET /api/queries/rides/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
        assert ask(endpoint, "/api/queries/rides/events")[0] == 503
        assert ask(endpoint, "/api/queries/rides")[0] == 200
    finally:
        for client in clients:
            client.close()
    wait_until(lambda: _begins(endpoint))


def _begins(endpoint: Endpoint) -> bool:
    with socket.create_connection(address(endpoint), 60) as client:
        client.sendall(b"GET /api/queries/rides/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return client.recv(12) == b"HTTP/1.1 200"


def test_what_is_no_http_is_answered_and_closed(endpoint: Endpoint) -> None:
    for sent in (
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET\r\n\r\n",
        b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ):
        with socket.create_connection(address(endpoint), 60) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass
    assert ask(endpoint, "/")[0] == 200


# One for the process


def test_the_file_is_this_user_s_only_and_goes_with_the_endpoint(home: Path) -> None:
    endpoint = Endpoint("127.0.0.1", 0)
    (path,) = (home / "endpoints").iterdir()
    assert path.name == f"{os.getpid()}-{address(endpoint)[1]}.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    content = json.loads(path.read_text())
    assert content == {
        "url": endpoint.url, "token": endpoint.token, "pid": os.getpid(), "startedMs": content["startedMs"]
    }  # fmt: skip
    endpoint.close()
    assert list((home / "endpoints").iterdir()) == []


def test_without_a_home_the_query_is_served_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path / "file"))
    endpoint = Endpoint("127.0.0.1", 0)
    try:
        assert ask(endpoint, "/")[0] == 200
        assert "the command headgate will not find the endpoint" in caplog.text
    finally:
        endpoint.close()


def test_a_port_that_is_taken_is_replaced_with_a_warning(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = Endpoint("127.0.0.1", free_ports(1)[0])
    second = Endpoint("127.0.0.1", address(first)[1])
    try:
        assert address(first)[1] != address(second)[1]
        assert f"another process listens at dashboard.port {address(first)[1]}" in caplog.text
    finally:
        first.close()
        second.close()


@pytest.fixture
def no_endpoint(home: Path) -> Iterator[None]:
    of_process.close()
    yield
    of_process.close()


def test_all_queries_of_a_process_have_one_endpoint(no_endpoint: None, caplog: pytest.LogCaptureFixture) -> None:
    rides, flights = RecordedQuery("rides"), RecordedQuery("flights")
    one, same = of_process.serve(rides, "127.0.0.1", 0), of_process.serve(flights, "127.0.0.1", 0)
    assert one is not None and one is same
    assert of_process.serve(RecordedQuery("by default"), "127.0.0.1", 4050, asked=False) is one
    assert not caplog.text
    assert of_process.serve(RecordedQuery("more"), "127.0.0.1", 4051) is one
    assert "where that of the process's first query is, not at 127.0.0.1:4051" in caplog.text
    of_process.leave(rides)
    _, _, listed = ask(one, "/api/queries")
    assert [each["name"] for each in json.loads(listed)] == ["more", "by default", "flights", "rides"]


def test_an_address_of_another_machine_is_a_warning_not_a_failure(
    no_endpoint: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert of_process.serve(RecordedQuery("rides"), "192.0.2.1", 0) is None
    assert "there is no dashboard of the query rides" in caplog.text and "dashboard.host" in caplog.text


def test_it_closes_when_the_last_query_is_forgotten(no_endpoint: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "KEEP_MS", 0)
    query = RecordedQuery("rides")
    endpoint = of_process.serve(query, "127.0.0.1", 0)
    assert endpoint is not None
    of_process.leave(query)
    wait_until(lambda: endpoint.closed)
    wait_until(lambda: not [each for each in threading.enumerate() if each.name.startswith("headgate-dashboard")])
    again = of_process.serve(query, "127.0.0.1", 0)
    assert again is not None and again is not endpoint


PROGRAM = """
import socket
from headgate.monitor.endpoint import of_process
from tests.unit.monitor.endpoint.documents import RecordedQuery

endpoint = of_process.serve(RecordedQuery("rides"), "127.0.0.1", 0)
client = socket.create_connection(("127.0.0.1", int(endpoint.url.rstrip("/").rpartition(":")[2])))
client.sendall(b"GET /api/queries/rides/events HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
assert client.recv(12) == b"HTTP/1.1 200"
print("the end")
"""


def test_no_thread_keeps_the_process_alive(home: Path) -> None:
    """It ends while a page is open, and takes its file along."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "the end\n"), done.stderr
    assert list((home / "endpoints").iterdir()) == []
