"""Opens readers of partitions, and says what it means that messages of one are gone, cannot be read, or do not come.

Never: decide whether messages are gone; `ledgers` does.
"""

from __future__ import annotations

import os
import time
from typing import Any

from headgate.connectors.pulsar.client import NAME, ClientConfig
from headgate.connectors.pulsar.position import Position, after_message
from headgate.connectors.pulsar.split import NOT_PARTITIONED, PulsarSplit
from headgate.errors import BadDataError, DataLossError, SourceError, SourceUnavailableError

_WAIT_MS = 100


def open_reader(config: ClientConfig, split: PulsarSplit, position: Position | None, arguments: dict[str, Any]) -> Any:
    """Return a reader of a split's partition from a position on (None: the first message). Blocks.

    It is the one of the client's library for C++: what wraps it makes an object for each message, and knows no call
    that returns at once. It returns what it cannot decrypt, too: else the client drops it without a word.

    Parameters
    ----------
    arguments
        Further ones of `pulsar.Client.create_reader`; ``crypto_key_reader`` is the path of a key.

    Raises
    ------
    SourceError
        The brokers refuse it.
    SourceUnavailableError
        They do not answer.
    """
    import pulsar

    number = 0 if split.partition == NOT_PARTITIONED else split.partition
    after = (
        pulsar.MessageId.earliest
        if position is None
        else pulsar._pulsar.MessageId(number, position.ledger, position.entry, position.batch_index)
    )
    key = arguments.get("crypto_key_reader")
    if key is not None:
        if not os.access(key, os.R_OK):
            raise SourceError(
                f"{NAME}: the private key in {key} cannot be read. The file that pulsar.reader.defaultCryptoKeyReader "
                "names must be on the driver and on all executors.",
                source=NAME, path=key,
            )  # fmt: skip
        arguments = arguments | {"crypto_key_reader": pulsar.CryptoKeyReader("", key)}
    client, consume = config.connect(), pulsar.ConsumerCryptoFailureAction.CONSUME
    try:
        reader = client.create_reader(split.name, after, crypto_failure_action=consume, **arguments)
    except pulsar.PulsarException as error:
        raise config.error(error, f"read {split.name}", split=split.split_id) from None
    # The client would hold it as long as it lives itself, 50 KB each: only `Reader.close` lets go, which blocks.
    client._consumers.remove(reader)
    return reader._reader


def release(reader: Any) -> None:
    """Close a reader of `open_reader` without waiting for the brokers."""
    reader.close_async(lambda _: None)


class PartitionReaders:
    """Opens readers that are read message by message, and waits for these.

    Parameters
    ----------
    config
        Makes the client.
    arguments
        Further arguments of `pulsar.Client.create_reader`.
    timeout_ms
        The longest wait for messages that must be there, in milliseconds.
    """

    def __init__(self, config: ClientConfig, arguments: dict[str, Any], timeout_ms: int) -> None:
        self._config = config
        self._arguments = arguments
        self._timeout_ms = timeout_ms

    def open(self, split: PulsarSplit, position: Position | None, **arguments: Any) -> Any:
        """Return a reader, with arguments that win over those of all; as `open_reader`."""
        return open_reader(self._config, split, position, self._arguments | arguments)

    def next_message(self, reader: Any, split: PulsarSplit) -> Any:
        """Return the next message of a partition; None: there is none now. Blocks.

        Raises
        ------
        SourceUnavailableError
            One is there, but did not come in time.
        """
        import pulsar

        deadline_s = time.monotonic() + self._timeout_ms / 1000
        try:
            while True:
                try:
                    return reader.read_next(_WAIT_MS)
                except pulsar.Timeout:
                    if not reader.has_message_available():
                        return None
                    if time.monotonic() > deadline_s:
                        why = f"though it has messages after {split.position}"
                        raise did_not_come(self._config, split, why, self._timeout_ms) from None
        except pulsar.PulsarException as error:
            raise self._config.error(error, f"read {split.name}", split=split.split_id) from None


def did_not_come(config: ClientConfig, split: PulsarSplit, why: str, timeout_ms: int) -> SourceUnavailableError:
    """Return the error for messages that must be there and do not come."""
    return SourceUnavailableError(
        f"{NAME}: nothing of {split.name} came for {timeout_ms} ms (pollTimeoutMs), {why}.",
        source=NAME, address=config.service_url, split=split.split_id,
    )  # fmt: skip


def messages_gone(split: PulsarSplit, beginning: Position | None) -> DataLossError:
    """Return the error for messages after a split's position that are lost, or may be; where what is there begins."""
    return DataLossError(
        f"{NAME}: messages of {split.name} after {split.position} are gone, or may be: their ledger was deleted (what "
        f"is there begins at {beginning}). The topic was trimmed by its retention, or deleted and made again. Set "
        "predefinedSubscription so that Pulsar keeps what was not read, or failOnDataLoss to false to go on with what "
        "is there.",
        source=NAME, path=split.name, split=split.split_id, position=str(split.position), available=str(beginning),
    )  # fmt: skip


def in_chunks(split: PulsarSplit) -> SourceError:
    """Return the error for a message of a partition that is in several entries."""
    return SourceError(
        f"{NAME}: {split.name} has messages that were sent in chunks (chunkingEnabled); these are not read: a position "
        "may lie between the chunks of one. Send them whole: raise the brokers' maxMessageSize.",
        source=NAME, path=split.name, split=split.split_id, final=True,
    )  # fmt: skip


def not_delivered(split: PulsarSplit, place: Position) -> DataLossError:
    """Return the error for an entry with messages that is there, and that no message came from."""
    return DataLossError(
        f"{NAME}: the brokers have the entry {place} of {split.name}, but its messages never came, though later ones "
        "did. They expired (messageTTLInSeconds of the namespace counts for readers, too), or are damaged. Set "
        "failOnDataLoss to false to go on without them.",
        source=NAME, path=split.name, split=split.split_id, position=str(place),
    )  # fmt: skip


def not_decrypted(split: PulsarSplit, message: Any) -> BadDataError:
    """Return the error for a message, or a batch, that cannot be decrypted."""
    place = str(after_message(message.message_id().serialize()))
    keys = ", ".join(sorted(each.key for each in message.encryption_context().keys()))  # noqa: SIM118
    return BadDataError(
        f"{NAME}: the message {place} of {split.name} is encrypted with the key {keys!r} and cannot be decrypted. Set "
        "pulsar.reader.defaultCryptoKeyReader to the file of the private key that belongs to it, or failOnDataLoss to "
        "false to go on without what cannot be read.",
        source=NAME, path=split.name, split=split.split_id, message_id=place,
    )  # fmt: skip
