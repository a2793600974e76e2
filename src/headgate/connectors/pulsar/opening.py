"""Opens readers of partitions, and says what it means that messages of one are gone, or do not come.

Never: decide whether messages are gone; `ledgers` does.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from headgate.connectors.pulsar.client import NAME, ClientConfig
from headgate.connectors.pulsar.position import Position
from headgate.connectors.pulsar.split import NOT_PARTITIONED, PulsarSplit
from headgate.errors import DataLossError, SourceUnavailableError

if TYPE_CHECKING:
    import pulsar

_WAIT_MS = 100


def open_reader(
    config: ClientConfig, split: PulsarSplit, position: Position | None, arguments: dict[str, Any]
) -> pulsar.Reader:
    """Return a reader of a split's partition from a position on (None: the first message). Blocks.

    Parameters
    ----------
    arguments
        Further ones of `pulsar.Client.create_reader`.

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
    client = config.connect()
    try:
        reader = client.create_reader(split.name, after, **arguments)
    except pulsar.PulsarException as error:
        raise config.error(error, f"read {split.name}", split=split.split_id) from None
    # The client would hold it as long as it lives itself, 50 KB each: only `Reader.close` lets go, which blocks.
    client._consumers.remove(reader)
    return reader


def next_message(config: ClientConfig, reader: pulsar.Reader, split: PulsarSplit, timeout_ms: int) -> Any:
    """Return the next message of a partition, as the client's library for C++ has it; None: there is none. Blocks.

    Raises
    ------
    SourceUnavailableError
        One is there, but did not come within ``timeout_ms``.
    """
    import pulsar

    deadline_s = time.monotonic() + timeout_ms / 1000
    try:
        while True:
            try:
                return reader._reader.read_next(_WAIT_MS)
            except pulsar.Timeout:
                if not reader.has_message_available():
                    return None
                if time.monotonic() > deadline_s:
                    raise did_not_come(
                        config, split, f"though it has messages after {split.position}", timeout_ms
                    ) from None
    except pulsar.PulsarException as error:
        raise config.error(error, f"read {split.name}", split=split.split_id) from None


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
