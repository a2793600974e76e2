"""Finds free ports on loopback.

Never: hold one: whoever asked opens it soon, before another program gets it.
"""

from __future__ import annotations

import contextlib
import random
import socket

_PORTS = range(20_000, 32_000)
"""Below those that Linux and macOS give to connections, and to whoever asks for any: so nobody gets one by chance."""


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody listens on now, all different."""
    chance = random.SystemRandom()  # not the one that tests seed: other processes look for ports as well
    found: list[int] = []
    with contextlib.ExitStack() as opened:
        while len(found) < count:
            each, port = opened.enter_context(socket.socket()), chance.choice(_PORTS)
            with contextlib.suppress(OSError):
                each.bind(("127.0.0.1", port))
                found.append(port)
    return found
