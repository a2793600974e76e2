"""What a `StatefulProcessor` is given: PySpark's handle, states and times, over a `KeyedStore`.

Never: do less than PySpark's own: each class has the methods of the PySpark class that it derives from, with their
results and their errors.

Follows ``pyspark.sql.streaming.stateful_processor``, of Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import ListState, MapState, StatefulProcessorHandle, ValueState
from pyspark.sql.types import StructType

from headgate.operators.transform_with_state.keyed_store import KeyedStore, StateVariable, Stored
from headgate.operators.transform_with_state.row_codec import RowCodec
from headgate.operators.transform_with_state.state_rows import Kind

Row = tuple[Any, ...]
ParseSchema = Callable[[str], StructType]


class _State:
    """What the three kinds of state have in common."""

    def __init__(self, handle: Handle, number: int, codec: RowCodec) -> None:
        self._handle = handle
        self._number = number
        self._codec = codec
        self._removed = ""

    def renumber(self, number: int) -> None:
        """Change its place among the states, before there is any state."""
        self._number = number

    def remove(self, name: str) -> None:
        """Let it be an error to use it: ``deleteIfExists`` was called with its name."""
        self._removed = name

    @property
    def removed(self) -> str:
        """The name that it had, if it was removed; empty: it was not."""
        return self._removed

    def clear(self) -> None:
        """Forget it, for the current key."""
        self._handle.store_of(self).clear(self._number)

    def _held(self) -> Any:
        return self._handle.store_of(self).slot(self._number)

    def _is_alive(self, stored: Stored | None) -> bool:
        return stored is not None and (stored[1] is None or not self._handle.store_of(self).is_expired(stored))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._removed or self._handle.name_of(self._number)!r})"


_AnyState = TypeVar("_AnyState", bound=_State)


class HeldValue(_State, ValueState):
    """One value for each key."""

    def exists(self) -> bool:
        """Return whether the current key has one."""
        return self._is_alive(self._held())

    def get(self) -> Row | None:
        """Return it as a tuple; None: there is none."""
        held = self._held()
        return self._codec.decode(held[0]) if self._is_alive(held) else None

    def update(self, newValue: Row) -> None:
        """Store it."""
        self._handle.store_of(self).set_value(self._number, self._codec.encode(newValue))


class HeldList(_State, ListState):
    """A list of values for each key."""

    def exists(self) -> bool:
        """Return whether the current key has any."""
        return any(map(self._is_alive, self._held() or ()))

    def get(self) -> Iterator[Row]:
        """Return what is in it now."""
        return map(self._codec.decode, [item[0] for item in self._held() or () if self._is_alive(item)])

    def put(self, newState: Sequence[Row]) -> None:
        """Store these values in place of those that it has."""
        items = self._encoded(newState, "put")
        store = self._handle.store_of(self)
        store.clear(self._number)
        store.append(self._number, items)

    def appendValue(self, newState: Row) -> None:
        """Append a value."""
        self._handle.store_of(self).append(self._number, [self._codec.encode(newState)])

    def appendList(self, newState: Sequence[Row]) -> None:
        """Append values."""
        self._handle.store_of(self).append(self._number, self._encoded(newState, "appendList"))

    def _encoded(self, values: Sequence[Row], method: str) -> list[bytes]:
        items = [self._codec.encode(value) for value in values]
        if not items:
            raise PySparkRuntimeError(
                f"Error updating value state: [ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE] {method}: cannot write an "
                f"empty list to the state {self._handle.name_of(self._number)!r}; use clear()."
            )
        return items


class HeldMap(_State, MapState):
    """A map for each key."""

    def __init__(self, handle: Handle, number: int, key_codec: RowCodec, codec: RowCodec) -> None:
        super().__init__(handle, number, codec)
        self._key_codec = key_codec

    def exists(self) -> bool:
        """Return whether the current key has any entry."""
        return any(map(self._is_alive, (self._held() or {}).values()))

    def getValue(self, key: Row) -> Row | None:
        """Return the value of a key of the map as a `Row`; None: there is none."""
        held: Stored | None = (self._held() or {}).get(self._key_codec.encode(key))
        if held is None or not self._is_alive(held):
            return None
        row: Row = self._codec.decode_row(held[0])
        return row

    def containsKey(self, key: Row) -> bool:
        """Return whether there is such a key in the map."""
        return self._is_alive((self._held() or {}).get(self._key_codec.encode(key)))

    def updateValue(self, key: Row, value: Row) -> None:
        """Store the value of a key of the map."""
        store = self._handle.store_of(self)
        store.put_entry(self._number, self._key_codec.encode(key), self._codec.encode(value))

    def iterator(self) -> Iterator[tuple[Row, Row]]:
        """Return the keys and values that there are now."""
        return ((self._key_codec.decode(key), self._codec.decode(data)) for key, data in self._alive())

    def keys(self) -> Iterator[Row]:
        """Return the keys that there are now."""
        return map(self._key_codec.decode, [key for key, _ in self._alive()])

    def values(self) -> Iterator[Row]:
        """Return the values that there are now."""
        return map(self._codec.decode, [data for _, data in self._alive()])

    def removeKey(self, key: Row) -> None:
        """Remove a key of the map, if it is there."""
        self._handle.store_of(self).remove_entry(self._number, self._key_codec.encode(key))

    def _alive(self) -> list[tuple[bytes, bytes]]:
        return [(key, stored[0]) for key, stored in (self._held() or {}).items() if self._is_alive(stored)]


class Handle(StatefulProcessorHandle):
    """The handle of one processor. Until `start` it takes the states' declarations; from then on they have state.

    Parameters
    ----------
    time_mode
        ``none``, ``processingtime`` or ``eventtime``.
    parse_schema
        Reads a schema that is given as text.
    """

    def __init__(self, time_mode: str, parse_schema: ParseSchema) -> None:
        self._time_mode = time_mode
        self._parse_schema = parse_schema
        self._store: KeyedStore | None = None
        self._variables: dict[str, StateVariable] = {}
        self._states: dict[str, _State] = {}
        self.deleted: set[str] = set()
        """The states that ``deleteIfExists`` named."""

    @property
    def variables(self) -> tuple[StateVariable, ...]:
        """The states, by their number."""
        return tuple(self._variables.values())

    def start(self, store: KeyedStore) -> None:
        """Let the states have state; nothing can be declared any more."""
        self._store = store

    def store_of(self, state: _State) -> KeyedStore:
        """Return the store, with the current key."""
        if state.removed:
            raise PySparkRuntimeError(
                f"The state {state.removed!r} is not initialized: init declared it and then called deleteIfExists. "
                "Do not use it, or declare it once more after that."
            )
        if self._store is None or self._store.cell is None:
            raise PySparkRuntimeError(
                f"{state!r} is used without a current key: use it in handleInputRows, handleExpiredTimer and "
                "handleInitialState, while their output is being read."
            )
        return self._store

    def name_of(self, number: int) -> str:
        """Return the name of a state."""
        return self.variables[number].name

    def getValueState(self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None) -> ValueState:
        """Declare a value for each key."""
        return self._known(stateName, HeldValue(self, *self._declare("value", stateName, schema, ttlDurationMs)))

    def getListState(self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None) -> ListState:
        """Declare a list for each key."""
        return self._known(stateName, HeldList(self, *self._declare("list", stateName, schema, ttlDurationMs)))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        """Declare a map for each key."""
        key_codec = RowCodec(self._parsed(userKeySchema), f"state {stateName!r}, key")
        number, codec = self._declare("map", stateName, valueSchema, ttlDurationMs, key_codec.schema.json())
        return self._known(stateName, HeldMap(self, number, key_codec, codec))

    def deleteIfExists(self, stateName: str) -> None:
        """Throw away a state that checkpoints hold, or that was declared: then it is none any more."""
        self._check_declaring("delete_if_exists", "Error deleting state")
        self.deleted.add(stateName)
        if self._variables.pop(stateName, None) is not None:
            self._states.pop(stateName).remove(stateName)
            for number, state in enumerate(self._states.values()):
                state.renumber(number)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer of the current key, in milliseconds since 1970-01-01 UTC."""
        self._timers("register_timer", "Error register timer").register_timer(int(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Forget a timer of the current key."""
        self._timers("delete_timer", "Error deleting timer").delete_timer(int(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        """Return the timers of the current key, in milliseconds since 1970-01-01 UTC, the first one first."""
        cell = self._timers("list_timers", "Error listing timers").cell
        assert cell is not None
        return iter(sorted(cell.timers or ()))

    def _timers(self, operation: str, what: str) -> KeyedStore:
        if self._time_mode == "none":
            self._refuse(
                what,
                "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE",
                f"Failed to perform stateful processor operation={operation} with invalid timeMode=None",
            )
        if self._store is None or self._store.cell is None:
            self._refuse(
                what,
                "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE",
                f"Failed to perform stateful processor operation={operation} with invalid handle "
                f"state={'CREATED' if self._store is None else 'INITIALIZED'}.",
            )
        return self._store

    def _known(self, name: str, state: _AnyState) -> _AnyState:
        self._states[name] = state
        return state

    def _declare(
        self, kind: Kind, name: str, schema: StructType | str, ttl_ms: int | None, key_schema: str = ""
    ) -> tuple[int, RowCodec]:
        what = f"Error initializing {kind} state"
        self._check_declaring(f"get_{kind}_state", what)
        if name in self._variables:
            self._refuse(
                what,
                "STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED",
                f"State variable with name {name} has already been defined in the StatefulProcessor.",
            )
        if not name or name != name.strip() or name[0] in "_$" or name == "default":
            self._refuse(
                what,
                "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME",
                f"The name {name!r} cannot be used: it must not be empty, 'default', begin with '_' or '$', or "
                "have spaces around it.",
            )
        if ttl_ms is not None and self._time_mode != "processingtime":
            self._refuse(
                what,
                "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL",
                f"Cannot use TTL for state={name} in timeMode={_SPELLED[self._time_mode]}, use "
                "TimeMode.ProcessingTime() instead.",
            )
        if ttl_ms is not None and ttl_ms <= 0:
            self._refuse(
                what,
                "STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE",
                f"TTL duration must be greater than zero for State store operation=get_{kind}_state on state={name}.",
            )
        codec = RowCodec(self._parsed(schema), f"state {name!r}")
        self._variables[name] = StateVariable(
            name=name, kind=kind, schema=codec.schema.json(), key_schema=key_schema, ttl_ms=ttl_ms
        )
        return len(self._variables) - 1, codec

    def _parsed(self, schema: StructType | str) -> StructType:
        return self._parse_schema(schema) if isinstance(schema, str) else schema

    def _check_declaring(self, operation: str, what: str) -> None:
        if self._store is not None:
            self._refuse(
                what,
                "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE",
                f"Failed to perform stateful processor operation={operation} with invalid handle state=INITIALIZED.",
            )

    def _refuse(self, what: str, error_class: str, message: str) -> NoReturn:
        raise PySparkRuntimeError(f"{what}: [{error_class}] {message}")


_SPELLED: Mapping[str, str] = {"none": "None", "eventtime": "EventTime", "processingtime": "ProcessingTime"}
