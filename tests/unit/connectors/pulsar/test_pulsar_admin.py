"""Who is asked over HTTP, and again, without a broker."""

from __future__ import annotations

import io
import urllib.error
import urllib.request
from email.message import Message
from typing import Any

import pytest

from headgate.connectors.pulsar.admin import PulsarAdmin, addresses
from headgate.connectors.pulsar.client import ClientConfig
from headgate.errors import SourceError, SourceUnavailableError

TOPIC = "persistent://public/default/rides"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://a:8080", ("http://a:8080",)),
        (" http://a:8080/ ", ("http://a:8080",)),
        ("https://a:8443,b:8443/pulsar/", ("https://a:8443/pulsar", "https://b:8443/pulsar")),
        ("http://a:8080, b", ("http://a:8080", "http://b")),
        ("http://a:8080,http://b:8080", ("http://a:8080", "http://b:8080")),
        ("a:8080", ("a:8080",)),
    ],
)
def test_an_address_may_have_several_hosts(given: str, expected: tuple[str, ...]) -> None:
    assert addresses(given) == expected


class Hosts:
    """Answers for hosts that are up; notes who was asked."""

    def __init__(self, *up: str, answer: int = 200) -> None:
        self.up, self._answer = up, answer
        self.asked: list[str] = []

    def open(self, request: urllib.request.Request, timeout: float) -> Any:
        self.asked.append(request.host)
        if request.host not in self.up:
            raise urllib.error.URLError("connection refused")
        if self._answer != 200:
            raise urllib.error.HTTPError(request.full_url, self._answer, "no", Message(), io.BytesIO(b"no"))
        return io.BytesIO(b'{"type": "STRING"}')


def test_the_next_host_is_asked_where_one_does_not_answer() -> None:
    admin = PulsarAdmin(ClientConfig("pulsar://a", (), "http://a,b,c"))
    hosts = Hosts("b")
    admin._opener = hosts  # type: ignore[assignment]
    assert [admin.schema(TOPIC) for _ in range(2)] == [{"type": "STRING"}] * 2
    assert hosts.asked == ["a", "b", "b"], "the one that answered is the first from then on"
    hosts.up, hosts.asked = (), []
    with pytest.raises(
        SourceUnavailableError, match=r"http://b .*; http://c .*; http://a \(admin.url\) does not answer"
    ):
        admin.schema(TOPIC)
    assert hosts.asked == ["b", "c", "a"]
    refusing = Hosts("a", "b", "c", answer=403)
    admin._opener = refusing  # type: ignore[assignment]
    with pytest.raises(SourceError, match="answers 403"):
        admin.schema(TOPIC)
    assert len(refusing.asked) == 1, "who answers decides"
