"""What passes a connection between two slots: frames of many channels, and which of them is legal when.

Never: trust a length before the other side has shown the secret; look into rows; touch a socket.

A connection begins with `PREAMBLE`, both ways; then come frames: a head of 16 bytes (kind, channel's number, the sizes
of what follows), metadata in MessagePack, a body. Whoever dials opens channels with odd numbers, the other with even
ones, and no number is used again. Number 0 is the connection itself.

    frame     from             metadata          body              why
    --------  ---------------  ----------------  ----------------  ------------------------------------------------
    HELLO     who dials        `Hello`                             the first one: who it is
    ACCEPTED  who is dialed                                        the answer: the connection may be used
    DENIED    who is dialed                      why, in UTF-8     the answer, and the last frame
    TWICE     who is dialed                                        the answer, and the last frame: it has dialed, too
    OPEN      consumer         `ChannelRequest`  schema (IPC)      it wants to be connected to the channel's producer
    WELCOME   producer                                             it is
    REFUSED   producer                           why, in UTF-8     it will not be
    ROWS      producer         `RowsFrame`       batch (IPC)
    EVENT     producer         the event
    CREDIT    consumer         how many
    CLOSE     consumer                                             it wants nothing any more
    GOODBYE   producer                           why, in UTF-8     nothing follows

An end of a channel is in one of these states; a frame that comes where it has no row breaks the connection, except when
the end is closed: the other one may not have known.

    state      frame           next       of which end
    ---------  --------------  ---------  ------------
    opening    WELCOME comes   receiving  consumer's
    opening    REFUSED comes   closed
    opening    CLOSE goes      closed
    receiving  ROWS comes      receiving
    receiving  EVENT comes     receiving
    receiving  CREDIT goes     receiving
    receiving  GOODBYE comes   closed
    receiving  CLOSE goes      closed
    waiting    WELCOME goes    serving    producer's
    waiting    REFUSED goes    closed
    waiting    CLOSE comes     closed
    serving    ROWS goes       serving
    serving    EVENT goes      serving
    serving    CREDIT comes    serving
    serving    GOODBYE goes    closed
    serving    CLOSE comes     closed
"""

from __future__ import annotations

import enum
import struct

import msgspec

from headgate.protocol.channels import ChannelId

VERSION = 3
"""Of what passes a connection. Slots of one query run one version; anybody else is refused."""
FAMILY = b"headgate-data/"
PREAMBLE = FAMILY + VERSION.to_bytes(2, "big")
HEAD = struct.Struct("<BxxxIII")
"""Kind, channel's number, size of the metadata, size of the body."""
MAX_METADATA = 16 << 10
MAX_HELLO = 4 << 10
"""Until the other side has shown the secret, or accepted ours: of metadata and body together."""
MAX_BODY = (1 << 32) - 1


class Kind(enum.IntEnum):
    """A frame's kind."""

    HELLO = 1
    ACCEPTED = 2
    DENIED = 3
    OPEN = 4
    WELCOME = 5
    REFUSED = 6
    ROWS = 7
    EVENT = 8
    CREDIT = 9
    CLOSE = 10
    GOODBYE = 11
    TWICE = 12


GREETINGS = frozenset({Kind.HELLO, Kind.ACCEPTED, Kind.DENIED, Kind.TWICE})
CONSUMERS = frozenset({Kind.OPEN, Kind.CREDIT, Kind.CLOSE})
"""What a consumer sends."""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Who dials: its run and secret, and where it listens itself."""

    run: int
    secret: str
    address: str


class ChannelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer asks for. The schema of the rows that it expects is the body."""

    channel: ChannelId
    generation: int


class RowsFrame(msgspec.Struct, frozen=True, array_like=True):
    """What a `headgate.protocol.channels.Buffer` has beside its rows."""

    num_rows: int
    size_bytes: int
    unfiltered: bool


ENCODER = msgspec.msgpack.Encoder()
HELLOS = msgspec.msgpack.Decoder(Hello)
REQUESTS = msgspec.msgpack.Decoder(ChannelRequest)
ROWS_FRAMES = msgspec.msgpack.Decoder(RowsFrame)
CREDITS = msgspec.msgpack.Decoder(int)


