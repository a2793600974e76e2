"""Calls the author's methods, and checks every promise that they make.

Never: let an error of the author's code, or a wrong result of it, pass without its class, method, split and position.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from headgate.errors import ConnectorContractError, HeadgateError, UserFunctionError
from headgate.source.options import Options
from headgate.source.simple import SimpleSource


class SimpleOptions(Mapping[str, Any]):
    """The options as the author's class sees them: by name without case, those of no specification as texts.

    Parameters
    ----------
    options
        The parsed options; where the class declares none, free ones are under the pattern ``*``.
    """

    def __init__(self, options: Options) -> None:
        values = {name: value for name, value in options.items() if name != "*"}
        values.update(options.get("*", {}))
        self._values = {name.lower(): value for name, value in values.items()}

    def __getitem__(self, name: str) -> Any:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class UserSource:
    """One instance of the author's class, used on one thread.

    Parameters
    ----------
    user_class
        The author's class.
    options
        The user's options.
    schema
        What batches are checked against; None: they are not looked into, because nobody gets them.
    """

    def __init__(self, user_class: type[SimpleSource], options: SimpleOptions, schema: pa.Schema | None = None) -> None:
        self._name = user_class.__name__
        self._schema = schema
        try:
            self._instance = user_class(options)
        except Exception as error:
            self._raise(error, "__init__", None, None)

    def splits(self) -> list[str]:
        """Return the ids of all splits, in the author's order.

        Raises
        ------
        UserFunctionError
            The method raised.
        ConnectorContractError
            The ids are not a list of different texts.
        """
        try:
            listed = self._instance.splits()
            ids = None if isinstance(listed, (str, bytes, Mapping)) else list(listed)
        except Exception as error:
            self._raise(error, "splits", None, None)
        if ids is None:
            raise self._broken("splits", f"returned {listed!r:.200}. It must return a list of split ids, each a text")
        wrong = [each for each in ids if not isinstance(each, str) or not each]
        if wrong:
            raise self._broken("splits", f"listed {wrong[0]!r:.200} as a split id. Each id must be a text, not empty")
        twice = sorted({each for each in ids if ids.count(each) > 1}) if len(set(ids)) != len(ids) else []
        if twice:
            raise self._broken("splits", f"listed {', '.join(map(repr, twice[:5]))} more than once. List each id once")
        return ids

    def latest(self, split_id: str) -> Any:
        """Return the position after everything that is there now, in JSON's terms; None: nothing is there.

        Raises
        ------
        UserFunctionError
            The method raised.
        ConnectorContractError
            It returned something that JSON cannot hold.
        """
        try:
            position = self._instance.latest(split_id)  # type: ignore[attr-defined]
        except Exception as error:
            self._raise(error, "latest", split_id, None)
        return None if position is None else self._json(position, "latest", split_id)

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        """Yield the batches of a split after a position, each with the next position in JSON's terms.

        Raises
        ------
        UserFunctionError
            The method raised. Facts: function, split, position.
        ConnectorContractError
            It yielded something else than a batch of the right columns and a position.
        """
        iterator: Any = None
        try:
            iterator = iter(self._instance.read(split_id, position))
        except Exception as error:
            self._raise(error, "read", split_id, position)
        try:
            while True:
                try:
                    item = next(iterator)
                except StopIteration:
                    return
                except Exception as error:
                    self._raise(error, "read", split_id, position)
                batch, following = self._pair(item, split_id, position)
                if batch.num_rows and following == position:
                    raise self._broken(
                        "read",
                        f"yielded the position {following!r:.200} again after {batch.num_rows} further rows. Each "
                        "batch must have a position of its own",
                        split_id,
                    )
                position = following
                yield batch, position
        finally:
            if hasattr(iterator, "close"):
                iterator.close()

    def _pair(self, item: Any, split_id: str, position: Any) -> tuple[pa.RecordBatch, Any]:
        """Return what was yielded as a batch of the right columns and a position."""
        if not isinstance(item, (tuple, list)) or len(item) != 2 or not isinstance(item[0], pa.RecordBatch):
            found = (
                f"a pair of {type(item[0]).__name__} and {type(item[1]).__name__}"
                if isinstance(item, (tuple, list)) and len(item) == 2
                else type(item).__name__
            )
            raise self._broken(
                "read",
                f"yielded {found} after position {position!r:.200}. It must yield pairs of a pyarrow.RecordBatch and "
                "the next position",
                split_id,
            )
        if item[1] is None:
            raise self._broken(
                "read", "yielded None as a position, which stands for the beginning. Yield where to go on", split_id
            )
        batch = item[0]
        if self._schema is not None:
            try:
                batch = cast_to_schema(batch, self._schema)
            except ValueError as error:
                raise self._broken(
                    "read", f"yielded a batch after position {position!r:.200} in which {error}", split_id
                ) from error
        return batch, self._json(item[1], "read", split_id)

    def _json(self, position: Any, method: str, split_id: str) -> Any:
        """Return a position as it comes back from a checkpoint, so that the author sees no difference after one."""
        try:
            return msgspec.json.decode(msgspec.json.encode(json.loads(json.dumps(position, allow_nan=False))))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self._broken(
                method,
                f"gave the position {position!r:.200}, which JSON cannot hold ({error}). Use texts, numbers, booleans, "
                "lists and dicts of them",
                split_id,
            ) from error

    def _broken(self, method: str, what: str, split_id: str | None = None) -> ConnectorContractError:
        where = "" if split_id is None else f" of split {split_id!r}"
        return ConnectorContractError(
            f"{self._name}.{method}{where} {what}.", connector=self._name, method=method, split=split_id
        )

    def _raise(self, error: Exception, method: str, split_id: str | None, position: Any) -> NoReturn:
        """Raise the author's error as ours; one that is ours already says more than we could add."""
        if isinstance(error, HeadgateError):
            raise error
        where = "" if split_id is None else f" for split {split_id!r} at position {position!r:.200}"
        raise UserFunctionError(
            f"{self._name}.{method} raised {type(error).__name__}{where}: {error}",
            function=f"{self._name}.{method}",
            split=split_id,
            position=position,
        ) from error


