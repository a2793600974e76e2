"""librdkafka's settings for reading, on top of those for connecting.

Never: override what the user set of prefetching and waiting.
"""

from __future__ import annotations

BYTES_BESIDE_A_RECORD = 512
"""What librdkafka needs for a record beside its key and value, rounded up; its own limit in bytes leaves it out."""


def reading_settings(
    given: dict[str, str | int | bool], buffered_bytes: int, bounded: bool
) -> dict[str, str | int | bool]:
    """Return librdkafka's settings for reading, on top of those for connecting.

    Parameters
    ----------
    given
        Those for connecting. What is set there of prefetching and waiting stays.
    buffered_bytes
        The memory that fetched records may take up before they are rows, about, in bytes.
    bounded
        Whether what is read ends: a micro-batch, of which the next follows soon.
    """
    tuned: dict[str, str | int | bool] = {
        # A quarter each for fetched bytes, the client's records around them, and the batch at hand. A response counts
        # as it travels, compressed, and is decompressed as a whole: small ones, so that this stays within the rest.
        "queued.max.messages.kbytes": min(1024**2, max(1, buffered_bytes // 4096)),
        "queued.min.messages": min(10_000_000, max(1000, buffered_bytes // 2 // BYTES_BESIDE_A_RECORD)),
        "fetch.max.bytes": min(2**30, max(1_048_576, buffered_bytes // 16)),
        # All of it is parsed, even if the range ends before: more makes small micro-batches slow, and nothing faster.
        "max.partition.fetch.bytes": max(65_536, min(524_288, buffered_bytes // 64)),
        # Soon after there is room again; the default of a second leaves the reader without data.
        "fetch.queue.backoff.ms": 5,
        # A broker that waits for records sends this client nothing else: the next task's would wait so long.
        "fetch.wait.max.ms": 10 if bounded else 100,
        "fetch.error.backoff.ms": 50,
        "reconnect.backoff.ms": 50,
        # A topic that brokers do not know any more is gone, not just being made: somebody discovered it.
        "topic.metadata.propagation.max.ms": 5000,
        "reconnect.backoff.max.ms": 1000,
    }
    return {
        **{name: value for name, value in tuned.items() if name not in given},
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
    }