class IllegalFrame(ValueError):
    """The other side sent what no slot of this version sends."""


def head(kind: Kind, number: int, metadata: bytes = b"", body_size: int = 0) -> bytes:
    """Return a frame without its body."""
    return HEAD.pack(kind, number, len(metadata), body_size) + metadata


class State(enum.Enum):
    """Of an end of a channel."""

    OPENING = "opening"
    RECEIVING = "receiving"
    WAITING = "waiting"
    SERVING = "serving"
    CLOSED = "closed"


NEXT: dict[tuple[State, str, Kind], State] = {
    (State.OPENING, "comes", Kind.WELCOME): State.RECEIVING,
    (State.OPENING, "comes", Kind.REFUSED): State.CLOSED,
    (State.OPENING, "goes", Kind.CLOSE): State.CLOSED,
    (State.RECEIVING, "comes", Kind.ROWS): State.RECEIVING,
    (State.RECEIVING, "comes", Kind.EVENT): State.RECEIVING,
    (State.RECEIVING, "goes", Kind.CREDIT): State.RECEIVING,
    (State.RECEIVING, "comes", Kind.GOODBYE): State.CLOSED,
    (State.RECEIVING, "goes", Kind.CLOSE): State.CLOSED,
    (State.WAITING, "goes", Kind.WELCOME): State.SERVING,
    (State.WAITING, "goes", Kind.REFUSED): State.CLOSED,
    (State.WAITING, "comes", Kind.CLOSE): State.CLOSED,
    (State.SERVING, "goes", Kind.ROWS): State.SERVING,
    (State.SERVING, "goes", Kind.EVENT): State.SERVING,
    (State.SERVING, "comes", Kind.CREDIT): State.SERVING,
    (State.SERVING, "goes", Kind.GOODBYE): State.CLOSED,
    (State.SERVING, "comes", Kind.CLOSE): State.CLOSED,
}
"""The table above: state, direction, frame."""


class ConnectionChannels:
    """The channels' ends at one side of a connection, by number: their states.

    Parameters
    ----------
    dialed
        This side did: its consumers' numbers are odd.
    """

    def __init__(self, *, dialed: bool) -> None:
        self._own = int(dialed)
        self._next_own = 1 if dialed else 2
        self._next_other = 2 if dialed else 1
        self._states: dict[int, State] = {}

    def open(self) -> int:
        """Return the number for a consumer here: OPEN goes."""
        number = self._next_own
        self._next_own += 2
        self._states[number] = State.OPENING
        return number

    def goes(self, number: int, kind: Kind) -> bool:
        """Take note of a frame that is to go; return whether it may: the end may be closed by now."""
        state = self._states.get(number)
        then = None if state is None else NEXT.get((state, "goes", kind))
        if then is None:
            return False
        self._enter(number, then)
        return True

    def comes(self, number: int, kind: Kind) -> bool:
        """Take note of a frame; return whether it matters: to an end that is closed it does not.

        Raises
        ------
        IllegalFrame
            It must not come now.
        """
        if kind is Kind.OPEN:
            if number != self._next_other:
                raise IllegalFrame(f"it opens number {number}, not {self._next_other}")
            self._next_other += 2
            self._states[number] = State.WAITING
            return True
        own = number % 2 == self._own
        was_opened = 0 < number < (self._next_own if own else self._next_other)
        if kind in GREETINGS or not was_opened or (kind in CONSUMERS) == own:
            raise IllegalFrame(f"{kind.name} comes for number {number}")
        state = self._states.get(number)
        if state is None:
            return False
        then = NEXT.get((state, "comes", kind))
        if then is None:
            raise IllegalFrame(f"{kind.name} comes while number {number} is {state.value}")
        self._enter(number, then)
        return True

    def state(self, number: int) -> State:
        """Return the state of an end."""
        return self._states.get(number, State.CLOSED)

    def clear(self) -> None:
        """Close all ends: the connection is gone."""
        self._states.clear()

    def _enter(self, number: int, state: State) -> None:
        if state is State.CLOSED:
            del self._states[number]
        else:
            self._states[number] = state
