"""What the two ends say beside messages cannot be taken for one."""

from __future__ import annotations

import msgspec
import pytest

from headgate.protocol.messages import Envelope, SlotHeartbeat, decode, encode
from headgate.transport.frames import GOODBYE, WELCOME
from headgate.transport.sockets import parse_peer


@pytest.mark.parametrize("frame", [WELCOME, GOODBYE])
def test_no_frame_is_a_message(frame: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(frame)
    message = encode(Envelope(run=1, slot=0, attempt=0, number=0, received=0, message=SlotHeartbeat()))
    assert message[0] != frame[0] and message[0] >= 0x80


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("ipv4:10.1.2.3:40112", ("10.1.2.3", 40112)),
        ("ipv6:%5B2001:db8::7%5D:40112", ("2001:db8::7", 40112)),
        ("ipv6:[::1]:1", ("::1", 1)),
        ("ipv6:%5B::ffff:10.1.2.3%5D:40112", ("10.1.2.3", 40112)),
    ],
)
def test_peers_as_grpc_writes_them(peer: str, expected: tuple[str, int]) -> None:
    assert parse_peer(peer) == expected
