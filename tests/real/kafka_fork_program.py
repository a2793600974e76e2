"""Reads a topic with 50 records, forks, gets a consumer in the child, and reads again: exits with 0 if all is well.

A program, since a process that forks may have no threads of others: those of gRPC, for one, hang its child. For the
same reason the child does not read: a thread of the parent's consumers may have been looking up an address when it
forked, and the lock of that is held for ever there.

Arguments: the broker's address, the topic, the decoder.
"""

from __future__ import annotations

import faulthandler
import gc
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
    faulthandler.dump_traceback_later(120, exit=True)
    lease, count = consumer_pool.acquire(client, SETTINGS, decoder), 0
    lease.consumer.assign({source: 0})
    while count < ROWS:
        count += sum(len(each.offsets) for each in lease.consumer.consume(Wanted(), 1000, 500).records)
    lease.release(assigned=[source], failed=False)
    faulthandler.cancel_dump_traceback_later()
    return count == ROWS


before = read()
held = consumer_pool.acquire(client, SETTINGS | {"fetch.wait.max.ms": 7}, decoder)  # in use, not idle
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(60, exit=True)
    own = consumer_pool.acquire(client, SETTINGS, decoder).consumer
    (parents,) = consumer_pool._pools_of_parents
    gc.collect()
    # A consumer that is let go of waits for its threads, which are not in this process.
    os._exit(0 if own not in [consumer for _, consumer, _ in parents.idle] and len(parents.idle) == 1 else 1)
in_child = os.waitpid(child, 0)[1] == 0
after = read()
held.release(assigned=[], failed=True)
print(f"before: {before}, in the child: {in_child}, after: {after}")
sys.exit(0 if before and in_child and after else 1)
