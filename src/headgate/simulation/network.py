"""Connections between slots and the driver: in order, delayed, broken at times, which each end notices on its own.

What is under way on a connection that breaks is lost, or comes to the driver later than what the slot sends on its next
one: each is read by itself.

Never: reorder what travels on one connection, or repeat it but for a fault.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from headgate.protocol.messages import Envelope
from headgate.simulation.clockwork import Clockwork, Process


class Connection:
    """One connection. Its number is the driver's name for it; the slot has its own."""

    def __init__(self, number: int, slot: Process, driver: Process, slow_ms: int) -> None:
        self.number = number
        self.slot, self.driver = slot, driver
        self.slow_ms = slow_ms
        self.up = True
        self.repeats = 0
        """How many numbered envelopes more arrive twice, as if they had been sent again."""
        self.late_ms: int | None = None
        """By how much later all that was under way comes to the driver, which has not noticed that it broke."""
        self.to_driver_ms = self.to_slot_ms = 0  # when the last envelope of each direction arrives


class Network:
    """All connections there ever were.

    Parameters
    ----------
    clock
        The cluster's.
    choose
        Decides delays.
    """

    def __init__(self, clock: Clockwork, choose: random.Random) -> None:
        self._clock = clock
        self._choose = choose
        self.connections: list[Connection] = []
        self._slowest_ms = 150

    def calm_down(self) -> None:
        """Be fast from here on."""
        self._slowest_ms = 20

    def connect(self, slot: Process, driver: Process) -> Connection:
        """Return a new connection; some are slower than others."""
        slow_ms = self._choose.choice((3, 3, 20, 150))
        connection = Connection(len(self.connections) + 1, slot, driver, slow_ms)
        self.connections.append(connection)
        return connection

    def to_driver(self, connection: Connection, envelope: Envelope, arrive: Callable[[int, Envelope], None]) -> None:
        """Send an envelope to the driver."""
        if connection.up:
            connection.to_driver_ms = self._arrival(connection.to_driver_ms, connection)
            self._clock.at(
                connection.to_driver_ms, connection.driver, self._arrive_at_driver, connection, arrive, envelope
            )  # fmt: skip

    def to_slot(self, connection: Connection, envelope: Envelope, arrive: Callable[[Envelope], None]) -> None:
        """Send an envelope to the slot."""
        if connection.up:
            connection.to_slot_ms = self._arrival(connection.to_slot_ms, connection)
            self._clock.at(connection.to_slot_ms, connection.slot, self._arrive, connection, arrive, envelope)

    def break_(
        self, connection: Connection, slot_notices: Callable[[], None], driver_notices: Callable[[], None]
    ) -> None:
        """Lose what is under way; both ends notice, sooner or later."""
        if connection.up:
            connection.up = False
            self._clock.after(self._choose.choice((1, 10, 900)), connection.slot, slot_notices)
            self._clock.after(self._choose.choice((1, 10, 900)), connection.driver, driver_notices)

    def break_late(
        self, connection: Connection, late_ms: int, slot_notices: Callable[[], None], driver_notices: Callable[[], None]
    ) -> None:
        """Break it for the slot, which notices at once; the driver gets what is under way that much later."""

        def notice() -> None:
            connection.late_ms = None
            driver_notices()

        if connection.up:
            connection.up = False
            connection.late_ms = late_ms
            self._clock.after(1, connection.slot, slot_notices)
            self._clock.after(2 * late_ms + self._slowest_ms, connection.driver, notice)

    def close(self, connection: Connection, slot_notices: Callable[[], None]) -> None:
        """Close from the driver's side, after what was sent."""
        if connection.up:
            at_ms = self._arrival(connection.to_slot_ms, connection)
            self._clock.at(at_ms, connection.slot, self._closed, connection, slot_notices)

    def _closed(self, connection: Connection, slot_notices: Callable[[], None]) -> None:
        if connection.up:
            connection.up = False
            slot_notices()

    def _arrival(self, last_ms: int, connection: Connection) -> int:
        return max(
            last_ms, self._clock.now_ms + 1 + int(self._choose.random() * min(connection.slow_ms, self._slowest_ms))
        )

    def _arrive_at_driver(
        self, connection: Connection, arrive: Callable[[int, Envelope], None], envelope: Envelope
    ) -> None:
        if connection.late_ms is not None:
            self._clock.after(connection.late_ms, connection.driver, self._arrive_late, connection, arrive, envelope)
        else:
            self._arrive(connection, arrive, connection.number, envelope)

    def _arrive_late(self, connection: Connection, arrive: Callable[[int, Envelope], None], envelope: Envelope) -> None:
        if connection.late_ms is not None:
            arrive(connection.number, envelope)

    def _arrive(self, connection: Connection, arrive: Callable[..., None], *arguments: Any) -> None:
        if connection.up:
            arrive(*arguments)
        if connection.up and connection.repeats and arguments[-1].number:
            connection.repeats -= 1
            arrive(*arguments)
