"""How stored rows of one schema become rows of another: fields that are new are null, others go by their names.

Never: decode a value: rows are MessagePack (`headgate.operators.transform_with_state.row_codec`), and stay so.

Follows Spark's ``transformWithState`` with its Avro encoding:

    change                                                         is taken on
    -------------------------------------------------------------  ----------------------------
    a field more                                                   if it may be null
    a field less; another order                                    yes
    byte, short, int to a longer one, or to double; float to       yes
    double; decimal to more digits and the same scale
    a field that may not be null any more, another type or name    no
    any of these in fields, elements and values of maps            as above

Types are Spark's, as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

Convert = Callable[[Any], Any]

_INTEGERS = ("byte", "short", "integer", "long")
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Any]).decode


class NotTakenOnError(Exception):
    """Rows of the one schema cannot become rows of the other."""


def row_conversion(before: str, now: str) -> Callable[[bytes], bytes]:
    """Return what makes rows of another schema of rows.

    Raises
    ------
    NotTakenOnError
        They cannot be made.
    """
    convert = _conversion(msgspec.json.decode(before), msgspec.json.decode(now))
    return _unchanged if convert is None else lambda data: _pack(convert(_unpack(data)))


def _unchanged(data: bytes) -> bytes:
    return data


def _conversion(before: Any, now: Any) -> Convert | None:
    """Return what is to be done with values that are not null; None: nothing."""
    if before == now:
        return None
    if isinstance(before, str) or isinstance(now, str):
        return _widening(before, now)
    if before["type"] != now["type"]:
        raise NotTakenOnError
    match now["type"]:
        case "struct":
            return _of_struct(before["fields"], now["fields"])
        case "array":
            _check_nulls(before["containsNull"], now["containsNull"])
            element = _conversion(before["elementType"], now["elementType"])
            return None if element is None else lambda items: [_converted(element, each) for each in items]
        case "map":
            _check_nulls(before["valueContainsNull"], now["valueContainsNull"])
            key = _conversion(before["keyType"], now["keyType"])
            value = _conversion(before["valueType"], now["valueType"])
            return lambda items: [[_converted(key, k), _converted(value, v)] for k, v in items]
    raise NotTakenOnError


def _widening(before: Any, now: Any) -> Convert | None:
    if before in _INTEGERS and now in _INTEGERS and _INTEGERS.index(before) < _INTEGERS.index(now):
        return None
    if before in _INTEGERS[:3] and now == "double":
        return float
    if (before, now) == ("float", "double"):
        return None
    if isinstance(before, str) and isinstance(now, str):
        was, becomes = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(now)
        if was and becomes and was[2] == becomes[2] and int(was[1]) <= int(becomes[1]):
            return None
    raise NotTakenOnError


def _of_struct(before: list[Any], now: list[Any]) -> Convert:
    places = {field["name"]: place for place, field in enumerate(before)}
    fields: list[tuple[int | None, Convert | None]] = []
    for field in now:
        place = places.get(field["name"])
        if place is None:
            _check_nulls(True, field["nullable"])
            fields.append((None, None))
        else:
            _check_nulls(before[place]["nullable"], field["nullable"])
            fields.append((place, _conversion(before[place]["type"], field["type"])))
    return lambda row: [None if place is None else _converted(convert, row[place]) for place, convert in fields]


def _converted(convert: Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _check_nulls(before: bool, now: bool) -> None:
    if before and not now:
        raise NotTakenOnError
