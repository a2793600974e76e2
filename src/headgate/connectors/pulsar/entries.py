"""Which entries messages came from, which were passed over, and what the brokers say that an entry holds. Pure.

Never: ask a broker, or look at each message of a batch: an id costs as much as a message.

A reader is not given markers, and what a transaction aborted. What else it is not given is lost without a word: a part
of a message that was sent in chunks, what expired (``messageTTLInSeconds``), what came damaged. All of it leaves a gap
between entries. Follows Pulsar's ``getMessageById`` for what the brokers' HTTP API says of an entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from email.message import Message
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from headgate.connectors.pulsar.ledgers import Ledgers
from headgate.connectors.pulsar.position import Position, batch_size

Holds = Literal["a message", "a part of one", "nothing", "nothing yet"]
"""What an entry holds for readers; nothing yet: its transaction is open."""


class Entry(NamedTuple):
    """An entry that messages came from, and the place of the first one of them."""

    ledger: int
    entry: int
    place: int


def entries_of(messages: Sequence[Any]) -> list[Entry]:
    """Return the entries of messages of one partition, in their order."""
    found = list(_entries(messages, by_batch=True))
    if all(one[:2] == (other.ledger, other.entry - 1) for one, other in pairwise(found)):
        return found
    return list(_entries(messages, by_batch=False))  # there is a gap, or a batch of which not all came


def _entries(messages: Sequence[Any], *, by_batch: bool) -> Iterator[Entry]:
    place, before = 0, None
    while place < len(messages):
        message_id = messages[place].message_id()
        at = message_id.ledger_id(), message_id.entry_id()
        if at != before:
            yield Entry(*at, place)
        before = at
        index = message_id.batch_index() if by_batch else -1
        place += max(1, batch_size(message_id.serialize()) - index) if index >= 0 else 1


def passed_over(
    entries: Sequence[Entry], last: Position | None, until: Position | None, ledgers: Ledgers
) -> Iterator[tuple[int, int]]:
    """Yield the entries that no message came from, in their order, as numbers of ledgers and of entries.

    Parameters
    ----------
    entries
        What messages came from.
    last
        The position before them; None: the beginning.
    until
        The position up to which no others will come; None: the last one of the entries.
    ledgers
        What there is; asked after the messages came, if these are of several ledgers. Of others nothing is known.
    """
    began = [(each.ledger, each.entry) for each in entries]
    if until is not None:
        began = [each for each in began if each <= (until.ledger, until.entry)]
        if until.ledger in ledgers:
            began.append((until.ledger, until.entry + 1))
    if not began:
        return
    if last is None:
        last = min(ledgers.beginning or Position(began[0][0], -1), Position(began[0][0], -1))
    for (ledger, entry), (to_ledger, to_entry) in pairwise([(last.ledger, last.entry), *began]):
        if ledger == to_ledger:
            yield from ((ledger, number) for number in range(entry + 1, to_entry))
            continue
        for each in ledgers.ledgers:
            if ledger <= each.id < to_ledger:
                first = entry + 1 if each.id == ledger else 0
                yield from ((each.id, number) for number in range(first, each.entries))
        yield from ((to_ledger, number) for number in range(to_entry))


def holds(headers: Message) -> Holds:
    """Return what an entry holds, by the headers of the answer of whoever asks for it."""
    if "X-Pulsar-marker-type" in headers or headers.get("X-Pulsar-txn-aborted") == "true":
        return "nothing"
    if headers.get("X-Pulsar-txn-uncommitted") == "true":
        return "nothing yet"
    if "X-Pulsar-txnid-most-bits" in headers and "X-Pulsar-txn-aborted" not in headers:
        return "nothing"  # older brokers do not say what became of the transaction
    return "a part of one" if int(headers.get("X-Pulsar-num-chunks-from-msg") or 1) > 1 else "a message"


def is_encrypted(message: Any) -> bool:
    """Return whether a message, or a batch that came as one, could not be decrypted."""
    context = message.encryption_context()
    return context is not None and bool(context.is_decryption_failed())
