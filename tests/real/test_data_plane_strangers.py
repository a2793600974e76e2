"""Whoever dials a data plane without being a slot of its query: refused, logged once, and nothing is allocated."""

from __future__ import annotations

import gc
import logging
import socket
import tracemalloc
from collections.abc import Iterator

import pyarrow as pa
import pytest

from headgate.protocol.data_frames import ENCODER, FAMILY, HEAD, PREAMBLE, Kind, head
from headgate.transport import data_plane
from headgate.transport.data_plane import DataPlane
from tests.real import data_plane_pair
from tests.real.data_plane_pair import CHANNEL, SCHEMA, SECRET, Consumer, Pair, Producer, RawPeer, buffer
from tests.waiting import wait_until

far = data_plane_pair.far
no_thread_stays = data_plane_pair.no_thread_stays  # of every test


@pytest.fixture
def plane() -> Iterator[DataPlane]:
    plane = DataPlane(7, SECRET, "127.0.0.1")
    plane.offer(CHANNEL, 1, SCHEMA, Producer())
    yield plane
    plane.close()


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "of Flight": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "zeros": bytes(100),
    "no kind": PREAMBLE + bytes(HEAD.size),
    "large metadata": PREAMBLE + HEAD.pack(Kind.HELLO, 0, 1 << 31, 0),
    "large body": PREAMBLE + HEAD.pack(Kind.HELLO, 0, 10, (1 << 32) - 1),
    "large together": PREAMBLE + HEAD.pack(Kind.HELLO, 0, 4000, 4000),
    "no msgpack": PREAMBLE + head(Kind.HELLO, 0, b"\xc1" * 9),
    "no hello": PREAMBLE + head(Kind.HELLO, 0, ENCODER.encode({"run": "7"})),
    "rows first": PREAMBLE + HEAD.pack(Kind.ROWS, 1, 10, 1 << 30),
    "accepted": PREAMBLE + head(Kind.ACCEPTED, 0),
    "denied": PREAMBLE + head(Kind.DENIED, 0, b"no"),
}


