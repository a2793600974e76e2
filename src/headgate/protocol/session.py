"""One FIFO stream of messages out of any number of connections: what a broken connection lost is sent again.

Never: drop or reorder a counted message; wait. Both ends of an attempt's stream have one of these.

Messages of number 0 are neither counted nor repeated. A message is forgotten once the other side says that it came.
"""

from __future__ import annotations

from collections import deque

from headgate.errors import InternalError
from headgate.protocol.messages import Envelope, Message


class Session:
    """One end of the stream of (run, slot, attempt).

    Examples
    --------
    >>> from headgate.protocol.messages import SlotHeartbeat, SubtaskRunning
    >>> here, there = Session(run=1, slot=0, attempt=0), Session(run=1, slot=0, attempt=0)
    >>> lost = here.send(SubtaskRunning(stage=0, execution=1))
    >>> second = here.send(SubtaskRunning(stage=0, execution=2))
    >>> there.receive(second)  # the first is missing: this one comes again, in order
    []
    >>> [there.receive(envelope)[0].execution for envelope in here.resend(there.received)]
    [1, 2]
    """

    def __init__(self, *, run: int, slot: int, attempt: int) -> None:
        self.run, self.slot, self.attempt = run, slot, attempt
        self.received = 0
        """The highest number that came, without a gap before it."""
        self._sent = 0
        self._unconfirmed: deque[tuple[int, Message]] = deque()

    def send(self, message: Message) -> Envelope:
        """Return the envelope of a counted message; it is kept until it is confirmed."""
        self._sent += 1
        self._unconfirmed.append((self._sent, message))
        return self._envelope(self._sent, message)

    def send_uncounted(self, message: Message) -> Envelope:
        """Return the envelope of a message that may be lost."""
        return self._envelope(0, message)

    def receive(self, envelope: Envelope) -> list[Message]:
        """Return the message if it is the next one, or uncounted; nothing if it came before or one is missing."""
        self.confirm(envelope.received)
        if envelope.number == 0:
            return [envelope.message]
        if envelope.number != self.received + 1:
            return []
        self.received += 1
        return [envelope.message]

    def confirm(self, received: int) -> None:
        """Forget the messages up to this number: they came."""
        if received > self._sent:
            raise InternalError(f"slot {self.slot} confirms message {received}, but only {self._sent} were sent.")
        while self._unconfirmed and self._unconfirmed[0][0] <= received:
            self._unconfirmed.popleft()

    def resend(self, received: int) -> list[Envelope]:
        """Return, for a new connection, all messages after the last one that the other side has."""
        self.confirm(received)
        return [self._envelope(number, message) for number, message in self._unconfirmed]

    @property
    def unconfirmed(self) -> int:
        """How many messages are kept."""
        return len(self._unconfirmed)

    def _envelope(self, number: int, message: Message) -> Envelope:
        return Envelope(
            run=self.run, slot=self.slot, attempt=self.attempt, number=number, received=self.received, message=message
        )
