"""An expression over rows of known columns, ready to be evaluated batch by batch: its types are found out once.

Never: loop over rows in Python, or evaluate a branch for rows that do not take it, unless it cannot fail:
``when(b != 0, a / b)`` must not divide by zero.

A constant is one value where a function of Arrow's takes that, and a column of equal ones where it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import OptionError
from headgate.expressions.casts import cast
from headgate.expressions.expressions import Bound, Branches, Call, CastTo, Constant, Node, text_of
from headgate.expressions.kernels import KERNELS, remainder_by

Run = Callable[[pa.RecordBatch], pa.Array]

NULL_TOLERANT = frozenset(
    ("and", "or", "<=>", "isnull", "isnotnull", "isnan", "in", "coalesce", "greatest", "least", "concat", "concat_ws",
     "struct")
)  # fmt: skip
"""The functions that evaluate all arguments, whichever of them is null; of the others the result is then null."""
_DIVISIONS = ("/", "%")
_NEVER_FAILING = frozenset(
    ("=", "<", "<=", ">", ">=", "<=>", "and", "or", "not", "isnull", "isnotnull", "in", "upper", "lower",
     "length", "concat", "contains", "startswith", "endswith", "like", "rlike", "regexp_extract", "coalesce", "isnan",
     "getfield", "split_part")
)  # fmt: skip
"""Functions that have a value for every row, of arguments of one type."""
_ON_VALUES: dict[str, Callable[[pa.Array, pa.Array], pa.Array]] = {
    "=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
    "+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked,
}  # fmt: skip
"""What is the same for one value as for a column of it, and is Arrow's alone but for fractions."""


class Compiled(NamedTuple):
    """An expression over rows with some columns.

    Parameters
    ----------
    kind
        The type of its values.
    run
        Returns its value for each row of a batch. Raises ``pyarrow.ArrowInvalid``: a row's value does not do: an
        overflow, a division by zero, a text that is not a number.
    constant
        Its value, if it is the same for all rows.
    cannot_fail
        Whether it has a value for every row, so that nothing changes if it is evaluated needlessly.
    """

    kind: pa.DataType
    run: Run
    constant: pa.Scalar | None = None
    cannot_fail: bool = False


def compiled(node: Node, schema: pa.Schema, time_zone: str) -> Compiled:
    """Return an expression, ready to be evaluated over batches of these columns.

    Raises
    ------
    OptionError
        Types do not go together.
    """
    match node:
        case Bound(index=index):
            return Compiled(schema.field(index).type, lambda batch: batch.column(index), cannot_fail=True)
        case Constant(value=value, kind=kind):
            return _constant(pa.scalar(value, kind))
        case CastTo(argument=argument, kind=kind):
            return _cast(compiled(argument, schema, time_zone), kind, time_zone)
        case Branches():
            return _branches(node, schema, time_zone)
        case Call(function="and", arguments=(left, right)):
            return _and(compiled(left, schema, time_zone), compiled(right, schema, time_zone))
        case Call(function=function, arguments=arguments):
            return _call(node, function, [compiled(each, schema, time_zone) for each in arguments], time_zone)


def evaluate(node: Node, batch: pa.RecordBatch, time_zone: str) -> pa.Array:
    """Return an expression's value for each row of one batch; raises as `compiled` and `Compiled.run`."""
    return compiled(node, batch.schema, time_zone).run(batch)


def type_in(node: Node, schema: pa.Schema, time_zone: str) -> pa.DataType:
    """Return the type of an expression over rows with these columns; raises as `compiled`."""
    return compiled(node, schema, time_zone).kind


def _constant(value: pa.Scalar) -> Compiled:
    return Compiled(value.type, lambda batch: pa.repeat(value, batch.num_rows), value, cannot_fail=True)


def _cast(of: Compiled, kind: pa.DataType, time_zone: str) -> Compiled:
    if of.kind == kind:
        return of
    try:
        cast(pa.array([], of.kind), kind, time_zone)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise OptionError(f"cast: there is no cast of {of.kind} to {kind}.", option="cast", value=str(kind)) from error
    return Compiled(kind, lambda batch: cast(of.run(batch), kind, time_zone))


# Functions.


def _call(node: Call, function: str, arguments: Sequence[Compiled], time_zone: str) -> Compiled:
    kinds, kernel, parameters = [each.kind for each in arguments], KERNELS[function], node.parameters
    try:
        kind = kernel(*(pa.array([], each) for each in kinds), time_zone=time_zone, **parameters).type
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as error:
        types = ", ".join(map(str, kinds))
        raise OptionError(f"{text_of(node)}: {function} cannot take {types}.", option=function, value=types) from error
    safe = function in _NEVER_FAILING and len(set(kinds)) == 1 and all(each.cannot_fail for each in arguments)
    fast = _on_values(function, arguments)
    if fast is not None:
        return Compiled(kind, fast, cannot_fail=safe)
    values = _values_of(function, arguments)

    def run(batch: pa.RecordBatch) -> pa.Array:
        found = kernel(*values(batch), time_zone=time_zone, **parameters)
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

    return Compiled(kind, run, cannot_fail=safe)


