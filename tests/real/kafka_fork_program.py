"""Reads a topic with 50 records, forks, and reads it in the child and again: exits with 0 if all came each time.

A program, since a process that forks may have no threads of others: those of gRPC, for one, hang its child.

Arguments: the broker's address, the topic, the decoder.
"""

from __future__ import annotations

import os
import sys
from typing import Any, cast

from headgate.connectors.kafka import consumer_pool
from headgate.connectors.kafka.client_config import ClientConfig
from headgate.connectors.kafka.records import Wanted
from headgate.enumerators.partition import TopicPartition

ROWS = 50
SETTINGS: dict[str, str | int | bool] = {"enable.partition.eof": True, "auto.offset.reset": "error"}
address, topic, chosen = sys.argv[1:]
decoder = cast(Any, chosen)
client = ClientConfig((("bootstrap.servers", address),))
source = TopicPartition(topic, 0)


def read() -> bool:
    """Read all records with a consumer that is left for others then."""
    lease, count = consumer_pool.acquire(client, SETTINGS, decoder), 0
    lease.consumer.assign({source: 0})
    while count < ROWS:
        count += sum(len(each.offsets) for each in lease.consumer.consume(Wanted(), 1000, 500).records)
    lease.release(assigned=[source], failed=False)
    return count == ROWS


before = read()
held = consumer_pool.acquire(client, SETTINGS | {"fetch.wait.max.ms": 7}, decoder)  # in use, not idle
held.consumer.partitions(60_000)  # its threads are at rest then: a lock of theirs would be held for ever in the child
child = os.fork()
if child == 0:
    os._exit(0 if read() else 1)
in_child = os.waitpid(child, 0)[1] == 0
after = read()
held.release(assigned=[], failed=True)
sys.exit(0 if before and in_child and after else 1)
