"""Makes the columns that a Kafka decoder returns, of values written in a test.

Never: ask a broker.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headgate.connectors.kafka.records import Records
from headgate.enumerators.partition import TopicPartition


def records_of(
    values: Sequence[bytes | None], *, lines: bool = True, first_offset: int = 0, partition: int = 3
) -> Records:
    """Return records of the topic ``flights`` with these values, keys ``k0``, ``k1`` ..., and a second between them."""
    end = b"\n" if lines else b""
    texts = [end if value is None else value + end for value in values]
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    valid = np.packbits([value is not None for value in values], bitorder="little").tobytes()
    count = len(values)
    places = np.arange(first_offset, first_offset + count, dtype=np.int64)
    return Records(
        TopicPartition("flights", partition),
        places,
        pa.array([b"k%d" % place for place in places], pa.binary()),
        pa.Array.from_buffers(
            pa.binary(), count, [pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))]
        ),
        places * 1000,
        np.zeros(count, np.int32),
        pa.array(
            [[{"key": "h", "value": b"v"}, {"key": "", "value": None}] if place % 2 else None for place in places],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    )
