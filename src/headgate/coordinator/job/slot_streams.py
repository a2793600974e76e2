"""Knows the streams of slots: which attempt is on which connection, and what was sent and received on each.

Never: decide which attempt counts: `scheduler` does.
"""

from __future__ import annotations

import msgspec

from headgate.coordinator.job import job_events as job
from headgate.coordinator.job.scheduler import Scheduler
from headgate.protocol import messages as msg
from headgate.protocol.messages import Envelope
from headgate.protocol.session import Session

_Key = tuple[int, int]  # slot and attempt


class Stream(msgspec.Struct):
    """The stream of an attempt: its session, its connection while there is one, and what it reported of itself."""

    session: Session
    connection: int | None
    about: msg.RegisterSlot
    received: int = 0  # what the slot had of ours when it registered
    released: bool = False
    newest: int = 0  # the last connection that it had: what comes on one before it comes late


class SlotStreams:
    """The streams of one run's slots.

    Parameters
    ----------
    run
        Whose they are.
    scheduler
        Knows which attempts count.
    """

    def __init__(self, run: int, scheduler: Scheduler) -> None:
        self._run = run
        self._scheduler = scheduler
        self._streams: dict[_Key, Stream] = {}
        self._connections: dict[int, _Key] = {}

    def key_of(self, connection: int) -> _Key | None:
        """Return which slot and attempt is on a connection."""
        return self._connections.get(connection)

    def current(self, slot: int) -> Stream | None:
        """Return the stream of the slot's attempt that counts."""
        attempt = self._scheduler.attempt(slot)
        return None if attempt is None else self._streams.get((slot, attempt))

    def receive(self, key: _Key, envelope: Envelope) -> list[msg.Message]:
        """Return the messages that are next in order."""
        return self._streams[key].session.receive(envelope)

    def register(self, connection: int, envelope: Envelope, message: msg.RegisterSlot) -> list[job.Action]:
        """Bind a connection to an attempt; the older one is closed, also if what it brings comes later."""
        key = (envelope.slot, envelope.attempt)
        stream = self._streams.get(key)
        actions: list[job.Action] = []
        if stream is None:
            session = Session(run=self._run, slot=envelope.slot, attempt=envelope.attempt)
            stream = self._streams[key] = Stream(session, None, message)
        elif connection < stream.newest:
            return self.close(connection)
        elif stream.connection is not None:
            actions = self.close(stream.connection)
        stream.connection, stream.newest = connection, connection
        stream.about, stream.received = message, envelope.received
        self._connections[connection] = key
        return actions

    def refuse(self, connection: int, envelope: Envelope, reason: str) -> list[job.Action]:
        """Fence whoever is not of this run."""
        fenced = Envelope(
            run=envelope.run,
            slot=envelope.slot,
            attempt=envelope.attempt,
            number=0,
            received=0,
            message=msg.SlotFenced(reason=reason),
        )
        log = job.Log("warning", f"Refused slot {envelope.slot} of run {envelope.run}: {reason}.")
        return [log, job.Transmit(connection, fenced), *self.close(connection)]

    def lose(self, connection: int) -> _Key | None:
        """Note that a connection broke, and return whose it was."""
        key = self._connections.pop(connection, None)
        if key is not None:
            self._streams[key].connection = None
        return key

    def accept(self, slot: int, attempt: int) -> list[job.Action]:
        """Accept an attempt, and send again what it has not got."""
        stream = self._streams[slot, attempt]
        actions = self._send_uncounted(stream, msg.SlotAccepted())
        if stream.connection is not None:
            actions += [job.Transmit(stream.connection, each) for each in stream.session.resend(stream.received)]
        return actions

    def fence(self, slot: int, attempt: int, reason: str) -> list[job.Action]:
        """Let an attempt exit, and forget it."""
        stream = self._streams.pop((slot, attempt))
        actions = self._send_uncounted(stream, msg.SlotFenced(reason=reason))
        return actions if stream.connection is None else [*actions, *self.close(stream.connection)]

    def send(self, slot: int, message: msg.ToSlot) -> list[job.Action]:
        """Put a message on the stream of the slot's attempt that counts; without one nobody misses it."""
        stream = self.current(slot)
        if stream is None:
            return []
        envelope = stream.session.send(message)
        return [] if stream.connection is None else [job.Transmit(stream.connection, envelope)]

    def beat(self) -> list[job.Action]:
        """Send a heartbeat on all streams."""
        return [each for stream in self._streams.values() for each in self._send_uncounted(stream, _HEARTBEAT)]

    def close(self, connection: int) -> list[job.Action]:
        """Close a connection."""
        self._connections.pop(connection, None)
        return [job.CloseConnection(connection)]

    def check(self) -> None:
        """Assert that an attempt has a stream if and only if it counts."""
        present = {
            (slot.slot, slot.attempt)
            for slot in self._scheduler.slots()
            if slot.state in ("registered", "disconnected")
        }
        assert self._streams.keys() == present, "an attempt has a stream if and only if it counts"
        bound = {stream.connection: key for key, stream in self._streams.items() if stream.connection is not None}
        assert bound == self._connections

    def _send_uncounted(self, stream: Stream, message: msg.ToSlot) -> list[job.Action]:
        if stream.connection is None:
            return []
        return [job.Transmit(stream.connection, stream.session.send_uncounted(message))]


_HEARTBEAT = msg.CoordinatorHeartbeat()
