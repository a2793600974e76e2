"""What each request is answered, and what refuses to be: pure, a request in and a response out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headgate.monitor.endpoint.registry import KEEP_MS, Registry
from headgate.monitor.endpoint.routes import Events, Request, Response, Site, handle, is_known_host
from tests.unit.monitor.endpoint.documents import RecordedQuery

TOKEN = "the-token"
ACTIONS: dict[str, dict[str, Any]] = {
    "checkpoint": {}, "savepoint": {"location": "/s/1"}, "rescale": {"parallelism": 4}, "stop": {"drain": True},
}  # fmt: skip


class Served:
    """An endpoint without a server: a registry with a clock of its own, and queries in it."""

    def __init__(self, *queries: RecordedQuery) -> None:
        self.now_ms = 0
        self.registry = Registry(lambda: self.now_ms)
        for query in queries:
            self.registry.enter(query)
        assets = {"index.html": b"<!doctype html>", "app.js": b"//"}
        self.site = Site(self.registry, TOKEN, frozenset({"driver.example"}), assets, self.metrics)

    def metrics(self, accept: str) -> tuple[bytes, str]:
        raise ModuleNotFoundError("No module named 'prometheus_client'")

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Response | Events:
        data = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        return handle(Request(method, path, {"host": "127.0.0.1:4051", **headers}, data), self.site)

    def answer(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return the status, and what the body says as JSON."""
        answer = self.ask(path, method, body, **headers)
        assert isinstance(answer, Response)
        return answer.status, msgspec.json.decode(answer.body)

    def act(self, action: str, body: Any, token: str = TOKEN) -> tuple[int, Any]:
        return self.answer(f"/api/queries/rides/{action}", "POST", body, authorization=f"Bearer {token}")


@pytest.fixture
def rides() -> RecordedQuery:
    return RecordedQuery("rides")


@pytest.fixture
def served(rides: RecordedQuery) -> Served:
    return Served(rides)


def test_the_page_and_its_files(served: Served) -> None:
    for path, kind in (("/", "text/html; charset=utf-8"), ("/assets/app.js", "text/javascript; charset=utf-8")):
        answer = served.ask(path)
        assert isinstance(answer, Response)
        assert (answer.status, answer.content_type) == (200, kind)
    for path in ("/assets/../registry.py", "/assets/", "/etc/passwd"):
        assert served.answer(path)[0] == 404, path
    assert served.answer("/", "DELETE")[0] == 405


def test_queries_are_listed_and_found_by_id_run_and_name(served: Served, rides: RecordedQuery) -> None:
    status, listed = served.answer("/api/queries")
    assert status == 200
    assert [(each["id"], each["runId"], each["name"], each["state"]) for each in listed] == [
        (rides.id, rides.runId, "rides", "running")
    ]
    for name in (rides.id, rides.runId, "rides"):
        assert served.answer(f"/api/queries/{name}") == (200, rides.snapshot()), name
    assert served.answer("/api/queries/rides/history") == (200, rides.history())
    events = served.ask("/api/queries/rides/events")
    assert isinstance(events, Events) and events.entry.name == "rides"


def test_a_name_is_percent_decoded() -> None:
    served = Served(RecordedQuery("rides of/today"))
    assert served.answer("/api/queries/rides%20of%2Ftoday")[0] == 200


def test_what_there_is_not(served: Served) -> None:
    assert served.answer("/api/queries/flights") == (
        404,
        {"error": "There is no query 'flights' in this driver; /api/queries lists those that there are."},
    )
    assert served.answer("/api/queriesrides")[0] == 404
    assert served.answer("/api/queries/rides/logs")[0] == 404
    assert served.answer("/api/queries/rides/history/1")[0] == 404


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_needs_the_token(served: Served, rides: RecordedQuery, action: str) -> None:
    path = f"/api/queries/rides/{action}"
    for headers in ({}, {"authorization": "Basic YTpi"}, {"authorization": "Bearer "}):
        status, body = served.answer(path, "POST", ACTIONS[action], **headers)
        assert status == 401 and "Authorization: Bearer TOKEN" in body["error"]
    for wrong in ("the-toke", "the-token2", "ü"):
        status, body = served.act(action, ACTIONS[action], token=wrong)
        assert status == 403 and wrong not in body["error"] and TOKEN not in body["error"]
    assert rides.asked == []
    answer = served.ask(path)
    assert isinstance(answer, Response) and (answer.status, answer.headers["Allow"]) == (405, "POST")


