"""Which states a subtask has: those that its processor declares, and those that only the checkpoint holds.

Never: let a state be read that was stored with another kind, under other keys, or with a schema whose rows cannot
become those of now (`headgate.operators.transform_with_state.schema_evolution`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from headgate.errors import StoredStateError
from headgate.operators.transform_with_state.keyed_store import StateVariable
from headgate.operators.transform_with_state.schema_evolution import NotTakenOnError, row_conversion
from headgate.operators.transform_with_state.state_rows import VERSION, ChunkHeader
from headgate.protocol.key_groups import KeyGroupRange


class StoredStates:
    """The states of one subtask, by the numbers that they have from now on.

    Parameters
    ----------
    uid, processor
        The operator's uid and the name of the processor's class, for errors.
    keys
        The columns of the key, as Spark's JSON.
    declared
        What the processor's ``init`` declares.
    deleted
        The states that it deletes.
    """

    def __init__(
        self, uid: str, processor: str, keys: str, declared: Sequence[StateVariable], deleted: Collection[str]
    ) -> None:
        self._uid = uid
        self._processor = processor
        self._keys = keys
        self._variables = {each.name: each for each in declared}
        self._deleted = set(deleted) - set(self._variables)

    def take_on(self, header: ChunkHeader) -> None:
        """Add the states of a chunk that are not declared: they are kept as they are.

        Raises
        ------
        StoredStateError
            A state, or the key, is not the one that was stored.
        """
        if header.keys != self._keys:
            raise StoredStateError(
                f"The state of {self._uid!r} was stored for other keys: {_columns(header.keys)}; the query now groups "
                f"by {_columns(self._keys)}. Group as before, or start without this state.",
                what=self._uid, expected=self._keys, found=header.keys,
            )  # fmt: skip
        for name, kind, schema, key_schema in header.states:
            if name in self._deleted:
                continue
            stored = StateVariable(name=name, kind=kind, schema=schema, key_schema=key_schema)
            found = self._variables.setdefault(name, stored)
            try:
                if (found.kind, found.key_schema) != (kind, key_schema):
                    raise NotTakenOnError
                row_conversion(schema, found.schema)
            except NotTakenOnError:
                raise StoredStateError(
                    f"The state {name!r} of {self._uid!r} was stored as {_described(stored)}; {self._processor} now "
                    f"declares {_described(found)}. Only new fields that may be null, fewer fields and wider types are "
                    "taken on. Declare it as before, or give the new one another name and call "
                    f"deleteIfExists({name!r}).",
                    what=name, expected=_described(found), found=_described(stored),
                ) from None  # fmt: skip

    def are_converted(self, header: ChunkHeader) -> bool:
        """Return whether a chunk holds states with other schemas than those of now."""
        return any(name in self._variables and self._variables[name].schema != was for name, _, was, _ in header.states)

    @property
    def variables(self) -> tuple[StateVariable, ...]:
        """The states, by their number."""
        return tuple(self._variables.values())

    @property
    def header(self) -> ChunkHeader:
        """The metadata of the chunks that are made from now on."""
        states = tuple((each.name, each.kind, each.schema, each.key_schema) for each in self.variables)
        return ChunkHeader(version=VERSION, keys=self._keys, states=states)

    def own_rows(self, table: pa.Table, header: ChunkHeader, groups: KeyGroupRange) -> pa.Table:
        """Return the rows of a chunk in these key groups, of states that are not deleted, by the numbers of now."""
        numbers = {name: number for number, name in enumerate(self._variables)}
        gone = len(numbers)
        now = np.array([numbers.get(name, gone) for name, *_ in header.states] + [gone], np.int16)
        before, group = table["state"].to_numpy(), table["group"].to_numpy()
        state = np.where(before < 0, before, now[np.maximum(before, 0)]).astype(np.int16)
        own = groups.holds(group) & (state != gone)
        table = table.set_column(0, table.schema.field(0), pa.array(state))
        table = table if own.all() else table.filter(pa.array(own))
        return self._converted(table, header) if self.are_converted(header) else table

    def _converted(self, table: pa.Table, header: ChunkHeader) -> pa.Table:
        """Return rows whose values have the schemas of now."""
        was = {name: schema for name, _, schema, _ in header.states}
        convert = {
            number: row_conversion(was[each.name], each.schema)
            for number, each in enumerate(self.variables)
            if each.name in was
        }
        values = [
            value if value is None or state < 0 else convert[state](value)
            for state, value in zip(table["state"].to_pylist(), table["value"].to_pylist(), strict=True)
        ]
        place = table.schema.get_field_index("value")
        return table.set_column(place, table.schema.field(place), pa.array(values, table.schema.field(place).type))


def _columns(schema: str) -> str:
    return ", ".join(f"{field['name']} {field['type']}" for field in msgspec.json.decode(schema)["fields"])


def _described(variable: StateVariable) -> str:
    of_key = f" of ({_columns(variable.key_schema)})" if variable.key_schema else ""
    return f"{variable.kind}{of_key} ({_columns(variable.schema)})"
