"""What planners, tasks and the host of an application's alignment groups say to one another.

Never: be stored. Both sides run the same version: they belong to one Spark application.

A member speaks and the host answers, one `Standing` per message. A task says one `EventTimesSeen` and gets `Noted`.
"""

from __future__ import annotations

from typing import Any

import msgspec


class HostEndpoint(msgspec.Struct, frozen=True):
    """Where an application's planners and tasks meet, and the secret to be let in.

    Parameters
    ----------
    path
        The host's Unix socket, for planners and for tasks on the same machine.
    token
        The secret.
    addresses
        Where tasks on other machines report, each ``(address, port)``; the first that answers will do. Empty: all run
        on this one.
    """

    path: str
    token: str
    addresses: tuple[tuple[str, int], ...] = ()


class ReportTo(msgspec.Struct, frozen=True):
    """Where a task says what event times it read, for which planner."""

    endpoint: HostEndpoint
    member: str


class Join(msgspec.Struct, frozen=True, tag=True):
    """A planner becomes a member of a group. First on each of its connections."""

    token: str
    member: str
    group: str


class Vote(msgspec.Struct, frozen=True, tag=True):
    """Where a planner's slowest split is.

    Parameters
    ----------
    vote_ms
        The lowest event time that it has still to read, in milliseconds; None: it has no vote.
    moves
        How many plans with something to read it has made: another number is progress, though the time be the same.
    slowest
        The source and the split that the vote comes from, for people.
    seen
        Up to which number it has got the reports of its tasks.
    """

    vote_ms: int | None
    moves: int = 0
    slowest: str = ""
    seen: int = 0


class Renew(msgspec.Struct, frozen=True, tag=True):
    """The planner's process lives: it may be busy with a long batch."""


class EventTimesSeen(msgspec.Struct, frozen=True, tag=True):
    """A task ended: the highest event time of each split that it read, in milliseconds."""

    token: str
    member: str
    event_times: dict[str, int]


class Standing(msgspec.Struct, frozen=True, tag=True):
    """What a member needs to know.

    Parameters
    ----------
    others
        The last votes of the group's other members, by member. One that has not voted yet has the earliest time there
        is: nobody is to read ahead of what it may have.
    event_times
        What tasks reported after the number ``seen`` of its vote, by split.
    seen
        The number of the last of these reports.
    """

    others: dict[str, Vote] = {}
    event_times: dict[str, int] = {}
    seen: int = 0


class Noted(msgspec.Struct, frozen=True, tag=True):
    """The answer to a task."""


class Unknown(msgspec.Struct, frozen=True, tag=True):
    """The answer to a member whose lease has run out: it is to join again."""


Message = Join | Vote | Renew | EventTimesSeen | Standing | Noted | Unknown

_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_LENGTH_BYTES = 4
_LONGEST_BYTES = 16 << 20


def send(connection: Any, message: Message) -> None:
    """Write a message to a socket. Blocks."""
    data = msgspec.json.encode(message)
    connection.sendall(len(data).to_bytes(_LENGTH_BYTES, "big") + data)


def receive(connection: Any) -> Message:
    """Read a message from a socket. Blocks.

    Raises
    ------
    EOFError
        The other side is gone.
    OSError
        The connection is broken, or timed out.
    """
    length = int.from_bytes(_exactly(connection, _LENGTH_BYTES), "big")
    if length > _LONGEST_BYTES:
        raise OSError(f"a message of {length} bytes: the peer is not a Headgate planner")
    try:
        return _DECODER.decode(_exactly(connection, length))
    except msgspec.DecodeError as error:
        raise OSError(f"the peer is not a Headgate planner: {error}") from error


def _exactly(connection: Any, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            raise EOFError("the other side has closed the connection")
        data += piece
    return data
