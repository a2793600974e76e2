"""Decides what a slot does about its stream to the coordinator: register, resend, look the address up again, exit.

Never: stop reading because the coordinator cannot be reached; open a socket (it orders that).

An envelope has the name of its letter where that is for the slot itself; others are `EnvelopeReceived`. `Stale` is
anything of a connection that was given up.

    state                    event                  next         actions        why
    -----------------------  ---------------------  -----------  -------------  -------------------------------------
    new                      SlotStarted            connecting   OpenStream
    connecting               StreamOpened           registering  SendEnvelope   RegisterSlot, first on a connection
    connecting               StreamBroken           waiting                     nobody is there: again, a bit later
    registering              SlotAccepted           connected    SendEnvelope?  what did not arrive goes out again
    registering              StreamBroken           waiting
    registering              SlotTimePassed late    waiting                     no answer is as good as a break
    connected                EnvelopeReceived       same         Deliver
    connected                EnvelopeReceived else  same                        it came before, or one is missing
    connected                CoordinatorHeartbeat   same                        says what has arrived there
    connected                StreamBroken           waiting                     the subtasks read on
    connected                SlotTimePassed         same         SendEnvelope?  a heartbeat, when one is due
    connected                SlotTimePassed late    waiting                     silence is as good as a break
    connected                LetterPosted           same         SendEnvelope
    connected                ShutDownSlot           exited       ExitSlot       the query is over
    registering, connected   SlotFenced             exited       ExitSlot       a newer attempt, or another run
    waiting                  SlotTimePassed due     connecting   OpenStream     the coordinator may have moved
    waiting, registering     SlotTimePassed         same
    connecting, exited       SlotTimePassed         same                        an answer always comes; nothing does
    connecting, registering  LetterPosted           same                        kept until the slot is accepted
    waiting                  LetterPosted           same                        kept until there is a connection
    exited                   LetterPosted           same                        nobody wants to know
    connecting, registering  SubtaskEnded           same                        the next RegisterSlot is without it
    connected, waiting       SubtaskEnded           same
    exited                   SubtaskEnded           same                        closed because the slot ends
    connecting, registering  Stale                  same                        late news of an older connection
    connected, waiting       Stale                  same
    exited                   Stale                  same

Figures (`SubtaskProgress`) are not counted: without a connection they are dropped, the next ones replace them.

Follows FLIP-27, "Where to run the enumerator".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from headgate.errors import InvalidTransitionError
from headgate.protocol import messages as msg
from headgate.protocol.messages import Envelope, FromSlot, ToSlot
from headgate.protocol.session import Session

_HISTORY = 64
_FIRST_DELAY_MS, _MAX_DELAY_MS = 50, 1000  # between two attempts to connect

# What happened.


class SlotStarted(msgspec.Struct, frozen=True):
    """The Spark task began."""


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


class LetterPosted(msgspec.Struct, frozen=True):
    """A subtask wants to tell the coordinator something."""

    letter: FromSlot


class SubtaskEnded(msgspec.Struct, frozen=True):
    """A subtask has been cancelled, has failed or was shut down, and all of it is closed."""

    stage: int
    execution: int


class SlotTimePassed(msgspec.Struct, frozen=True):
    """Time went on."""


Event = SlotStarted | StreamOpened | StreamBroken | EnvelopeReceived | LetterPosted | SubtaskEnded | SlotTimePassed

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
    """Hand a letter to the subtask that it is for (`Deploy` makes it)."""

    letter: ToSlot


class ExitSlot(msgspec.Struct, frozen=True):
    """Close everything and end the Spark task; with an error if there is a reason."""

    reason: str | None


Action = OpenStream | SendEnvelope | Deliver | ExitSlot


class Stale(msgspec.Struct, frozen=True):
    """Stands in the table for whatever comes of a connection that was given up."""


_OWN_LETTERS = (msg.SlotAccepted, msg.SlotFenced, msg.ShutDownSlot, msg.CoordinatorHeartbeat)


class SlotMachine:
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
        self._history: deque[str] = deque(maxlen=_HISTORY)

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take note of an event at a time in milliseconds, and return what is to be done, in order.

        Raises
        ------
        InvalidTransitionError
            The table has no row for it.
        """
        kind = self.kind_of(event)
        handler = self._HANDLERS.get((self.state, kind))
        if handler is None:
            raise self._invalid(event)
        was = self.state
        actions = handler(self, event, now_ms)
        if kind is not SlotTimePassed or self.state != was:
            self._history.append(f"{now_ms} ms: {was} {kind.__name__} -> {self.state}")
        return actions

    def next_time_ms(self) -> int | None:
        """Return when `SlotTimePassed` is due, in milliseconds; None: not by itself."""
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
        if isinstance(event, EnvelopeReceived) and isinstance(event.envelope.message, _OWN_LETTERS):
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

    def _on_accepted(self, event: EnvelopeReceived, now_ms: int) -> list[Action]:
        unconfirmed = self._session.resend(event.envelope.received)
        self._session.receive(event.envelope)
        self.state = "connected"
        self._heard_ms, self._delay_ms = now_ms, _FIRST_DELAY_MS
        return [SendEnvelope(self._connection, envelope) for envelope in unconfirmed]

    def _on_fenced(self, event: EnvelopeReceived, now_ms: int) -> list[Action]:
        assert isinstance(event.envelope.message, msg.SlotFenced)
        self.state = "exited"
        return [ExitSlot(event.envelope.message.reason)]

    def _on_shut_down(self, event: EnvelopeReceived, now_ms: int) -> list[Action]:
        self.state = "exited"
        return [ExitSlot(None)]

    def _on_envelope(self, event: EnvelopeReceived, now_ms: int) -> list[Action]:
        self._heard_ms = now_ms
        letters = self._session.receive(event.envelope)
        for letter in letters:
            if isinstance(letter, msg.Deploy):
                self._running[letter.stage] = letter.execution
        return [Deliver(letter) for letter in letters]  # type: ignore[arg-type]  # the coordinator sends ToSlot only

    def _on_coordinator_heartbeat(self, event: EnvelopeReceived, now_ms: int) -> list[Action]:
        self._heard_ms = now_ms
        self._session.receive(event.envelope)
        return []

    def _on_letter_connected(self, event: LetterPosted, now_ms: int) -> list[Action]:
        if isinstance(event.letter, msg.SubtaskProgress):
            return [self._send_uncounted(event.letter, now_ms)]
        return [SendEnvelope(self._connection, self._session.send(event.letter))]

    def _on_letter_kept(self, event: LetterPosted, now_ms: int) -> list[Action]:
        if not isinstance(event.letter, msg.SubtaskProgress):
            self._session.send(event.letter)
        return []

    def _on_subtask_ended(self, event: SubtaskEnded, now_ms: int) -> list[Action]:
        if self._running.get(event.stage) == event.execution:
            del self._running[event.stage]
        return []

    def _on_time_connected(self, event: SlotTimePassed, now_ms: int) -> list[Action]:
        if self._is_silent(now_ms):
            return self._wait(now_ms)
        return [self._send_uncounted(msg.SlotHeartbeat(), now_ms)] if now_ms >= self._beat_ms else []

    def _on_time_registering(self, event: SlotTimePassed, now_ms: int) -> list[Action]:
        return self._wait(now_ms) if self._is_silent(now_ms) else []

    def _on_time_waiting(self, event: SlotTimePassed, now_ms: int) -> list[Action]:
        return self._connect() if now_ms >= self._connect_ms else []

    def _ignore(self, event: Event, now_ms: int) -> list[Action]:
        return []

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

    def _send_uncounted(self, letter: FromSlot, now_ms: int) -> SendEnvelope:
        self._beat_ms = now_ms + self._heartbeat_timeout_ms // 4
        return SendEnvelope(self._connection, self._session.send_uncounted(letter))

    def _invalid(self, event: Event) -> InvalidTransitionError:
        session = self._session
        return InvalidTransitionError(
            f"Slot {session.slot} (run {session.run}, attempt {session.attempt}) cannot take {event!r} in state "
            f"{self.state}. Before: {', '.join(list(self._history)[-10:]) or 'nothing'}.",
            state=self.state,
            event=repr(event),
            history=tuple(self._history),
        )

    _HANDLERS: ClassVar[dict[tuple[str, type], Callable[[Any, Any, int], list[Action]]]] = {
        ("new", SlotStarted): _on_slot_started,
        ("connecting", StreamOpened): _on_stream_opened,
        ("connecting", StreamBroken): _on_stream_broken,
        ("registering", msg.SlotAccepted): _on_accepted,
        ("registering", StreamBroken): _on_stream_broken,
        ("registering", SlotTimePassed): _on_time_registering,
        ("registering", msg.SlotFenced): _on_fenced,
        ("connected", EnvelopeReceived): _on_envelope,
        ("connected", msg.CoordinatorHeartbeat): _on_coordinator_heartbeat,
        ("connected", StreamBroken): _on_stream_broken,
        ("connected", SlotTimePassed): _on_time_connected,
        ("connected", LetterPosted): _on_letter_connected,
        ("connected", msg.ShutDownSlot): _on_shut_down,
        ("connected", msg.SlotFenced): _on_fenced,
        ("waiting", SlotTimePassed): _on_time_waiting,
        ("connecting", SlotTimePassed): _ignore,
        ("exited", SlotTimePassed): _ignore,
        ("connecting", LetterPosted): _on_letter_kept,
        ("registering", LetterPosted): _on_letter_kept,
        ("waiting", LetterPosted): _on_letter_kept,
        ("exited", LetterPosted): _ignore,
        ("connecting", SubtaskEnded): _on_subtask_ended,
        ("registering", SubtaskEnded): _on_subtask_ended,
        ("connected", SubtaskEnded): _on_subtask_ended,
        ("waiting", SubtaskEnded): _on_subtask_ended,
        ("exited", SubtaskEnded): _ignore,
        ("connecting", Stale): _ignore,
        ("registering", Stale): _ignore,
        ("connected", Stale): _ignore,
        ("waiting", Stale): _ignore,
        ("exited", Stale): _ignore,
    }
