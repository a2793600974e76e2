"""The aggregates of a window's rows: what is kept of rows until their window is whole, and what is made of it then.

Never: loop over rows, or over groups, in Python.

Each row is *lifted* to partial results of its own, partial results of a group are merged, as often as may be and in
the order of arrival, and the last of them is finished.

    aggregate                partial results               merged by        result
    -----------------------  ----------------------------  ---------------  -----------------------------------------
    count                    how many                      sum              long
    sum                      sum (null: no value yet)      sum              long, double, decimal of ten more digits
    avg                      sum, how many                 sum              double, decimal of four more digits
    min                      least                         min              the same type; NaN is the greatest number,
                                                                            a struct is ordered by its fields
    max                      greatest                      max              the same type
    first, last              value                         first, last      the same type
    collect_list             values                        concatenation    a list; nulls are left out
    approx_count_distinct    HyperLogLog registers, those  greatest by      long
                             that are not zero             register
    variance, stddev         how many, mean, squares       Chan's formula   double
    any other of Spark's     its buffer, as bytes          Spark's code     `windows.catalyst_aggregate`

A sum of integers that does not fit into a long is an error, as in Spark's ANSI mode.

Follows Spark 4.3's aggregates; O. Ertl, "New cardinality estimation algorithms for HyperLogLog sketches" (2017), whose
estimate needs no tables and errs as much as Spark's.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import OptionError
from headgate.expressions.casts import is_number
from headgate.expressions.expressions import Node, text_of
from headgate.operators.key_hash import check_key_type, key_hash
from headgate.operators.windows.groups import Groups
from headgate.operators.windows.ordering import as_integers, from_integers, is_ordered, order_of
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state_schema import StateColumn

Merging = Literal[
    "sum", "min", "max", "first", "last", "first_valid", "last_valid", "time", "lists", "registers", "buffers"
]  # fmt: skip
ORDERED: tuple[Merging, ...] = ("first", "last", "first_valid", "last_valid")
"""What depends on the order of arrival."""


class Aggregate(msgspec.Struct, frozen=True):
    """An aggregate of columns.

    Parameters
    ----------
    function
        Its name.
    argument
        What it is computed of; None: the rows.
    parameters
        What else it was given.
    name
        The name of its column; None: as Spark calls it.
    accumulator
        How it is computed; None: as its name says.
    """

    function: str
    argument: Node | None = None
    parameters: dict[str, Any] = {}
    name: str | None = None
    accumulator: Accumulator | None = None

    @property
    def name_in_output(self) -> str:
        """The name that its column has in the output."""
        return self.name if self.name is not None else self.text

    @property
    def text(self) -> str:
        """What it is, as Spark writes it."""
        return f"{self.function}({'1' if self.argument is None else text_of(self.argument)})"

    def state_text(self, kind: pa.DataType | None) -> str:
        """Return what is kept of values of a type, for people to read."""
        parameters = "".join(f", {name}={value!r}" for name, value in sorted(self.parameters.items()))
        return f"{self.text}{'' if kind is None else f' of {kind}'}{parameters}"

    def state_column(self, kind: pa.DataType | None) -> StateColumn:
        """Return what is kept of values of a type, and what of it may change."""
        return StateColumn(
            name=self.state_text(None),
            kind="" if kind is None else str(kind),
            can_widen=self.accumulator is None,  # what is in the buffers of Spark's own code nobody else knows
            # Of a group without rows it would be a null that counts.
            can_be_added=self.function not in ("first", "last") or self.parameters.get("ignorenulls", False),
        )

    def alias(self, name: str) -> Aggregate:
        """Name its column."""
        return msgspec.structs.replace(self, name=name)

    def __repr__(self) -> str:
        return f"Aggregate<{self.text}{'' if self.name is None else f' AS {self.name}'}>"


class Partial(msgspec.Struct, frozen=True):
    """A column of partial results.

    Parameters
    ----------
    kind
        Its type.
    merging
        How values of a group become one.
    of
        The aggregate, for errors.
    merge_buffers
        Merges ``buffers``: takes them and the number of the group of each, in its order.
    counts
        Whether it is a number of rows, whose sums need no look for what is too large.
    """

    kind: pa.DataType
    merging: Merging
    of: str
    merge_buffers: Callable[[Any, Any], Any] | None = None
    counts: bool = False


class Accumulator(ABC):
    """How an aggregate is computed."""

    kind: pa.DataType
    """The type of its result."""
    partials: tuple[Partial, ...]
    """Its partial results."""
    two_phase = True
    """Whether rows may be merged before the exchange, too: in any order, and without Spark's own code."""
    blocks = False
    """As `headgate.operators.operator.Operator.blocks`."""

    def prepare(self, context: OperatorContext) -> Iterator[None]:
        """Wait for what `open` needs, in steps: `headgate.operators.operator.Operator.prepare`."""
        return iter(())

    def open(self, context: OperatorContext) -> None:
        """Get ready. Called once, before anything else."""

    def close(self) -> None:
        """Release what it holds."""

    @abstractmethod
    def lift(self, values: Any, rows: int) -> list[Any]:
        """Return the partial results of single rows; ``values`` is None for an aggregate of rows."""

    def finish(self, partials: Sequence[Any]) -> Any:
        """Return the results of groups."""
        return partials[0]

    def of_nothing(self) -> list[Any]:
        """Return the partial results of a group without rows."""
        return [pa.nulls(1, each.kind) for each in self.partials]


