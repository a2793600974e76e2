"""The address at which others reach this process: never a name, which others may not know."""

from __future__ import annotations

import socket

import pytest

from headgate.errors import OptionError, TransportError
from headgate.transport.sockets import LOST_AFTER_S, address_in, address_towards, break_when_lost


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "localhost"])
def test_who_reaches_the_driver_on_loopback_is_reached_there(host: str) -> None:
    assert address_towards(host).startswith("127.") or address_towards(host) == "::1"


def test_a_name_that_nobody_knows_is_an_error_with_the_name_and_the_option() -> None:
    with pytest.raises(TransportError, match=r"no route to nobody\.invalid: .*transport\.host"):
        address_towards("nobody.invalid")


def test_the_address_in_a_network_of_this_host() -> None:
    assert address_in("127.0.0.0/8") == "127.0.0.1"
    assert address_in("127.0.0.1/32") == "127.0.0.1"


def test_a_network_that_this_host_is_not_in_is_an_error_with_the_option() -> None:
    with pytest.raises(OptionError, match=r"'transport\.slots\.network' is '203\.0\.113\.0/24', but .* has no address"):
        address_in("203.0.113.0/24")


def test_a_connection_breaks_when_the_other_host_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        break_when_lost(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * LOST_AFTER_S
            break_when_lost(connection, unread_s=60)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
