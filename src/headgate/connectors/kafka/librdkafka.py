"""librdkafka's C interface: what bulk clients and compiled functions call, and the layout of what it takes and gives.

Never: load a library that was not checked: `check_library` says why not.

The library is the one inside confluent-kafka's wheel. All that is relied on is librdkafka's public interface, whose ABI
the ``.so.1`` in its name fixes: the struct ``rd_kafka_message_t`` and the functions of `FUNCTIONS`.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable, Mapping
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from pathlib import Path
from typing import Any

from headgate.connectors.kafka.consumer import client_log

OLDEST, NEWEST = 0x02080000, 0x03000000
"""Versions of librdkafka: from, and below."""


class Message(ctypes.Structure):
    """``rd_kafka_message_t``; the compiled functions have its offsets below."""

    _fields_ = [
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    ]


class Assigned(ctypes.Structure):
    """The beginning of ``rd_kafka_topic_partition_t``."""

    _fields_ = [
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
    ]


class Part(ctypes.Structure):
    """``rd_kafka_vu_t``: one part of a row for ``rd_kafka_produceva``; the compiled function has its offsets."""

    _fields_ = [("kind", c_int), ("first", c_int64), ("second", c_int64), ("rest", c_int64 * 6)]


class MetadataTopic(ctypes.Structure):
    """``rd_kafka_metadata_topic_t``."""

    _fields_ = [("topic", c_char_p), ("partition_count", c_int), ("partitions", c_void_p), ("err", c_int)]


class Metadata(ctypes.Structure):
    """The beginning of ``rd_kafka_metadata_t``."""

    _fields_ = [
        ("broker_count", c_int),
        ("brokers", c_void_p),
        ("topic_count", c_int),
        ("topics", POINTER(MetadataTopic)),
    ]


OnError = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)
OnLog = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_char_p)

FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "rd_kafka_abort_transaction": (c_void_p, [c_void_p, c_int]),
    "rd_kafka_assign": (c_int, [c_void_p, c_void_p]),
    "rd_kafka_begin_transaction": (c_void_p, [c_void_p]),
    "rd_kafka_commit_transaction": (c_void_p, [c_void_p, c_int]),
    "rd_kafka_conf_destroy": (None, [c_void_p]),
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_conf_set_dr_msg_cb": (None, [c_void_p, c_void_p]),
    "rd_kafka_conf_set_error_cb": (None, [c_void_p, OnError]),
    "rd_kafka_conf_set_log_cb": (None, [c_void_p, OnLog]),
    "rd_kafka_conf_set_opaque": (None, [c_void_p, c_void_p]),
    "rd_kafka_consume_batch_queue": (c_ssize_t, [c_void_p, c_int, c_void_p, c_size_t]),
    "rd_kafka_consumer_group_metadata_destroy": (None, [c_void_p]),
    "rd_kafka_consumer_group_metadata_new": (c_void_p, [c_char_p]),
    "rd_kafka_destroy": (None, [c_void_p]),
    "rd_kafka_destroy_flags": (None, [c_void_p, c_int]),
    "rd_kafka_err2str": (c_char_p, [c_int]),
    "rd_kafka_error_code": (c_int, [c_void_p]),
    "rd_kafka_error_destroy": (None, [c_void_p]),
    "rd_kafka_error_is_fatal": (c_int, [c_void_p]),
    "rd_kafka_error_is_retriable": (c_int, [c_void_p]),
    "rd_kafka_error_string": (c_char_p, [c_void_p]),
    "rd_kafka_error_txn_requires_abort": (c_int, [c_void_p]),
    "rd_kafka_fatal_error": (c_int, [c_void_p, c_char_p, c_size_t]),
    "rd_kafka_flush": (c_int, [c_void_p, c_int]),
    "rd_kafka_get_watermark_offsets": (c_int, [c_void_p, c_char_p, c_int32, POINTER(c_int64), POINTER(c_int64)]),
    "rd_kafka_header_add": (c_int, [c_void_p, c_void_p, c_ssize_t, c_void_p, c_ssize_t]),
    "rd_kafka_header_get_all": (c_int, [c_void_p, c_size_t, c_void_p, c_void_p, c_void_p]),
    "rd_kafka_headers_destroy": (None, [c_void_p]),
    "rd_kafka_headers_new": (c_void_p, [c_size_t]),
    "rd_kafka_incremental_assign": (c_void_p, [c_void_p, c_void_p]),
    "rd_kafka_incremental_unassign": (c_void_p, [c_void_p, c_void_p]),
    "rd_kafka_init_transactions": (c_void_p, [c_void_p, c_int]),
    "rd_kafka_mem_malloc": (c_void_p, [c_void_p, c_size_t]),
    "rd_kafka_message_destroy": (None, [c_void_p]),
    "rd_kafka_message_headers": (c_int, [c_void_p, c_void_p]),
    "rd_kafka_message_timestamp": (c_int64, [c_void_p, c_void_p]),
    "rd_kafka_metadata": (c_int, [c_void_p, c_int, c_void_p, POINTER(POINTER(Metadata)), c_int]),
    "rd_kafka_metadata_destroy": (None, [c_void_p]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_outq_len": (c_int, [c_void_p]),
    "rd_kafka_poll": (c_int, [c_void_p, c_int]),
    "rd_kafka_poll_set_consumer": (c_int, [c_void_p]),
    "rd_kafka_produceva": (c_void_p, [c_void_p, c_void_p, c_size_t]),
    "rd_kafka_purge": (c_int, [c_void_p, c_int]),
    "rd_kafka_query_watermark_offsets": (
        c_int, [c_void_p, c_char_p, c_int32, POINTER(c_int64), POINTER(c_int64), c_int]
    ),
    "rd_kafka_queue_destroy": (None, [c_void_p]),
    "rd_kafka_queue_get_consumer": (c_void_p, [c_void_p]),
    "rd_kafka_queue_io_event_enable": (None, [c_void_p, c_int, c_char_p, c_size_t]),
    "rd_kafka_queue_length": (c_size_t, [c_void_p]),
    "rd_kafka_queue_yield": (None, [c_void_p]),
    "rd_kafka_send_offsets_to_transaction": (c_void_p, [c_void_p, c_void_p, c_void_p, c_int]),
    "rd_kafka_set_log_queue": (c_int, [c_void_p, c_void_p]),
    "rd_kafka_topic_destroy": (None, [c_void_p]),
    "rd_kafka_topic_name": (c_char_p, [c_void_p]),
    "rd_kafka_topic_new": (c_void_p, [c_void_p, c_char_p, c_void_p]),
    "rd_kafka_topic_partition_list_add": (POINTER(Assigned), [c_void_p, c_char_p, c_int32]),
    "rd_kafka_topic_partition_list_destroy": (None, [c_void_p]),
    "rd_kafka_topic_partition_list_new": (c_void_p, [c_int]),
    "rd_kafka_version": (c_int, []),
}  # fmt: skip
PRODUCER, CONSUMER, WITHOUT_CLOSE = 0, 1, 0x8
TOPIC_HANDLE, PARTITION, VALUE, KEY, FLAGS, HEADERS = 2, 3, 4, 5, 7, 10
"""Kinds of a `Part`."""
COPY = 2
"""The flag of a row whose bytes librdkafka copies."""
QUEUED, IN_FLIGHT = 1, 2
"""What ``rd_kafka_purge`` drops."""


def check_library() -> None:
    """Raise an ImportError that says why, if bulk decoding cannot be used with what is installed here."""
    library()


@functools.cache
def library() -> Any:
    """Return the library, with the functions of `FUNCTIONS`. Raises ImportError as `check_library`."""
    import confluent_kafka

    home = Path(confluent_kafka.__file__).parent
    found = sorted(
        [*home.parent.glob("confluent_kafka.libs/librdkafka-*.so*"), *home.glob(".dylibs/librdkafka*.dylib")]
    )
    if len(found) != 1:
        raise ImportError(f"confluent-kafka in {home.parent} does not have its own librdkafka")
    return _typed(ctypes.CDLL(str(found[0])))


def _typed(loaded: Any) -> Any:
    """Declare the functions of a library whose version is known."""
    loaded.rd_kafka_version.restype = c_int
    version = loaded.rd_kafka_version()
    if not OLDEST <= version < NEWEST or ctypes.sizeof(c_void_p) != 8:
        raise ImportError(f"librdkafka {version:#010x} is not one whose interface is known")
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def text_of(given: bytes | None) -> str:
    """Return a text of librdkafka's."""
    return (given or b"").decode(errors="replace")