def test_actions_reach_the_query(served: Served, rides: RecordedQuery) -> None:
    assert served.act("checkpoint", {}) == (200, {"checkpointId": 42})
    assert served.act("checkpoint", None) == (200, {"checkpointId": 42})
    assert served.act("savepoint", {"location": "/s/1"}) == (200, {"checkpointId": 43, "location": "/s/1"})
    assert served.act("rescale", {"parallelism": 4}) == (200, {"parallelism": 4})
    assert served.act("stop", {"savepoint": "/s/2"}) == (200, {"stopped": True})
    assert rides.asked == [
        ("checkpoint",), ("checkpoint",), ("savepoint", "/s/1"), ("rescale", 4), ("stop", "/s/2", False)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("action", "body", "says"),
    [
        ("checkpoint", {"now": True}, "now"),
        ("savepoint", {}, "location"),
        ("savepoint", {"location": " "}, "'location' is empty"),
        ("rescale", {"parallelism": "4"}, "parallelism"),
        ("rescale", {"parallelism": True}, "parallelism"),
        ("rescale", {"parallelism": 0}, "out of range"),
        ("stop", {"savepoint": "/s", "drain": True}, "exclude one another"),
        ("stop", {"savepoint": ""}, "'savepoint' is empty"),
        ("stop", b"drain=true", "malformed"),
        ("stop", b"\xff", "cannot be used"),
    ],
)
def test_bad_input_is_named(served: Served, rides: RecordedQuery, action: str, body: Any, says: str) -> None:
    status, answer = served.act(action, body)
    assert status == 400 and says in answer["error"]
    assert rides.asked == []


def test_a_refusal_of_the_query_is_a_conflict(served: Served, rides: RecordedQuery) -> None:
    rides.state = "failed"
    assert served.act("checkpoint", {}) == (409, {"error": "The query has ended."})


def test_a_foreign_host_is_refused_everywhere(served: Served) -> None:
    """A name of somebody else's that resolves to this address (DNS rebinding) must not read or act."""
    for host in ("rebound.example:4051", "localhost.example", "", "127.0.0.1.example"):
        for path in ("/", "/api/queries", "/api/queries/rides/events", "/metrics"):
            assert served.answer(path, host=host)[0] == 403, (host, path)
        status, _ = served.answer("/api/queries/rides/stop", "POST", {}, host=host, authorization=f"Bearer {TOKEN}")
        assert status == 403


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:80", "[::1]:4051", "[::1]", "LOCALHOST:1", "driver.example.:80"]
)
def test_hosts_of_this_endpoint(host: str) -> None:
    assert is_known_host(host, frozenset({"driver.example"}))


def test_metrics_are_the_exporter_s_or_say_what_to_install(served: Served) -> None:
    status, body = served.answer("/metrics")
    assert status == 501 and "pip install 'headgate[metrics]'" in body["error"]
    site = msgspec.structs.replace(served.site, metrics=lambda accept: (b"up 1\n", f"{accept}; version=0.0.4"))
    answer = handle(Request("GET", "/metrics", {"host": "localhost", "accept": "text/plain"}), site)
    assert isinstance(answer, Response)
    assert (answer.status, answer.body, answer.content_type) == (200, b"up 1\n", "text/plain; version=0.0.4")


# What is served


def test_a_snapshot_is_made_at_most_twice_a_second(served: Served, rides: RecordedQuery) -> None:
    """However many pages ask."""
    first = served.ask("/api/queries/rides")
    rides.now_ms += 300
    served.now_ms += 300
    assert served.ask("/api/queries/rides") == first
    rides.now_ms += 300
    served.now_ms += 300
    assert served.answer("/api/queries/rides")[1]["nowMs"] == rides.now_ms


def test_an_ended_query_stays_visible_for_a_while(served: Served, rides: RecordedQuery) -> None:
    rides.state = "ended"
    served.registry.leave(rides)
    rides.state = "somebody else's"
    assert [each["state"] for each in served.answer("/api/queries")[1]] == ["ended"]
    assert served.answer("/api/queries/rides")[1]["state"] == "ended"
    assert served.answer("/api/queries/rides/history")[1]["points"] == rides.history()["points"]
    assert served.act("checkpoint", {}) == (409, {"error": "The query 'rides' has ended."})
    served.now_ms += KEEP_MS - 1
    assert served.registry.forget_old()
    served.now_ms += 1
    assert not served.registry.forget_old()
    assert served.answer("/api/queries") == (200, [])


def test_the_one_that_runs_is_found_before_the_one_that_ended(rides: RecordedQuery) -> None:
    """A query that was stopped and started again has the same id and name."""
    again = RecordedQuery("rides")
    again.runId = "second"
    served = Served(again, rides)
    served.registry.leave(rides)
    assert served.answer("/api/queries/rides")[1]["runId"] == "second"
    assert served.answer(f"/api/queries/{rides.runId}")[1]["runId"] == rides.runId
    assert [each["runId"] for each in served.answer("/api/queries")[1]] == ["second", rides.runId]


def test_a_query_that_cannot_say_how_it_ended_is_forgotten(served: Served, rides: RecordedQuery) -> None:
    """One whose start failed before it had anything to show."""
    rides.splits = 0  # then there is no slowest split: its snapshot fails
    with pytest.raises(ValueError, match="empty"):
        served.registry.leave(rides)
    assert served.answer("/api/queries") == (200, [])
