"""A place in a partition: after a message of an entry of a ledger.

Never: ask a broker, or order places of two partitions.

Pulsar stores a partition as a row of ledgers with rising ids, a ledger as entries numbered from 0, and a batch of
messages as one entry, in which they are numbered from 0. Follows Pulsar's ``MessageIdData`` for message ids as bytes.
"""

from __future__ import annotations

import msgspec

WHOLE_ENTRY = 2**31 - 1
"""As a position's ``batch_index``: after the entry, however many messages it has."""

_LEDGER, _ENTRY, _BATCH_INDEX, _BATCH_SIZE = 1, 2, 4, 6
_FIRST_CHUNK = b"\x3a"
"""Before a message id in a message id, in its field 7."""


class Position(msgspec.Struct, frozen=True, order=True, array_like=True):
    """After which message reading continues.

    Parameters
    ----------
    ledger
        The ledger's id.
    entry
        The entry's number in the ledger; -1: before its first one.
    batch_index
        The message's number in the entry, if further messages of it follow.
    """

    ledger: int
    entry: int
    batch_index: int = WHOLE_ENTRY

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}" + ("" if self.batch_index == WHOLE_ENTRY else f":{self.batch_index}")

    @property
    def entries_read(self) -> int:
        """How many of its ledger's entries are before it, those that were read in part not counted."""
        return self.entry + (self.batch_index == WHOLE_ENTRY)


def after_message(message_id: bytes) -> Position:
    """Return the position after a message, by its id as ``MessageId.serialize()`` returns it.

    Raises
    ------
    ValueError
        The bytes are no message id.
    """
    fields = _parsed(message_id)
    index, size = fields.get(_BATCH_INDEX, -1), fields.get(_BATCH_SIZE, 0)
    is_last = index < 0 or index == size - 1
    return Position(fields[_LEDGER], fields[_ENTRY], WHOLE_ENTRY if is_last else index)


def before_message(message_id: bytes) -> Position:
    """Return the position from which a message is read next; raises as `after_message`."""
    fields = _parsed(message_id)
    index = fields.get(_BATCH_INDEX, -1)
    if index > 0:
        return Position(fields[_LEDGER], fields[_ENTRY], index - 1)
    return Position(fields[_LEDGER], fields[_ENTRY] - 1)


def is_beyond(message_id: bytes, stop: Position) -> bool:
    """Return whether a message comes after a stop that `after_message` made, of an id of any origin.

    Ids need not have their batch's size (those that people write down have not): then the stop after the last message
    of a batch is in the batch, and `after_message` of that message, as it is read, is beyond it.
    """
    fields = _parsed(message_id)
    return Position(fields[_LEDGER], fields[_ENTRY], max(0, fields.get(_BATCH_INDEX, 0))) > stop


def batch_size(message_id: bytes) -> int:
    """Return how many messages the batch of a message has; 0: it is in none; raises as `after_message`."""
    return _parsed(message_id).get(_BATCH_SIZE, 0)


def is_chunked(message_id: bytes) -> bool:
    """Return whether a message was sent in several entries; ids of those say where the first one is."""
    return _FIRST_CHUNK in message_id and _has_first_chunk(message_id)


def _has_first_chunk(data: bytes) -> bool:
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        if key == _FIRST_CHUNK[0]:
            return True
        if key & 7:
            return False
        _, place = _varint(data, place)
    return False


def _parsed(message_id: bytes) -> dict[int, int]:
    try:
        found = _fields(message_id)
    except IndexError:
        found = {}
    if not found.keys() >= {_LEDGER, _ENTRY}:
        raise ValueError("the bytes of a message id, as MessageId.serialize() returns them")
    return found


def _fields(data: bytes) -> dict[int, int]:
    """Return the numbers of a protobuf message by field; other kinds of fields end it."""
    found: dict[int, int] = {}
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        if key & 7:
            break
        number, place = _varint(data, place)
        found[key >> 3] = number - (1 << 64) if number >> 63 else number
    return found


def _varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[place]
        number |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if not byte & 0x80:
            return number, place