def _on_values(function: str, arguments: Sequence[Compiled]) -> Run | None:
    """Return what evaluates a function of a column and of one value for all rows; None: it is not such a one."""
    if len(arguments) != 2:
        return None
    left, right = arguments
    if left.constant is not None or right.constant is None or left.kind != right.kind or not right.constant.is_valid:
        return None
    if not pa.types.is_integer(left.kind) and (function in ("+", "-", "*", "%") or pa.types.is_floating(left.kind)):
        return None
    value = right.constant
    if function == "%" and value.as_py() > 0:
        general, divisor = _values_of(function, arguments), np.asarray(pa.repeat(value, 1))[0]

        def remainder(batch: pa.RecordBatch) -> pa.Array:
            values = left.run(batch)
            if values.null_count:
                return KERNELS["%"](*general(batch), time_zone="")
            return pa.array(remainder_by(np.asarray(values), divisor))

        return remainder
    kernel = _ON_VALUES.get(function)
    return None if kernel is None else lambda batch: kernel(left.run(batch), value)


def _values_of(function: str, arguments: Sequence[Compiled]) -> Callable[[pa.RecordBatch], list[pa.Array]]:
    """Return what evaluates arguments in Spark's order; one that fails only where another is null has no error."""
    if all(each.cannot_fail for each in arguments):
        return lambda batch: [each.run(batch) for each in arguments]
    order = range(len(arguments))
    in_order = list(reversed(order) if function in _DIVISIONS else order)

    def run(batch: pa.RecordBatch) -> list[pa.Array]:
        found: dict[int, pa.Array] = {}
        for place in in_order:
            try:
                found[place] = arguments[place].run(batch)
            except pa.ArrowInvalid:
                if not found or function in NULL_TOLERANT:
                    raise
                needed = pa.array(np.logical_and.reduce([np.asarray(each.is_valid()) for each in found.values()]))
                if needed.true_count == len(needed):
                    raise
                values = arguments[place].run(batch.filter(needed))
                found[place] = pc.replace_with_mask(pa.nulls(len(needed), values.type), needed, values)
        return [found[place] for place in order]

    return run


# Conditions.


def _and(left: Compiled, right: Compiled) -> Compiled:
    def run(batch: pa.RecordBatch) -> pa.Array:
        first = left.run(batch)
        try:
            return pc.and_kleene(first, right.run(batch))
        except pa.ArrowInvalid:
            # It may have failed on rows for which the first side is false already: those are not evaluated.
            needed = pc.fill_null(first, True)
            values = right.run(batch.filter(needed))
            return pc.and_kleene(first, pc.replace_with_mask(pa.nulls(batch.num_rows, pa.bool_()), needed, values))

    return Compiled(pa.bool_(), run, cannot_fail=left.cannot_fail and right.cannot_fail)


def _branches(node: Branches, schema: pa.Schema, time_zone: str) -> Compiled:
    conditions = [compiled(condition, schema, time_zone) for condition, _ in node.branches]
    nodes = [*(value for _, value in node.branches), *([] if node.otherwise is None else [node.otherwise])]
    values = [compiled(each, schema, time_zone) for each in nodes]
    kind = next((each.kind for each in values if not pa.types.is_null(each.kind)), pa.null())
    nothing = _constant(pa.scalar(None, kind))
    alike = [nothing if pa.types.is_null(each.kind) else each for each in values]
    if node.otherwise is None:
        alike.append(nothing)
    if any(each.kind != kind for each in alike):
        types = ", ".join(str(each.kind) for each in values)
        raise OptionError(f"{text_of(node)}: its branches have the types {types}.", option="when", value=types)
    if all(each.cannot_fail for each in (*conditions[1:], *alike)):
        return Compiled(kind, _chosen(conditions, alike), cannot_fail=conditions[0].cannot_fail)
    return Compiled(kind, _taken(conditions, alike))


def _chosen(conditions: Sequence[Compiled], values: Sequence[Compiled]) -> Run:
    """Return what evaluates everything for all rows, and chooses."""

    def value_of(each: Compiled, batch: pa.RecordBatch) -> pa.Array | pa.Scalar:
        return each.run(batch) if each.constant is None else each.constant

    def run(batch: pa.RecordBatch) -> pa.Array:
        result = value_of(values[-1], batch)
        for condition, value in zip(reversed(conditions), reversed(values[:-1])):
            applies = condition.run(batch)
            applies = pc.fill_null(applies, False) if applies.null_count else applies
            result = pc.if_else(applies, value_of(value, batch), result)
        return result

    return run


def _taken(conditions: Sequence[Compiled], values: Sequence[Compiled]) -> Run:
    """Return what evaluates each branch for the rows that take it."""

    def run(batch: pa.RecordBatch) -> pa.Array:
        left, rows = batch, np.arange(batch.num_rows)  # the rows that no branch has taken, and where they were
        found: list[tuple[pa.Array, np.ndarray]] = []
        for condition, value in zip(conditions, values):
            applies = pc.fill_null(condition.run(left), False)
            mask = np.asarray(applies)
            found.append((value.run(left.filter(applies)), rows[mask]))
            left, rows = left.filter(pc.invert(applies)), rows[~mask]
        found.append((values[-1].run(left), rows))
        order = np.argsort(np.concatenate([where for _, where in found]), kind="stable")
        return pa.concat_arrays([column for column, _ in found]).take(pa.array(order))

    return run
