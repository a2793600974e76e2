"""Decides what a slot does about its stream to the coordinator: register, resend, look the address up again, exit.

Never: stop reading because the coordinator cannot be reached; open a socket (it orders that).

Follows FLIP-27, "Where to run the enumerator"; trap 19.
"""

from __future__ import annotations

import msgspec

from headgate.protocol.messages import Envelope, FromSlot, ToSlot

# What happened.


class SlotStarted(msgspec.Struct, frozen=True):
    """The Spark task began."""


class StreamOpened(msgspec.Struct, frozen=True):
    """A connection to the coordinator is there."""

    connection: int


class StreamBroken(msgspec.Struct, frozen=True):
    """A connection broke, or could not be made."""

    connection: int


class EnvelopeReceived(msgspec.Struct, frozen=True):
    """An envelope came."""

    connection: int
    envelope: Envelope


class LetterPosted(msgspec.Struct, frozen=True):
    """A subtask wants to tell the coordinator something."""

    letter: FromSlot


class SubtaskEnded(msgspec.Struct, frozen=True):
    """A subtask has been cancelled, has failed or was shut down, and all of it is closed."""

    stage: int
    execution: int


class SlotTimePassed(msgspec.Struct, frozen=True):
    """Time went on."""


Event = SlotStarted | StreamOpened | StreamBroken | EnvelopeReceived | LetterPosted | SubtaskEnded | SlotTimePassed

# What is to be done.


class OpenStream(msgspec.Struct, frozen=True):
    """Look the coordinator's address up and connect. Answered by `StreamOpened` or `StreamBroken`."""

    connection: int


class SendEnvelope(msgspec.Struct, frozen=True):
    """Send an envelope on the connection."""

    connection: int
    envelope: Envelope


class Deliver(msgspec.Struct, frozen=True):
    """Hand a letter to the subtask that it is for (`Deploy` makes it)."""

    letter: ToSlot


class ExitSlot(msgspec.Struct, frozen=True):
    """Close everything and end the Spark task; with an error if there is a reason."""

    reason: str | None


Action = OpenStream | SendEnvelope | Deliver | ExitSlot