def accumulator_of(aggregate: Aggregate, kind: pa.DataType | None) -> Accumulator:
    """Return how an aggregate is computed of values of a type.

    Raises
    ------
    OptionError
        It cannot be computed of them.
    """
    if aggregate.accumulator is not None:
        return aggregate.accumulator
    made = _MADE[aggregate.function](aggregate, kind)
    if made is None:
        raise OptionError(
            f"{aggregate.text}: there is no {aggregate.function} of {kind}.", option=aggregate.function, value=str(kind)
        )
    return made


# Counting and adding.


class _Count(Accumulator):
    kind = pa.int64()

    def __init__(self, of: str) -> None:
        self.partials = (Partial(pa.int64(), "sum", of, counts=True),)

    def lift(self, values: Any, rows: int) -> list[Any]:
        if values is None or values.null_count == 0:
            return [ones(rows)]
        return [values.is_valid().cast(pa.int64())]

    def of_nothing(self) -> list[Any]:
        return [pa.array([0])]


@functools.lru_cache(maxsize=1)
def _many_ones() -> Any:
    return pa.array(np.ones(1 << 16, np.int64))


def ones(rows: int) -> Any:
    """Return a one for each row."""
    many = _many_ones()
    return many.slice(0, rows) if rows <= len(many) else pa.array(np.ones(rows, np.int64))


class _Sum(Accumulator):
    """A sum of integers, of floating point numbers, or of decimals."""

    def __init__(self, of: str, kind: pa.DataType) -> None:
        self._of = of
        if pa.types.is_decimal(kind):
            self.kind = _sum_type(kind)
            held = _decimal_sum(kind)
        else:
            self.kind = held = pa.int64() if pa.types.is_integer(kind) else pa.float64()
        self.partials = (Partial(held, "sum", of),)

    def lift(self, values: Any, rows: int) -> list[Any]:
        return [values.cast(self.partials[0].kind)]

    def finish(self, partials: Sequence[Any]) -> Any:
        return _fitted(partials[0], self.kind, self._of)