def make_client(
    kind: int, settings: Mapping[str, str | int | bool], on_error: Any, prepare: Callable[[int], None] | None = None
) -> int:
    """Return a new client, whose callbacks and logs wait until it is polled.

    Parameters
    ----------
    kind
        `PRODUCER` or `CONSUMER`.
    settings
        librdkafka's settings.
    on_error
        An `OnError`, which the caller keeps.
    prepare
        Called with the configuration before the client is made of it.

    Raises
    ------
    ValueError
        librdkafka refuses the settings.
    """
    known, reason = library(), ctypes.create_string_buffer(512)
    conf = known.rd_kafka_conf_new()
    for name, value in {**settings, "log.queue": True}.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if known.rd_kafka_conf_set(conf, name.encode(), text.encode(), reason, len(reason)) != 0:
            known.rd_kafka_conf_destroy(conf)
            raise ValueError(text_of(reason.value))
    known.rd_kafka_conf_set_error_cb(conf, on_error)
    known.rd_kafka_conf_set_log_cb(conf, _log_callback)
    if prepare is not None:
        prepare(conf)
    client: int | None = known.rd_kafka_new(kind, conf, reason, len(reason))
    if client is None:
        known.rd_kafka_conf_destroy(conf)
        raise ValueError(text_of(reason.value))
    known.rd_kafka_set_log_queue(client, None)
    return client


def _on_log(client: int, level: int, facility: bytes | None, text: bytes | None) -> None:
    """Pass on what librdkafka has to say; its levels are those of syslog."""
    client_log.log(logging.INFO if level <= 5 else logging.DEBUG, "%s: %s", text_of(facility), text_of(text))


_log_callback = OnLog(_on_log)
