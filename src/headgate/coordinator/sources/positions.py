"""Where a checkpoint reads on in each split, and the same checkpoint reading on elsewhere.

Never: change a checkpoint that is stored, or anything in it but positions: keyed state, rows in flight and what was
committed stay as they are, so rows that are read again are counted again.

A split is in the state of the reader that has it, or in that of the enumerator; where it is in both, the reader's
counts (`headgate.coordinator.sources.source_state`). Those that were read to their end are in neither.

Splits are bytes of the connector's. Where these are a JSON object, as all built-in sources write them, its ``position``
says where reading continues, and a whole number in it lies within ``start``, ``stop`` and ``end``, where there are any.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from headgate.checkpoint.manifest import Manifest, SourceEntry
from headgate.coordinator.sources.source_state import SourceState, decode_source_state, encode_source_state
from headgate.errors import OptionError, StoredStateError
from headgate.protocol.state import InlineState, ReaderState, SplitState, SubtaskState

_POSITION = "position"
_MADE_OF_UNITS = "unit"
"""A position is then one in a unit, such as a row group, and not one between the ends of the split."""


class SplitPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A split of a checkpoint.

    Parameters
    ----------
    source
        The uid of its source.
    split_id
        The split.
    subtask
        Whose reader has it; None: the enumerator has it.
    position
        Where reading continues: what the split calls so, else all of it; None: at its beginning, or it is not known.
    fields
        All that is stored of it; None: its connector does not write JSON.
    """

    source: str
    split_id: str
    subtask: int | None
    position: Any
    fields: dict[str, Any] | None


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A new position of a split.

    Parameters
    ----------
    source, split_id
        The split.
    before, after
        Where reading would continue, and where it does.
    """

    source: str
    split_id: str
    before: Any
    after: Any

    @property
    def distance(self) -> int | None:
        """By how much it is moved on, or below zero back; None: positions are not whole numbers."""
        if type(self.before) is int and type(self.after) is int:
            return self.after - self.before
        return None


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for.

    Parameters
    ----------
    splits
        The ids of splits: ``*``, ``?`` and ``[..]`` stand for what they stand for in names of files.
    position
        Where they read on.
    relative
        Whether ``position`` is added to where they would.
    """

    splits: str
    position: Any
    relative: bool = False


def split_positions(manifest: Manifest) -> list[SplitPosition]:
    """Return the splits of a checkpoint whose enumerators' states are in it, by source and id."""
    found = []
    for uid, entry in manifest.sources.items():
        state = _source_state(entry)
        unassigned = [
            fields for fields in _splits_in(_json(state.enumerator)) if fields["split_id"] not in state.assigned
        ]
        found += [_of_fields(uid, None, fields) for fields in unassigned]
    for subtasks in manifest.subtasks:
        for number, subtask in enumerate(subtasks):
            for uid, reader in subtask.readers.items():
                found += [_of_split(uid, number, split) for split in reader.splits]
    return sorted(found, key=lambda each: (each.source, each.split_id))


def moves(manifest: Manifest, source: str | None, wanted: list[Wanted]) -> list[Move]:
    """Return which splits get which position.

    Parameters
    ----------
    manifest
        The checkpoint.
    source
        The uid of the source; None: there is only one.
    wanted
        The new positions. Of a split that is named by its id, and by a pattern, the former counts.

    Raises
    ------
    OptionError
        There is no such source or split, its position cannot be that, or it is given two.
    """
    uid = _source(manifest, source)
    splits = [each for each in split_positions(manifest) if each.source == uid]
    by_split: dict[str, Wanted] = {}
    for each in wanted:
        matching = [split.split_id for split in splits if split.split_id == each.splits]
        matching = matching or fnmatch.filter([split.split_id for split in splits], each.splits)
        if not matching:
            ids = ", ".join(split.split_id for split in splits[:20]) + (", ..." if len(splits) > 20 else "")
            raise OptionError(
                f"The checkpoint has no split {each.splits!r} of source {uid!r}: it has {ids or 'none'}. A split that "
                "was read to its end is not in it any more, and one that was not discovered yet has no position.",
                option="--set", value=each.splits,
            )  # fmt: skip
        for split_id in matching:
            other = by_split.get(split_id)
            if other is not None and (other.splits == split_id) == (each.splits == split_id):
                raise OptionError(
                    f"The split {split_id!r} is given two positions, by {other.splits!r} and {each.splits!r}. Give it "
                    "one; that of its id counts, not that of a pattern.",
                    option="--set", value=each.splits,
                )  # fmt: skip
            if other is None or each.splits == split_id:
                by_split[split_id] = each
    return [
        Move(
            source=uid, split_id=each.split_id, before=each.position, after=_new_position(each, by_split[each.split_id])
        )
        for each in splits
        if each.split_id in by_split
    ]