def _sum_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a sum of decimals has in Spark."""
    return pa.decimal128(min(38, kind.precision + 10), kind.scale)


def _decimal_sum(kind: pa.DataType) -> pa.DataType:
    """Return the type in which decimals are added up: there is room for 10,000,000,000 of any."""
    if kind.precision + 10 <= 38:
        return pa.decimal128(38, kind.scale)
    return pa.decimal256(76, kind.scale)


def _fitted(values: Any, kind: pa.DataType, of: str) -> Any:
    try:
        return values.cast(kind)
    except pa.ArrowInvalid as error:
        raise overflow(of, kind) from error


def overflow(of: str, kind: pa.DataType) -> OptionError:
    """Return the error for a result that is too large for its type."""
    return OptionError(
        f"{of}: a result does not fit into {kind}. Cast the column to a wider type before: a decimal, or double.",
        option=of, value=str(kind),
    )  # fmt: skip


class _Average(Accumulator):
    def __init__(self, of: str, kind: pa.DataType) -> None:
        self._of = of
        held = pa.float64()
        self.kind = pa.float64()
        if pa.types.is_decimal(kind):
            self.kind = pa.decimal128(min(38, kind.precision + 4), min(38, kind.scale + 4))
            held = _decimal_sum(kind)
            self._sum_kind = _sum_type(kind)
        self.partials = (Partial(held, "sum", of), Partial(pa.int64(), "sum", of, counts=True))

    def lift(self, values: Any, rows: int) -> list[Any]:
        # A long beyond 2**53 is rounded, as in Spark.
        return [values.cast(self.partials[0].kind, safe=False), *_Count(self._of).lift(values, rows)]

    def finish(self, partials: Sequence[Any]) -> Any:
        total, count = partials
        some = pc.if_else(pc.equal(count, 0), None, count)  # null, as the sum is
        if not pa.types.is_decimal(self.kind):
            return pc.divide(total, some.cast(pa.float64()))
        _fitted(total, self._sum_kind, self._of)  # an error in Spark, although the average might fit
        # Arrow's quotient has more digits than are wanted, and is cut after those: the rounding that follows is exact.
        digits = min(total.type.precision, 48)
        quotient = pc.divide(total.cast(pa.decimal256(digits, total.type.scale)), some.cast(pa.decimal256(19, 0)))
        rounded = pc.round(quotient, ndigits=self.kind.scale, round_mode="half_towards_infinity")
        return _fitted(rounded, self.kind, self._of)


# The least, the greatest, the first, the last.


class _Extreme(Accumulator):
    """The least or the greatest value; of floating point numbers NaN is the greatest, which Arrow's max leaves out."""

    def __init__(self, of: str, kind: pa.DataType, merging: Merging) -> None:
        self.kind = kind
        self._as_integers = merging == "max" and pa.types.is_floating(kind)
        self.partials = (Partial(pa.int64() if self._as_integers else kind, merging, of),)

    def lift(self, values: Any, rows: int) -> list[Any]:
        return [as_integers(values)] if self._as_integers else [values]

    def finish(self, partials: Sequence[Any]) -> Any:
        return from_integers(partials[0], self.kind) if self._as_integers else partials[0]


class _OneOf(Accumulator):
    """The first or the last value, in the order of arrival."""

    two_phase = False

    def __init__(self, of: str, kind: pa.DataType, merging: Merging) -> None:
        self.kind = kind
        self.partials = (Partial(kind, merging, of),)

    def lift(self, values: Any, rows: int) -> list[Any]:
        return [values]


# Lists.


class _Values(Accumulator):
    two_phase = False

    def __init__(self, of: str, kind: pa.DataType) -> None:
        self.kind = pa.list_(kind)
        self.partials = (Partial(self.kind, "lists", of),)

    def lift(self, values: Any, rows: int) -> list[Any]:
        return [_single(values.drop_null(), values.is_valid())]

    def of_nothing(self) -> list[Any]:
        return [pa.array([[]], self.kind)]


def _single(values: Any, there: Any) -> Any:
    """Return lists of one value, or of none where there is none."""
    counts = there.to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), values)


# Moments.

_MOMENTS = pa.list_(pa.float64(), 3)
"""How many values there are, their mean, and the sum of the squares of their distances from it."""


