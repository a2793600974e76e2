"""Decides what a slot does about its stream to the coordinator: register, resend, look the address up again, exit.

Never: stop reading because the coordinator cannot be reached; open a socket (it orders that).

An envelope has the name of its message where that is for the slot itself; others are `EnvelopeReceived`. `Stale` is
anything of a connection that was given up.

Figures (`SubtaskProgress`) are not counted: without a connection they are dropped, the next ones replace them.

Follows FLIP-27, "Where to run the enumerator".
"""

from __future__ import annotations

import msgspec

from headgate.machine import IGNORED, SAME, Machine, Maybe, Row
from headgate.protocol import messages as msg
from headgate.protocol.messages import Envelope, FromSlot, ToSlot
from headgate.protocol.session import Session

_FIRST_DELAY_MS, _MAX_DELAY_MS = 50, 1000  # between two attempts to connect

# What happened.


class SlotStarted(msgspec.Struct, frozen=True):
    """The Spark task, or the thread, that is the slot began."""


class StreamOpened(msgspec.Struct, frozen=True):
    """A connection to the coordinator is there."""

    connection: int


class StreamBroken(msgspec.Struct, frozen=True):
    """A connection broke, or could not be made."""

    connection: int


class EnvelopeReceived(msgspec.Struct, frozen=True):
    """An envelope came."""

    connection: int
    envelope: Envelope


class MessagePosted(msgspec.Struct, frozen=True):
    """A subtask has a message for the coordinator."""

    message: FromSlot


class SubtaskEnded(msgspec.Struct, frozen=True):
    """A subtask has been cancelled, has failed or was shut down, and all of it is closed."""

    stage: int
    execution: int


class SlotCancelled(msgspec.Struct, frozen=True):
    """The slot is to end whatever the coordinator wants, and why."""

    reason: str


class SlotTimePassed(msgspec.Struct, frozen=True):
    """Time went on."""


Event = (
    SlotStarted | StreamOpened | StreamBroken | EnvelopeReceived | MessagePosted | SubtaskEnded | SlotCancelled
    | SlotTimePassed
)  # fmt: skip

# What is to be done.


class OpenStream(msgspec.Struct, frozen=True):
    """Close the older connection if there is one, look the coordinator's address up, and connect.

    Answered by `StreamOpened` or `StreamBroken`.
    """

    connection: int


class SendEnvelope(msgspec.Struct, frozen=True):
    """Send an envelope on the connection."""

    connection: int
    envelope: Envelope


class Deliver(msgspec.Struct, frozen=True):
    """Hand a message to the subtask that it is for (`Deploy` makes it)."""

    message: ToSlot


class ExitSlot(msgspec.Struct, frozen=True):
    """Close everything and end; with an error if there is a reason."""

    reason: str | None


Action = OpenStream | SendEnvelope | Deliver | ExitSlot


class Stale(msgspec.Struct, frozen=True):
    """Stands in the table for whatever comes of a connection that was given up."""


_SLOT_MESSAGES = (msg.SlotAccepted, msg.SlotFenced, msg.ShutDownSlot, msg.CoordinatorHeartbeat)


