"""What Kafka's sink stages: all that a record is made of, in columns that later versions know.

Never: read or write anything; see `headgate.sink.staging`.
"""

from __future__ import annotations

import pyarrow as pa

from headgate.connectors.kafka.client_config import ClientConfig
from headgate.connectors.kafka.sink.options import KafkaSink, RowColumns
from headgate.sink.staging import StagedItem
from headgate.source.serialization import VersionedSerializer

STAGED_SCHEMA = pa.schema(
    {
        "value": pa.binary(), "key": pa.binary(), "partition": pa.int32(),
        "headers": pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
        "topic": pa.string(),
    }
)  # fmt: skip
"""All staged rows have the same columns, so that a later program publishes what an earlier one staged."""


ITEM_SERIALIZER: VersionedSerializer[StagedItem] = VersionedSerializer(
    StagedItem, version=1, what="staged rows of headgate.kafka's sink"
)
"""Version 1 since 0.3.0."""


IF_GONE = (
    "If the checkpoint is older than the brokers' offsets.retention.minutes, they probably were: the brokers have "
    "forgotten. "
)
"""What to say of staged rows that are gone."""


def staged_sink(client: ClientConfig, topic: str | None) -> KafkaSink:
    """Return the sink that writes staged rows. ``topic``: of all rows; None: they name theirs."""
    columns = {name: number for number, name in enumerate(STAGED_SCHEMA.names) if name != "topic" or topic is None}
    return KafkaSink(client, RowColumns(**columns), topic, exactly_once=True)


def staged(sink: KafkaSink, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of a sink with the columns of staged ones."""
    names = {name: getattr(sink.columns, name) for name in STAGED_SCHEMA.names}
    return pa.record_batch(
        [
            pa.nulls(batch.num_rows, field.type)
            if names[field.name] is None or (field.name == "topic" and sink.topic is not None)
            else batch.column(names[field.name]).cast(field.type)
            for field in STAGED_SCHEMA
        ],
        schema=STAGED_SCHEMA,
    )
