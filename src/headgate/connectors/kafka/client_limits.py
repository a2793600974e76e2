"""Makes settings of a client fit each other: librdkafka refuses pairs that are good in Java.

Never: judge a value by itself, which librdkafka does; what is no whole number is left to it.

Follows librdkafka 2.16, ``rd_kafka_conf_finalize`` and ``rd_kafka_topic_conf_finalize``. Settings of Headgate's own
give way to the user's. Of two that the user set, a limit gives way to the lower one; only what has no meaning together
is an error, before anything is read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headgate.errors import OptionError

Settings = Mapping[str, Any]

_LARGEST_RECORD = 1_000_000
_SMALLEST_LIMIT = 1000
"""librdkafka's default and least value of ``message.max.bytes``."""
_FETCH_MAX_BYTES = 52_428_800
_FRAME_BYTES = 512
"""What a response has around its records."""
_RECONNECT_MS = 50
_RECONNECT_MAX_MS = 1000

_EXCLUDES_IDEMPOTENCE: dict[str, tuple[str, Callable[[str], bool]]] = {
    **dict.fromkeys(("acks", "request.required.acks"), ("all", lambda text: text not in ("all", "-1"))),
    **dict.fromkeys(("retries", "message.send.max.retries"), ("above 0", lambda text: text == "0")),
    **dict.fromkeys(
        ("max.in.flight", "max.in.flight.requests.per.connection"),
        ("at most 5", lambda text: not text.isdecimal() or int(text) > 5),
    ),
    "queuing.strategy": ("fifo", lambda text: text != "fifo"),
    "queue.buffering.backpressure.threshold": ("1", lambda text: text.isdecimal() and int(text) > 1),
}
"""By name: which values leave idempotence on, for the message, and whether one does not."""
_OFF = ("false", "0", "f")
_ON = ("true", "1", "t")


def whole(settings: Settings, *names: str) -> int | None:
    """Return the value of the first of these settings that is there and a whole number."""
    for name in names:
        text = str(settings.get(name, "")).strip()
        if text.isdecimal():
            return int(text)
    return None


def fit_reconnects(settings: Settings) -> dict[str, Any]:
    """Return settings with waits of which the longest is not below the shortest. Java's longest wait is a second."""
    least, longest = whole(settings, "reconnect.backoff.ms"), whole(settings, "reconnect.backoff.max.ms")
    if longest is None:
        return {"reconnect.backoff.max.ms": max(_RECONNECT_MAX_MS, least or 0), **settings}
    if least is None:
        return {"reconnect.backoff.ms": min(_RECONNECT_MS, longest), **settings}
    return {**settings, "reconnect.backoff.max.ms": max(least, longest)}


def fit_consumer(settings: Settings) -> dict[str, Any]:
    """Return a consumer's settings with a response that fits what may be received, and a record that fits it.

    A record that is larger than the response asked for comes alone, as in Java.
    """
    fetched = whole(settings, "fetch.max.bytes")
    received = whole(settings, "receive.message.max.bytes")
    fetched = _FETCH_MAX_BYTES if fetched is None else fetched
    if received is not None:
        fetched = min(fetched, received - _FRAME_BYTES)
    fetched = max(fetched, _SMALLEST_LIMIT)
    made = {**settings, "fetch.max.bytes": fetched, "message.max.bytes": min(_LARGEST_RECORD, fetched)}
    if received is not None:
        made["receive.message.max.bytes"] = max(received, fetched + _FRAME_BYTES)
    return made


def fit_producer(settings: Settings, user: Settings, *, transactional: bool = False) -> dict[str, Any]:
    """Return a producer's settings, idempotent unless the user excludes it, with times that fit each other.

    Parameters
    ----------
    settings
        All of them, the user's among them.
    user
        Those that the user set.
    transactional
        Whether rows are written by transactions: nothing is waited for that is longer than one.
    """
    made = dict(settings)
    if "enable.idempotence" not in user and excluding_idempotence(user) is None:
        made["enable.idempotence"] = True
    transaction_ms = whole(made, "transaction.timeout.ms") if transactional else None
    for name in ("delivery.timeout.ms", "message.timeout.ms"):
        given_ms = whole(made, name)
        if transaction_ms is not None and given_ms is not None:
            made[name] = min(given_ms or transaction_ms, transaction_ms)  # 0 is for ever
    socket_ms = whole(made, "socket.timeout.ms")
    if transaction_ms is not None and socket_ms is not None:
        made["socket.timeout.ms"] = min(socket_ms, transaction_ms)
    delivery_ms = whole(made, "message.timeout.ms", "delivery.timeout.ms")
    if delivery_ms and not _lingers_by(user):
        made["linger.ms"] = min(made["linger.ms"], delivery_ms - 1)
    return made


def excluding_idempotence(user: Settings) -> str | None:
    """Return the setting of the user's that excludes idempotence, as in Java's producer; None: there is none."""
    for name, value in user.items():
        _, excludes = _EXCLUDES_IDEMPOTENCE.get(name, ("", lambda text: False))
        if excludes(str(value).strip().lower()):
            return name
    return None


def check_producer(user: Settings, *, source: str, exactly_once: bool, delivery_timeout_ms: int) -> None:
    """Refuse settings of the user's that have no meaning together.

    Raises
    ------
    OptionError
        It names both.
    """

    def on(name: str, words: tuple[str, ...]) -> bool:
        return str(user.get(name, "")).strip().lower() in words

    def refuse(name: str, message: str) -> OptionError:
        return OptionError(
            f"{source}: the option 'kafka.{name}' is {user[name]!r}, {message}",
            source=source, option=f"kafka.{name}", value=user[name],
        )  # fmt: skip

    if exactly_once and on("enable.idempotence", _OFF):
        raise OptionError(
            f"{source}: the option 'kafka.enable.idempotence' cannot be false with guarantee exactly-once.",
            source=source, option="kafka.enable.idempotence", value=user["enable.idempotence"],
        )  # fmt: skip
    excluding = excluding_idempotence(user)
    if excluding is not None and (exactly_once or on("enable.idempotence", _ON)):
        wants = "guarantee exactly-once" if exactly_once else "kafka.enable.idempotence true"
        allowed = _EXCLUDES_IDEMPOTENCE[excluding][0]
        raise refuse(excluding, f"which {wants} excludes: it must be {allowed} there. Leave one of them out.")
    if on("enable.gapless.guarantee", _ON) and (excluding is not None or on("enable.idempotence", _OFF)):
        because = f"kafka.{excluding}" if excluding is not None else "kafka.enable.idempotence"
        raise refuse("enable.gapless.guarantee", f"which needs an idempotent producer, that {because} excludes.")
    transaction_ms = whole(user, "transaction.timeout.ms") if exactly_once else None
    delivery_timeout_ms = min(delivery_timeout_ms or transaction_ms or 0, transaction_ms or delivery_timeout_ms)
    linger, linger_ms = _lingers_by(user), whole(user, "linger.ms", "queue.buffering.max.ms")
    if linger and linger_ms is not None and delivery_timeout_ms and linger_ms >= delivery_timeout_ms:
        raise refuse(
            linger, f"and kafka.delivery.timeout.ms {delivery_timeout_ms}: a row would be given up while it waits for "
            "others. Lower the former, or raise the latter."
        )  # fmt: skip


def _lingers_by(user: Settings) -> str | None:
    return next((name for name in ("linger.ms", "queue.buffering.max.ms") if name in user), None)