class SlotMachine(Machine):
    """One attempt of a slot.

    Parameters
    ----------
    run, slot, attempt
        Who it is. A later attempt has a higher number.
    host, pid, executor, data_address
        What `RegisterSlot` says of it.
    heartbeat_timeout_ms
        A coordinator that is silent for so long counts as disconnected; heartbeats go out four times as often.

    Examples
    --------
    >>> machine = SlotMachine(run=1, slot=0, attempt=0, host="h")
    >>> machine.handle(SlotStarted(), 0)
    [OpenStream(connection=1)]
    >>> machine.handle(StreamBroken(1), 0), machine.next_time_ms()
    ([], 50)
    >>> machine.handle(SlotTimePassed(), 50)
    [OpenStream(connection=2)]
    """

    # fmt: off
    TRANSITIONS = (
        Row("new",                      SlotStarted,              "connecting", [OpenStream]),
        Row("connecting",               StreamOpened,             "registering", [SendEnvelope],
            "RegisterSlot, first on a connection"),
        Row("connecting, registering",  StreamBroken,             "waiting", [], "again, a bit later"),
        Row("registering",              msg.SlotAccepted,         "connected", [Maybe(SendEnvelope)],
            "what did not arrive goes out again"),
        Row("registering",              SlotTimePassed,           "waiting", [], "no answer is as good as a break",
            when="late", by="_on_time_registering"),
        Row("connected",                EnvelopeReceived,         SAME, [Deliver]),
        Row("connected",                EnvelopeReceived,         SAME, [], "it came before, or one is missing",
            when="else"),
        Row("connected",                msg.CoordinatorHeartbeat, SAME, [], "says what has arrived there"),
        Row("connected",                StreamBroken,             "waiting", [], "the subtasks read on"),
        Row("connected",                SlotTimePassed,           SAME, [Maybe(SendEnvelope)],
            "a heartbeat, when one is due", by="_on_time_connected"),
        Row("connected",                SlotTimePassed,           "waiting", [], "silence is as good as a break",
            when="late", by="_on_time_connected"),
        Row("connected",                MessagePosted,            SAME, [SendEnvelope], by="_on_message_connected"),
        Row("connected",                msg.ShutDownSlot,         "exited", [ExitSlot], "the query is over"),
        Row("registering, connected",   msg.SlotFenced,           "exited", [ExitSlot],
            "a newer attempt, or another run"),
        Row("waiting",                  SlotTimePassed,           "connecting", [OpenStream],
            "the coordinator may have moved", when="due", by="_on_time_waiting"),
        Row("waiting",                  SlotTimePassed,           SAME, by="_on_time_waiting"),
        Row("registering",              SlotTimePassed,           SAME, by="_on_time_registering"),
        Row("connecting, exited",       SlotTimePassed,           SAME, IGNORED,
            "an answer always comes; nothing does"),
        Row("connecting, registering",  MessagePosted,            SAME, [], "kept until the slot is accepted",
            by="_on_message_kept"),
        Row("waiting",                  MessagePosted,            SAME, [], "kept until there is a connection",
            by="_on_message_kept"),
        Row("exited",                   MessagePosted,            SAME, IGNORED, "nobody wants to know"),
        Row("connecting, registering, connected, waiting", SubtaskEnded, SAME, [],
            "the next RegisterSlot is without it"),
        Row("exited",                   SubtaskEnded,             SAME, IGNORED, "closed because the slot ends"),
        Row("connecting, registering, connected, waiting", SlotCancelled, "exited", [ExitSlot],
            "the slots of its submission are to end, or it is stuck in a process that others share"),
        Row("exited",                   SlotCancelled,            SAME, IGNORED, "it ends already"),
        Row("connecting, registering, connected, waiting, exited", Stale, SAME, IGNORED,
            "late news of an older connection"),
    )
    # fmt: on

    def __init__(
        self,
        *,
        run: int,
        slot: int,
        attempt: int,
        host: str,
        pid: int = 0,
        executor: str = "",
        data_address: str = "",
        heartbeat_timeout_ms: int = 10_000,
    ) -> None:
        super().__init__()
        self.state = "new"
        self._about = msg.RegisterSlot(host=host, pid=pid, executor=executor, data_address=data_address)
        self._session = Session(run=run, slot=slot, attempt=attempt)
        self._heartbeat_timeout_ms = heartbeat_timeout_ms
        self._connection = 0
        self._running: dict[int, int] = {}
        self._delay_ms = _FIRST_DELAY_MS
        self._connect_ms = 0  # when to connect again, while waiting
        self._heard_ms = 0
        self._beat_ms = 0

    def next_time_ms(self) -> int | None:
        """Return when `SlotTimePassed` is due, in milliseconds; None: nothing is due."""
        match self.state:
            case "waiting":
                return self._connect_ms
            case "registering":
                return self._heard_ms + self._heartbeat_timeout_ms
            case "connected":
                return min(self._heard_ms + self._heartbeat_timeout_ms, self._beat_ms)
        return None

    def check(self) -> None:
        """Assert what always holds."""
        assert self.state in {"new", "connecting", "registering", "connected", "waiting", "exited"}
        assert (self.state == "new") == (self._connection == 0)
        assert _FIRST_DELAY_MS <= self._delay_ms <= _MAX_DELAY_MS
        assert all(execution > 0 for execution in self._running.values())

    def kind_of(self, event: Event) -> type:
        """Return the type under which the table has the event."""
        if not isinstance(event, StreamOpened | StreamBroken | EnvelopeReceived):
            return type(event)
        if event.connection != self._connection or self.state in ("waiting", "exited"):
            return Stale
        if isinstance(event, EnvelopeReceived) and isinstance(event.envelope.message, _SLOT_MESSAGES):
            return type(event.envelope.message)
        return type(event)

    def _on_slot_started(self, event: SlotStarted, now_ms: int) -> list[Action]:
        return self._connect()

    def _on_stream_opened(self, event: StreamOpened, now_ms: int) -> list[Action]:
        self.state = "registering"
        self._heard_ms = now_ms
        return [self._send_uncounted(msgspec.structs.replace(self._about, running=dict(self._running)), now_ms)]

    def _on_stream_broken(self, event: StreamBroken, now_ms: int) -> list[Action]:
        return self._wait(now_ms)

    def _on_slot_accepted(self, event: EnvelopeReceived, now_ms: int) -> list[Action]:
        unconfirmed = self._session.resend(event.envelope.received)
        self._session.receive(event.envelope)
        self.state = "connected"
        self._heard_ms, self._delay_ms = now_ms, _FIRST_DELAY_MS
        return [SendEnvelope(self._connection, envelope) for envelope in unconfirmed]

    def _on_slot_fenced(self, event: EnvelopeReceived, now_ms: int) -> list[Action]:
        assert isinstance(event.envelope.message, msg.SlotFenced)
        self.state = "exited"
        return [ExitSlot(event.envelope.message.reason)]

    def _on_shut_down_slot(self, event: EnvelopeReceived, now_ms: int) -> list[Action]:
        self.state = "exited"
        return [ExitSlot(None)]

    def _on_envelope_received(self, event: EnvelopeReceived, now_ms: int) -> list[Action]:
        self._heard_ms = now_ms
        messages = self._session.receive(event.envelope)
        for message in messages:
            if isinstance(message, msg.Deploy):
                self._running[message.stage] = message.execution
        return [Deliver(message) for message in messages]  # type: ignore[arg-type]  # the coordinator sends ToSlot only

    def _on_coordinator_heartbeat(self, event: EnvelopeReceived, now_ms: int) -> list[Action]:
        self._heard_ms = now_ms
        self._session.receive(event.envelope)
        return []

    def _on_message_connected(self, event: MessagePosted, now_ms: int) -> list[Action]:
        if isinstance(event.message, msg.SubtaskProgress):
            return [self._send_uncounted(event.message, now_ms)]
        return [SendEnvelope(self._connection, self._session.send(event.message))]

    def _on_message_kept(self, event: MessagePosted, now_ms: int) -> list[Action]:
        if not isinstance(event.message, msg.SubtaskProgress):
            self._session.send(event.message)
        return []

    def _on_subtask_ended(self, event: SubtaskEnded, now_ms: int) -> list[Action]:
        if self._running.get(event.stage) == event.execution:
            del self._running[event.stage]
        return []

    def _on_slot_cancelled(self, event: SlotCancelled, now_ms: int) -> list[Action]:
        self.state = "exited"
        return [ExitSlot(event.reason)]

    def _on_time_connected(self, event: SlotTimePassed, now_ms: int) -> list[Action]:
        if self._is_silent(now_ms):
            return self._wait(now_ms)
        return [self._send_uncounted(msg.SlotHeartbeat(), now_ms)] if now_ms >= self._beat_ms else []

    def _on_time_registering(self, event: SlotTimePassed, now_ms: int) -> list[Action]:
        return self._wait(now_ms) if self._is_silent(now_ms) else []

    def _on_time_waiting(self, event: SlotTimePassed, now_ms: int) -> list[Action]:
        return self._connect() if now_ms >= self._connect_ms else []

    def _is_silent(self, now_ms: int) -> bool:
        return now_ms >= self._heard_ms + self._heartbeat_timeout_ms

    def _connect(self) -> list[Action]:
        self.state = "connecting"
        self._connection += 1
        return [OpenStream(self._connection)]

    def _wait(self, now_ms: int) -> list[Action]:
        self.state = "waiting"
        self._connect_ms = now_ms + self._delay_ms
        self._delay_ms = min(2 * self._delay_ms, _MAX_DELAY_MS)
        return []

    def _send_uncounted(self, message: FromSlot, now_ms: int) -> SendEnvelope:
        self._beat_ms = now_ms + self._heartbeat_timeout_ms // 4
        return SendEnvelope(self._connection, self._session.send_uncounted(message))

    def __str__(self) -> str:
        session = self._session
        return f"Slot {session.slot} (run {session.run}, attempt {session.attempt})"
