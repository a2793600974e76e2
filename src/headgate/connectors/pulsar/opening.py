"""Opens readers of partitions, and says what it means that messages of one are gone: for tasks and for the planner.

Never: decide whether messages are gone; `ledgers` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.connectors.pulsar.client import NAME, ClientConfig
from headgate.connectors.pulsar.position import Position
from headgate.connectors.pulsar.split import NOT_PARTITIONED, PulsarSplit
from headgate.errors import DataLossError

if TYPE_CHECKING:
    import pulsar


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
        return client.create_reader(split.name, after, **arguments)
    except pulsar.PulsarException as error:
        raise config.error(error, f"read {split.name}", split=split.split_id) from None


def messages_gone(split: PulsarSplit, beginning: Position | None) -> DataLossError:
    """Return the error for messages after a split's position that are lost, or may be; where what is there begins."""
    return DataLossError(
        f"{NAME}: messages of {split.name} after {split.position} are gone, or may be: their ledger was deleted (what "
        f"is there begins at {beginning}). The topic was trimmed by its retention, or deleted and made again. Set "
        "predefinedSubscription so that Pulsar keeps what was not read, or failOnDataLoss to false to go on with what "
        "is there.",
        source=NAME, path=split.name, split=split.split_id, position=str(split.position), available=str(beginning),
    )  # fmt: skip