def cast_to_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with exactly the columns of a schema, in its order and types.

    Raises
    ------
    ValueError
        A column is missing, unknown, null where it must not be, or of a type that holds something else. The message
        says which, in words that follow "in which".
    """
    if batch.schema.equals(schema) and not any(_has_forbidden_nulls(batch, field) for field in schema):
        return batch
    missing = [name for name in schema.names if batch.schema.names.count(name) != 1]
    unknown = [name for name in batch.schema.names if name not in schema.names]
    if missing or unknown:
        raise ValueError(
            f"the columns are {', '.join(batch.schema.names) or 'none'}; the schema declares {', '.join(schema.names)}"
        )
    return pa.RecordBatch.from_arrays([_cast_column(batch, field) for field in schema], schema=schema)


def _has_forbidden_nulls(batch: pa.RecordBatch, field: pa.Field) -> bool:
    return not field.nullable and batch.column(field.name).null_count > 0


def _cast_column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if _has_forbidden_nulls(batch, field):
        raise ValueError(f"the column {field.name!r} has nulls; the schema declares it NOT NULL")
    column = batch.column(field.name)
    if column.type == field.type:
        return column
    if pt.is_dictionary(column.type):
        column = column.dictionary_decode()
    wanted = f"the column {field.name!r} has the type {column.type}; the schema declares {field.type}"
    if _family(column.type) != _family(field.type) and not pt.is_null(column.type):
        raise ValueError(wanted)
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"{wanted}, and the values do not fit ({error})") from error


def _family(data_type: pa.DataType) -> str:
    """Return what kind of value a type holds: within a family a cast changes the form and not the meaning."""
    families = {
        "integer": (pt.is_integer,),
        "floating": (pt.is_floating,),
        "decimal": (pt.is_decimal,),
        "string": (pt.is_string, pt.is_large_string, pt.is_string_view),
        "binary": (pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary, pt.is_binary_view),
        "date": (pt.is_date,),
        "timestamp": (pt.is_timestamp,),
        "list": (pt.is_list, pt.is_large_list, pt.is_fixed_size_list),
        "struct": (pt.is_struct,),
        "map": (pt.is_map,),
    }
    for family, tests in families.items():
        if any(test(data_type) for test in tests):
            return family
    return str(data_type)
