"""Expressions as tests write them."""

from __future__ import annotations

import pyarrow as pa

from headgate.expressions.expressions import Bound, Call, CastTo, Constant, Node

N = Bound(0, "n")
"""The first column, which is called ``n``."""


def call(function: str, *arguments: Node | int | str) -> Call:
    """Return a call, also of constants."""
    kinds = {int: pa.int64(), str: pa.string()}
    nodes = (Constant(each, kinds[type(each)]) if isinstance(each, int | str) else each for each in arguments)
    return Call(function, tuple(nodes))


def cast(node: Node, kind: pa.DataType) -> CastTo:
    return CastTo(node, kind, str(kind))