class _Variance(Accumulator):
    """A variance or its root, of all values or of a sample of them.

    Parameters
    ----------
    of
        The aggregate, for errors.
    sample
        Whether values are a sample.
    root
        Whether the result is the root.
    of_one
        What a sample of one value has.
    """

    kind = pa.float64()

    def __init__(self, of: str, *, sample: bool, root: bool, of_one: float | None) -> None:
        self._sample, self._root, self._of_one = sample, root, of_one
        self.partials = (Partial(_MOMENTS, "buffers", of, merged_moments),)

    def lift(self, values: Any, rows: int) -> list[Any]:
        numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False)
        there = values.is_valid().to_numpy(zero_copy_only=False)
        with np.errstate(invalid="ignore"):
            squares = numbers - numbers  # NaN for what is infinite
        return [_moments(there, numbers, squares)]

    def of_nothing(self) -> list[Any]:
        return [_moments(np.zeros(1), np.zeros(1), np.zeros(1))]

    def finish(self, partials: Sequence[Any]) -> Any:
        counts, _, squares = _parts_of(partials[0])
        with np.errstate(divide="ignore", invalid="ignore"):
            found = squares / (counts - self._sample)
            found = np.sqrt(found) if self._root else found
        alone = counts == 1 if self._sample else np.zeros(len(counts), bool)
        nothing = counts == 0
        if self._of_one is None:
            nothing |= alone
        else:
            found[alone] = self._of_one
        return pa.array(found, mask=nothing, from_pandas=False)


def _moments(counts: Any, means: Any, squares: Any) -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.stack([counts, means, squares], axis=1).ravel()), 3)


def _parts_of(moments: Any) -> Any:
    return moments.flatten().to_numpy().reshape(-1, 3).T


def merged_moments(moments: Any, groups: Any) -> Any:
    """Return the moments of each group, given those of its parts with the number of the group of each, in its order."""
    counts, means, squares = _parts_of(moments)
    starts = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]]))
    sizes = np.diff(np.append(starts, len(groups)))
    some = np.add.reduceat(counts, starts)
    with np.errstate(over="ignore", invalid="ignore"):  # as in Java
        base = means[starts]  # sums of distances from it lose no digits, and do not overflow
        mean = base + np.add.reduceat(counts * (means - np.repeat(base, sizes)), starts) / np.maximum(some, 1)
        apart = means - np.repeat(mean, sizes)
        return _moments(some, mean, np.add.reduceat(squares + counts * apart * apart, starts))


# Sketches.

_RHO_BITS = 6


