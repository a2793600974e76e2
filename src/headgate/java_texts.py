"""Bytes as text that may be no UTF-8: what is wrong becomes U+FFFD, as Java's ``new String(bytes, UTF_8)`` shows it.

Never: change, or copy, what is UTF-8.

Spark keeps the bytes of such a text and shows them so; Arrow's strings are UTF-8, or whatever looks at them fails. Java
puts one U+FFFD in the place of a surrogate in three bytes, or what there is of it, where Python puts one for each byte.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "\ufffd".encode()


def java_text(data: bytes) -> str:
    """Return bytes as Java shows them."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(_REPLACEMENT, data).decode("utf-8", "replace")


def java_texts(values: pa.Array) -> pa.StringArray:
    """Return bytes, or strings that may be none, as Java shows them. What is valid costs a look, and no copy."""
    if not (pa.types.is_binary(values.type) or pa.types.is_string(values.type)):
        values = values.cast(pa.binary())
    texts = values.view(pa.string())
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        is_looked_at = pc.fill_null(pc.invert(pc.string_is_ascii(texts)), False)
        shown = [java_text(each) for each in values.view(pa.binary()).filter(is_looked_at).to_pylist()]
        return pc.replace_with_mask(texts, is_looked_at, pa.array(shown, pa.string()))
    return texts


def with_java_texts(values: pa.Array) -> pa.Array:
    """Return values of any type, with the strings in them, at any depth, as Java shows them."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return _replaced(values)
    return values


def _replaced(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_string(kind):
        return java_texts(values)
    if pa.types.is_struct(kind) and kind.num_fields:
        children = [_replaced(values.field(place)) for place in range(kind.num_fields)]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        # Not of its `offsets`: Arrow combines those of a slice with no nulls.
        inner = _replaced(values.values)
        return pa.Array.from_buffers(kind, len(values), values.buffers()[:2], values.null_count, values.offset, [inner])
    return values
