"""Messages as the client of Pulsar returns them, without a client."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class MessageId:
    """An id; ``index`` -1: it is in no batch. Its bytes are right for numbers below 128."""

    ledger: int
    entry: int
    index: int = -1
    size: int = 0

    def ledger_id(self) -> int:
        return self.ledger

    def entry_id(self) -> int:
        return self.entry

    def batch_index(self) -> int:
        return self.index

    def serialize(self) -> bytes:
        batch = b"" if self.index < 0 else bytes([0x20, self.index, 0x30, self.size])
        return bytes([0x08, self.ledger, 0x10, self.entry]) + batch


@dataclass(frozen=True)
class Key:
    key: str


@dataclass(frozen=True)
class Encrypted:
    """How a message was encrypted: ``size`` is that of a batch, or -1."""

    size: int
    failed: bool = True

    def keys(self) -> list[Key]:
        return [Key("harbour")]

    def batch_size(self) -> int:
        return self.size

    def is_decryption_failed(self) -> bool:
        return self.failed


@dataclass(frozen=True)
class Message:
    """A message; ``value`` None: a tombstone."""

    id: MessageId
    value: bytes | None
    key: str = ""
    event_ms: int = 0
    publish_ms: int = 1_700_000_000_000
    all_properties: dict[str, str] = field(default_factory=dict)
    version: int = 0
    context: Encrypted | None = None

    def message_id(self) -> MessageId:
        return self.id

    def topic_name(self) -> str:
        return "persistent://public/default/rides"

    def data(self) -> bytes:
        return self.value or b""

    def has_null_value(self) -> bool:
        return self.value is None

    def partition_key(self) -> str:
        return self.key

    def event_timestamp(self) -> int:
        return self.event_ms

    def publish_timestamp(self) -> int:
        return self.publish_ms

    def properties(self) -> dict[str, str]:
        return self.all_properties

    def int_schema_version(self) -> int:
        return self.version

    def encryption_context(self) -> Encrypted | None:
        return self.context