class _Sketch(Accumulator):
    """HyperLogLog: of each register that is not zero its number and, in the last six bits, its value."""

    kind = pa.int64()

    def __init__(self, of: str, rsd: float) -> None:
        self.index_bits = math.ceil(2.0 * math.log(1.106 / rsd) / math.log(2.0))  # as Spark does
        held = pa.uint16() if self.index_bits + _RHO_BITS <= 16 else pa.uint32()
        self.partials = (Partial(pa.list_(held), "registers", of),)

    def lift(self, values: Any, rows: int) -> list[Any]:
        there = values.is_valid()
        hashes = key_hash([values.drop_null()])
        left = 64 - self.index_bits
        rest = hashes & np.uint64((1 << left) - 1)
        # The exponent of a double is the place of its highest bit; no bits below can round it up within so few.
        high = (rest >> np.uint64(11)).astype(np.float64)
        low = (rest & np.uint64(2047)).astype(np.float64)
        bits = np.where(high > 0, np.frexp(high)[1] + 11, np.frexp(low)[1])
        rho = (left - bits + 1).astype(np.uint64)
        code = ((hashes >> np.uint64(left)) << np.uint64(_RHO_BITS)) | rho
        kind = self.partials[0].kind.value_type
        return [_single(pa.array(code.astype(kind.to_pandas_dtype())), there)]

    def of_nothing(self) -> list[Any]:
        return [pa.array([[]], self.partials[0].kind)]

    def finish(self, partials: Sequence[Any]) -> Any:
        lists = partials[0]
        values = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64) & ((1 << _RHO_BITS) - 1)
        levels = 64 - self.index_bits + 2
        lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        found = np.empty(len(lengths), np.int64)
        begin, ends = 0, np.cumsum(lengths)
        for row in range(0, len(lengths), 4096):
            part = lengths[row : row + 4096]
            end = int(ends[row + len(part) - 1])
            groups = np.repeat(np.arange(len(part)), part)
            counts = np.bincount(groups * levels + values[begin:end], minlength=len(part) * levels)
            found[row : row + len(part)] = self._estimate(counts.reshape(len(part), levels), part)
            begin = end
        return pa.array(found)

    def _estimate(self, counts: Any, used: Any) -> Any:
        """Return the estimates, from how many registers of each group have which value."""
        registers = 1 << self.index_bits
        counts[:, 0] = registers - used
        highest = counts.shape[1] - 1
        total = registers * _tau(1.0 - counts[:, highest] / registers)
        for value in range(highest - 1, 0, -1):
            total = 0.5 * (total + counts[:, value])
        total = total + registers * _sigma(counts[:, 0] / registers)
        with np.errstate(divide="ignore"):
            estimate = registers * registers / (2.0 * math.log(2.0)) / total
        return np.round(np.where(used == 0, 0.0, estimate)).astype(np.int64)


def _sigma(x: Any) -> Any:
    """Return Ertl's correction for registers that are zero."""
    y, z = 1.0, x.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(64):
            x = x * x
            before = z
            z = z + x * y
            y = y + y
            if np.array_equal(before, z):
                break
    return z


def _tau(x: Any) -> Any:
    """Return Ertl's correction for registers that are full."""
    y, z = 1.0, 1.0 - x
    for _ in range(64):
        x = np.sqrt(x)
        before = z
        y = 0.5 * y
        z = z - np.square(1.0 - x) * y
        if np.array_equal(before, z):
            break
    return z / 3.0


# By name.


def _made_count(aggregate: Aggregate, kind: Any) -> Accumulator | None:
    return _Count(aggregate.text)


def _made_sum(aggregate: Aggregate, kind: Any) -> Accumulator | None:
    return _Sum(aggregate.text, kind) if is_number(kind) else None


def _made_average(aggregate: Aggregate, kind: Any) -> Accumulator | None:
    return _Average(aggregate.text, kind) if is_number(kind) else None


def _made_extreme(aggregate: Aggregate, kind: Any) -> Accumulator | None:
    merging: Merging = "min" if aggregate.function == "min" else "max"
    return _Extreme(aggregate.text, kind, merging) if is_ordered(kind) else None


def _made_one_of(aggregate: Aggregate, kind: Any) -> Accumulator | None:
    valid = aggregate.parameters["ignorenulls"]
    merging: Merging = (
        ("first_valid" if valid else "first")
        if aggregate.function == "first"
        else ("last_valid" if valid else "last")
    )  # fmt: skip
    return _OneOf(aggregate.text, kind, merging)


def _made_values(aggregate: Aggregate, kind: Any) -> Accumulator | None:
    return _Values(aggregate.text, kind)


def _made_sketch(aggregate: Aggregate, kind: Any) -> Accumulator | None:
    try:
        check_key_type(aggregate.text, kind)
    except OptionError:
        return None  # it has no hash
    return _Sketch(aggregate.text, aggregate.parameters["rsd"])


def _made_variance(aggregate: Aggregate, kind: Any) -> Accumulator | None:
    root, sample = aggregate.function.startswith("stddev"), aggregate.function.endswith("samp")
    of_one = aggregate.parameters.get("of_one")
    return _Variance(aggregate.text, sample=sample, root=root, of_one=of_one) if kind == pa.float64() else None


