"""Finds the state of operators that have other uids than before, as a filter or a column was added in front of them.

Never: guess: where two operators could have a state, none gets it.

A uid that no user chose counts the operators from a name on (``datagen.4.window``): one more before it, and it is
another. State is found by what it is: after the same name, of the same kind of operator, and

1. under the same uids, where all of a kind after a name have the uids that they had, and fit;
2. else of the same description (keys, functions, windows; of an exchange, what it feeds), where one was, and one is;
3. else of one that fits: aggregates more or less, wider types (`StateSchema.takes_on`), where one was, and one is.

What the user named is found by that name only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec

from headgate.checkpoint.manifest import Manifest, QueryPlan
from headgate.protocol.state import KeyedState, OperatorState, ReaderState
from headgate.protocol.state_schema import StateSchema

_COUNTED = re.compile(r"(?P<name>.+)\.\d+\.(?P<kind>[^.]+?)(-\d+)?")
_NOTHING = (ReaderState(), OperatorState(), KeyedState())
_V = TypeVar("_V")


class Described(msgspec.Struct, frozen=True):
    """What a state is, or would be.

    Parameters
    ----------
    after
        The name from which its uid is counted.
    kind
        Of which kind the operator or exchange is.
    text
        By what it is keyed and what it is of.
    feeds
        Of an exchange: the texts of what it feeds.
    schema
        Its columns, where they may change.
    """

    after: str
    kind: str
    text: str = ""
    feeds: tuple[str, ...] = ()
    schema: StateSchema | None = None

    @property
    def _place(self) -> tuple[str, str]:
        return self.after, self.kind

    def is_as(self, before: Described) -> bool:
        """Return whether it is the same as before."""
        return (self.text, self.feeds) == (before.text, before.feeds)

    def takes_on(self, before: Described) -> bool:
        """Return whether state of before can be its own."""
        if self.text == before.text:
            return True
        return self.schema is not None and before.schema is not None and self.schema.takes_on(before.schema)

    def goes_on(self, before: Described) -> bool:
        """Return whether state of before can be its own, and goes to where it went."""
        return self.feeds == before.feeds and self.takes_on(before)


class Moves(msgspec.Struct, frozen=True):
    """Where state goes.

    Parameters
    ----------
    targets
        By the uid that it had: the one that it gets; None: another state gets that uid, and nobody takes this one.
        All others keep theirs.
    unclear
        By the uid that it had: those of which each could have it, of which it may be among them.
    """

    targets: dict[str, str | None]
    unclear: dict[str, tuple[str, ...]]


def moves(before: Mapping[str, Described], now: Mapping[str, Described]) -> Moves:
    """Return which state goes where.

    Parameters
    ----------
    before, now
        What was there and what is, by uid; without what the user named.
    """
    found: dict[str, str] = {}
    unclear: dict[str, tuple[str, ...]] = {}
    for place in dict.fromkeys(each._place for each in before.values()):
        was = {uid: each for uid, each in before.items() if each._place == place}
        new = {uid: each for uid, each in now.items() if each._place == place}
        if _is_as_it_was(was, new):
            found |= {uid: uid for uid in was}
            continue
        for fit in (Described.is_as, Described.goes_on, Described.takes_on):
            left = {uid: each for uid, each in was.items() if uid not in found and uid not in unclear}
            free = {uid: each for uid, each in new.items() if uid not in found.values()}
            fitting = {uid: tuple(other for other in free if fit(free[other], each)) for uid, each in left.items()}
            wanted = [other for others in fitting.values() for other in others]
            for uid, others in fitting.items():
                if len(others) == 1 and wanted.count(others[0]) == 1:
                    found[uid] = others[0]
                elif others:
                    unclear[uid] = others
    taken = set(found.values())
    targets: dict[str, str | None] = {uid: target for uid, target in found.items() if uid != target}
    return Moves(targets | {uid: None for uid in before if uid not in found and uid in taken}, unclear)


def _is_as_it_was(was: Mapping[str, Described], now: Mapping[str, Described]) -> bool:
    """Return whether all of a kind keep their uids: they have changed at most in what may change."""
    if was.keys() != now.keys():
        return False
    changed = [uid for uid in was if not now[uid].is_as(was[uid])]
    is_elsewhere = any(now[other].is_as(was[uid]) for uid in changed for other in changed)
    return not is_elsewhere and all(now[uid].takes_on(was[uid]) for uid in changed)


def described(of: Manifest | QueryPlan, named: Collection[str] = ()) -> dict[str, Described]:
    """Return what has a state, by uid: operators with state by key, and exchanges; without what the user named."""
    uids = [*(uid for uid in of.signatures if uid not in of.exchanges), *of.exchanges]
    made: dict[str, Described] = {}
    for uid in uids:
        match, exchange = _COUNTED.fullmatch(uid), of.exchanges.get(uid)
        if match is None or uid in named or (exchange is not None and exchange.kind == "forward"):
            continue  # nothing is stored of a forward exchange
        feeds: tuple[str, ...] = ()
        if exchange is not None:
            fed = (each for each in of.stages[exchange.consumer_stage] if each in of.signatures)
            feeds = tuple(f"{each if each in named else ''} {of.signatures[each]}" for each in fed)
        kind = match["kind"] if exchange is None else f"{exchange.kind} exchange"
        made[uid] = Described(match["name"], kind, of.signatures.get(uid, ""), feeds, of.state_schemas.get(uid))
    return made


def moved(manifest: Manifest, targets: Mapping[str, str | None]) -> Manifest:
    """Return a checkpoint with other uids; what is to be taken by nobody is not in it."""
    if not targets:
        return manifest
    replace = msgspec.structs.replace

    def of(by_uid: Mapping[str, _V]) -> dict[str, _V]:
        return {new: each for uid, each in by_uid.items() if (new := targets.get(uid, uid)) is not None}

    stages = [[targets.get(uid, uid) for uid in stage] for stage in manifest.stages]
    return replace(
        manifest,
        stages=tuple(tuple(uid for uid in stage if uid is not None) for stage in stages),
        subtasks=tuple(
            tuple(replace(each, operators=of(each.operators), keyed=of(each.keyed)) for each in stage)
            for stage in manifest.subtasks
        ),
        exchanges=of(manifest.exchanges),
        signatures=of(manifest.signatures),
        state_schemas=of(manifest.state_schemas),
        channels=tuple(
            replace(each, exchange=new, stored_as=each.stored_as or each.exchange)
            for each in manifest.channels
            if (new := targets.get(each.exchange, each.exchange)) is not None
        ),
    )


def with_state(manifest: Manifest) -> set[str]:
    """Return the uids that have any state in a checkpoint."""
    found = set(manifest.sources)
    for stage in manifest.subtasks:
        for subtask in stage:
            for by_uid in (subtask.readers, subtask.operators, subtask.keyed):
                found |= {uid for uid, each in by_uid.items() if each not in _NOTHING}
    found |= {channel.exchange for channel in manifest.channels}
    for committables in (manifest.commits, *(each.committables for each in manifest.uncommitted)):
        found |= {uid for uid, each in committables.items() if each}
    return found