@pytest.mark.parametrize("sent", GARBAGE.values(), ids=GARBAGE)
def test_what_no_slot_sends_is_cut_off_and_logged_once(
    plane: DataPlane, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    stranger = RawPeer(plane.address)
    gc.collect()  # else what earlier tests left may be freed meanwhile
    allocated = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        stranger.socket.sendall(sent)
        stranger.wait_until_cut_off()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert pa.total_allocated_bytes() == allocated
    plane.close()
    found = refusals(caplog)
    assert len(found) == 1
    assert found[0].startswith("Refused a connection from 127.0.0.1:")
    assert plane.address in found[0]
    stranger.close()


def test_the_answer_to_a_wrong_secret_reveals_nothing_of_it(plane: DataPlane, caplog: pytest.LogCaptureFixture) -> None:
    """One that is nearly right gets the same answer, and no request that follows is looked at."""
    answers = set()
    for secret in ("", SECRET[:-1], SECRET + "x", "x" * 1000, "ä"):
        stranger = RawPeer(plane.address)
        stranger.greet(secret=secret)
        stranger.open()
        assert stranger.read(len(PREAMBLE)) == PREAMBLE
        kind, number, why, body = stranger.receive()
        assert (kind, number, body) == (Kind.DENIED, 0, b"")
        answers.add(why)
        with pytest.raises(EOFError):
            stranger.receive()
        stranger.close()
    assert len(answers) == 1
    plane.close()
    found = refusals(caplog)
    assert len(found) == 5
    assert not any(SECRET[:5] in each for each in found)


def test_one_that_says_nothing_is_cut_off_in_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that does not read the answer. A slot is not, whose silence has no end."""
    monkeypatch.setattr(data_plane, "_GREETING_S", 0.3)
    plane = DataPlane(7, SECRET, "127.0.0.1")
    silent, denied, slot = RawPeer(plane.address), RawPeer(plane.address), RawPeer(plane.address)
    slot.greet()
    denied.greet(secret="wrong")
    silent.wait_until_cut_off()
    denied.wait_until_cut_off()
    wait_until(lambda: len(plane._connections) == 1)
    slot.open(generation=3)
    plane.offer(CHANNEL, 3, SCHEMA, Producer())
    assert slot.read(len(PREAMBLE)) == PREAMBLE
    assert [slot.receive()[0] for _ in range(2)] == [Kind.ACCEPTED, Kind.WELCOME]
    for each in (silent, denied, slot):
        each.close()
    plane.close()
    assert len(refusals(caplog)) == 2


def test_another_version_is_refused_with_both_numbers(far: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """Both ways: who dials gets this version's first bytes, from which it learns the same."""
    stranger = RawPeer(far.producing.address)
    stranger.socket.sendall(FAMILY + (9).to_bytes(2, "big"))
    assert stranger.read(len(PREAMBLE)) == PREAMBLE
    stranger.wait_until_cut_off()
    stranger.close()
    wait_until(lambda: ["it speaks version 9" in each for each in refusals(caplog)] == [True])

    with socket.create_server(("127.0.0.1", 0)) as newer:
        end = Consumer()
        address = f"127.0.0.1:{newer.getsockname()[1]}"
        far.consuming.connect(address, CHANNEL, 1, SCHEMA, end)
        accepted, _ = newer.accept()
        accepted.sendall(FAMILY + (9).to_bytes(2, "big"))
        wait_until(lambda: bool(end.errors))
        accepted.close()
    assert (end.errors[0].reason, end.errors[0].address) == ("refused", address)
    assert "it speaks version 9" in str(end.errors[0])


def test_an_address_where_something_else_listens(far: Pair) -> None:
    for answer, reason in ((b"HTTP/1.1 400 Bad Request\r\n\r\n", "failed"), (b"", "broken")):
        with socket.create_server(("127.0.0.1", 0)) as other:
            end = Consumer()
            far.consuming.connect(f"127.0.0.1:{other.getsockname()[1]}", CHANNEL, 1, SCHEMA, end)
            accepted, _ = other.accept()
            accepted.recv(10)
            accepted.sendall(answer)
            accepted.close()
            wait_until(lambda end=end: bool(end.errors))
        assert end.errors[0].reason == reason


ILLEGAL = {
    "credit before it is opened": (Kind.CREDIT, 1, b"\x01", b""),
    "a number of the other side": (Kind.OPEN, 2, b"", b""),
    "a number too far": (Kind.OPEN, 7, b"", b""),
    "a consumer's frame for a consumer": (Kind.ROWS, 1, b"", b"x"),
    "hello again": (Kind.HELLO, 0, b"", b""),
    "no request": (Kind.OPEN, 1, b"\x80", b"xx"),
    "no schema": (Kind.OPEN, 1, ENCODER.encode({"channel": {"exchange": "x", "producer": 0, "consumer": 0},
                                                "generation": 1}), b"no schema"),
}  # fmt: skip


@pytest.mark.parametrize("frame", ILLEGAL.values(), ids=ILLEGAL)
def test_a_slot_that_sends_what_is_not_legal_loses_its_connection_and_no_other(
    far: Pair, frame: tuple[Kind, int, bytes, bytes]
) -> None:
    producing, _ = far.both()
    odd = RawPeer(far.producing.address)
    odd.greet()
    odd.send(*frame)
    odd.wait_until_cut_off()
    odd.close()
    producing.send(buffer(1))
    wait_until(lambda: far.consumer.elements == [buffer(1)])


def test_what_was_on_its_way_to_an_end_that_has_closed_is_no_fault(far: Pair) -> None:
    """Who sends cannot know yet. Its connection goes on."""
    slot = RawPeer(far.producing.address)
    slot.greet()
    producing = far.offer()
    slot.open()
    assert slot.read(len(PREAMBLE)) == PREAMBLE
    assert [slot.receive()[0] for _ in range(2)] == [Kind.ACCEPTED, Kind.WELCOME]
    producing.close()
    assert slot.receive()[0] == Kind.GOODBYE
    slot.send(Kind.CREDIT, 1, b"\x05")
    slot.send(Kind.CLOSE, 1)
    slot.send(Kind.CLOSE, 1)
    far.offer(generation=2)
    slot.open(number=3, generation=2)
    assert slot.receive()[:2] == (Kind.WELCOME, 3)
    slot.close()