_MADE = {
    "count": _made_count,
    "sum": _made_sum,
    "avg": _made_average,
    "min": _made_extreme,
    "max": _made_extreme,
    "first": _made_one_of,
    "last": _made_one_of,
    "collect_list": _made_values,
    "approx_count_distinct": _made_sketch,
    **dict.fromkeys(("stddev_pop", "stddev_samp", "var_pop", "var_samp"), _made_variance),
}


# Merging.


def time_of(name: str) -> str:
    """Return the name of the column with the event times of first or last values, where these are in that order."""
    return f"{name} at"


def merge(table: Any, keys: Sequence[str], partials: dict[str, Partial]) -> Any:
    """Merge the partial results of rows with the same keys.

    Parameters
    ----------
    table
        Rows in the order of arrival, with the keys and the columns of ``partials``.
    keys
        The names of the keys.
    partials
        By the name of its column.

    Returns
    -------
    pa.Table
        A row per group, with the same columns.

    Raises
    ------
    OptionError
        A sum of integers does not fit into a long.
    """
    groups = Groups(table, keys)
    for name, partial in partials.items():
        match partial.merging:
            case "min" | "max" if pa.types.is_struct(partial.kind):
                order = order_of(table.column(name))
                groups.pick(name, last=partial.merging == "max", valid=True, order=order)
            case "sum" | "min" | "max":
                groups.reduce(name, partial.merging)
            case "first" | "last" | "first_valid" | "last_valid":
                last, valid = partial.merging.startswith("last"), partial.merging.endswith("valid")
                by = time_of(name)
                groups.pick(name, last=last, valid=valid, by=by if by in partials else None)
            case "lists" | "registers":
                groups.gather(name)
            case "buffers":
                assert partial.merge_buffers is not None
                groups.fold(name, partial.merge_buffers)
    merged = groups.result()
    for name, partial in partials.items():
        column = merged[name]
        if partial.merging == "registers":
            column = _greatest_by_register(column)
        elif partial.merging == "sum" and pa.types.is_integer(partial.kind) and not partial.counts:
            _check_sum(table, keys, name, partial)
        merged[name] = column if column.type == partial.kind else column.cast(partial.kind)
    return pa.table([merged[name] for name in (*keys, *partials)], names=[*keys, *partials])


def _check_sum(table: Any, keys: Sequence[str], name: str, partial: Partial) -> None:
    """Check that no sum left the range of a long: Arrow's wrap around."""
    values = table.column(name)
    extremes = pc.min_max(values).as_py()
    if extremes["min"] is None:
        return
    largest = max(abs(extremes["min"]), abs(extremes["max"]))
    if largest * table.num_rows < 2**63:
        return
    halves = table.select([*keys]).append_column("high", pc.shift_right(values, 32))
    halves = halves.append_column("low", pc.bit_wise_and(values, 0xFFFFFFFF))
    groups = Groups(halves, keys)
    groups.reduce("high", "sum")
    groups.reduce("low", "sum")
    sums = groups.result()
    high = pc.add(sums["high"], pc.shift_right(sums["low"], 32))
    if pc.any(pc.or_(pc.less(high, -(2**31)), pc.greater_equal(high, 2**31))).as_py():
        raise overflow(partial.of, pa.int64())


def _greatest_by_register(lists: Any) -> Any:
    """Return lists of codes in which each register stands once, with its greatest value."""
    lists = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    codes = lists.flatten().to_numpy(zero_copy_only=False)
    keyed = (np.repeat(np.arange(len(lengths)), lengths) << 32) | codes.astype(np.int64)
    keyed.sort()
    last = np.ones(len(keyed), bool)
    last[:-1] = (keyed[1:] >> _RHO_BITS) != (keyed[:-1] >> _RHO_BITS)
    kept = keyed[last]
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(np.bincount(kept >> 32, minlength=len(lengths)), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array((kept & 0xFFFFFFFF).astype(codes.dtype)))