def moved(manifest: Manifest, all_moves: list[Move]) -> Manifest:
    """Return the checkpoint with these positions."""
    by_source: dict[str, dict[str, Any]] = {}
    for each in all_moves:
        by_source.setdefault(each.source, {})[each.split_id] = each.after
    replace = msgspec.structs.replace

    def reader(uid: str, state: ReaderState) -> ReaderState:
        new = by_source.get(uid, {})
        return replace(state, splits=tuple(_moved_split(split, new) for split in state.splits))

    def subtask(state: SubtaskState) -> SubtaskState:
        return replace(state, readers={uid: reader(uid, each) for uid, each in state.readers.items()})

    return replace(
        manifest,
        sources={
            uid: _moved_enumerator(entry, by_source[uid]) if uid in by_source else entry
            for uid, entry in manifest.sources.items()
        },
        subtasks=tuple(tuple(map(subtask, stage)) for stage in manifest.subtasks),
    )


def check_readable(
    manifest: Manifest, source: str, split: Callable[[bytes], Any], state: Callable[[bytes], Any]
) -> None:
    """Raise what a source's serializers raise where they cannot read its splits, or its enumerator's state."""
    state(_source_state(manifest.sources[source]).enumerator)
    for subtasks in manifest.subtasks:
        for subtask in subtasks:
            for each in subtask.readers.get(source, ReaderState()).splits:
                split(each.data)


def _source(manifest: Manifest, source: str | None) -> str:
    uids = ", ".join(map(repr, sorted(manifest.sources)))
    if source is None and len(manifest.sources) != 1:
        raise OptionError(
            f"The checkpoint has the sources {uids or 'of no query'}: say which one with --source.",
            option="--source", value=None,
        )  # fmt: skip
    if source is not None and source not in manifest.sources:
        raise OptionError(f"The checkpoint has no source {source!r}: it has {uids}.", option="--source", value=source)
    return source or next(iter(manifest.sources))


def _new_position(split: SplitPosition, wanted: Wanted) -> Any:
    """Return where a split is to read on."""

    def error(why: str) -> OptionError:
        return OptionError(f"The split {split.split_id!r}: {why}", option="--set", value=wanted.position)

    if split.fields is None or _POSITION not in split.fields:
        raise error("its connector does not store a position by that name, so it cannot be set here.")
    new = wanted.position
    if wanted.relative:
        if type(split.position) is not int:
            raise error(f"its position is {split.position!r}, which nothing can be added to. Give the whole position.")
        new = split.position + new
    if type(split.position) is int and type(new) is not int:
        raise error(f"its position is a whole number ({split.position}), not {new!r}.")
    if type(new) is int:
        low = high = None
        if split.fields.get(_MADE_OF_UNITS) is None:
            low = split.fields.get("start")
            high = next((each for name in ("stop", "end") if (each := split.fields.get(name)) is not None), None)
        low = low if type(low) is int else 0
        if new < low or (type(high) is int and new > high):
            raise error(
                f"its position must lie from {low} to {high if type(high) is int else 'its end'}, not at {new}."
            )
    return new


def _of_split(uid: str, subtask: int, split: SplitState) -> SplitPosition:
    fields = _json(split.data)
    if not isinstance(fields, dict):
        return SplitPosition(source=uid, split_id=split.split_id, subtask=subtask, position=None, fields=None)
    return _of_fields(uid, subtask, {"split_id": split.split_id, **fields})


def _of_fields(uid: str, subtask: int | None, fields: dict[str, Any]) -> SplitPosition:
    position = fields.get(_POSITION)
    if _POSITION not in fields:
        position = {name: value for name, value in fields.items() if name not in ("v", "split_id")} or None
    return SplitPosition(
        source=uid, split_id=fields["split_id"], subtask=subtask, position=position, fields=fields
    )  # fmt: skip


def _source_state(entry: SourceEntry) -> SourceState:
    if not isinstance(entry.enumerator, InlineState):
        raise StoredStateError(
            f"The state of the enumerator of {entry.name} is in a file that was not read: {entry.enumerator.path}.",
            what="an enumerator's state", path=entry.enumerator.path,
        )  # fmt: skip
    return decode_source_state(entry.enumerator.data)


def _json(data: bytes) -> Any:
    """Return bytes of a connector's as JSON; None: it writes something else."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _splits_in(state: Any) -> Iterator[dict[str, Any]]:
    """Yield the splits in an enumerator's state, wherever in it they are."""
    if isinstance(state, dict):
        if isinstance(state.get("split_id"), str):
            yield state
            return
        state = list(state.values())
    if isinstance(state, list):
        for each in state:
            yield from _splits_in(each)


def _moved_split(split: SplitState, new: Mapping[str, Any]) -> SplitState:
    if split.split_id not in new:
        return split
    fields = msgspec.json.decode(split.data) | {_POSITION: new[split.split_id]}
    return msgspec.structs.replace(split, data=msgspec.json.encode(fields, order="sorted"), ended=False)


def _moved_enumerator(entry: SourceEntry, new: Mapping[str, Any]) -> SourceEntry:
    state = _source_state(entry)
    fields = _json(state.enumerator)
    splits = [each for each in _splits_in(fields) if each["split_id"] in new]
    if not splits:
        return entry
    for each in splits:
        each[_POSITION] = new[each["split_id"]]
    state = msgspec.structs.replace(state, enumerator=msgspec.json.encode(fields, order="sorted"))
    return msgspec.structs.replace(entry, enumerator=InlineState(encode_source_state(state)))
