"""Makes a checkpoint fit the query that is restored from it: the same program or a changed one, at any parallelism.

Never: read a file, or drop state that the user did not allow to be dropped.

    state                        at the same parallelism   at another
    ---------------------------  ------------------------  ------------------------------------------------
    enumerator, by uid           as it is                  as it is
    splits, by uid, with their   the same subtask          round robin in the order of their ids
    rows in flight
    finished splits, by uid      the same subtask          round robin; all are reported to the enumerator
    operators' items, by uid     the same subtask          round robin in the order of the subtasks
    keyed state, by uid          the same subtask          every subtask gets each chunk that overlaps its key groups;
                                                           chunks in the order of the old subtasks, then in theirs
    channel state, by exchange   as it is                  as it is: `headgate.checkpoint.channel_assignment` deals it
                                                           out when subtasks are deployed
    committables, by sink uid    committed first           committed first

A source or operator whose uid is not in the checkpoint starts afresh. State of a uid that the query does not have is
left over: an error that names it, unless ``allowNonRestoredState`` is set. An exchange that has become one of another
kind is an error if rows were on their way through it: nothing says who gets them now. So is one of other keys, and
keyed state of other keys, windows or aggregates than the operator has: it would mean something else. Aggregates
more or less, and types that became wider, are none: `headgate.protocol.state_schema`. What got another uid, since there
are more or fewer operators in front of it, is found by what it is: `headgate.checkpoint.moved_state`.

Chunks of another query (its savepoint) get names of their own, since that one named its chunks as this one does.

Follows FLIP-537, "Reassignment on recovery"; FLIP-547, 4.2; Flink's StateAssignmentOperation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headgate.checkpoint.manifest import Manifest, PlannedSource, QueryPlan, UncommittedEpoch
from headgate.checkpoint.moved_state import described, moved, moves, with_state
from headgate.errors import OptionError, StoredStateError
from headgate.protocol.key_groups import subtask_of
from headgate.protocol.state import (
    ChunkState,
    FinishedSplit,
    KeyedState,
    OperatorState,
    ReaderState,
    SubtaskState,
)

_NO_READER, _NO_OPERATOR, _NO_KEYED = ReaderState(), OperatorState(), KeyedState()


def restore(manifest: Manifest, plan: QueryPlan, *, allow_non_restored_state: bool = False) -> Manifest:
    """Return the checkpoint as one of this query would be: its stages, its parallelism, one state per subtask.

    A source that starts afresh is not in its ``sources``. Number and epoch stay those of the checkpoint, and so do
    ``channels`` and ``channels_parallelism``.

    Raises
    ------
    OptionError
        An option that may not change has changed; all that did are named.
    StoredStateError
        State is left over, or belongs to another kind of source or exchange, or to other keys, windows or aggregates.
    """
    _check_options(manifest, plan)
    manifest, left_over = _moved(manifest, plan)
    _check_exchanges(manifest, plan)
    _check_signatures(manifest, plan)
    uids = {uid for stage in plan.stages for uid in stage} | set(plan.sources) | set(plan.exchanges)
    left_over |= {uid: manifest.signatures.get(uid, "") for uid in with_state(manifest) - uids}
    if left_over and not allow_non_restored_state:
        texts = [_shown(uid, left_over[uid]) for uid in sorted(left_over)]
        raise StoredStateError(
            f"Checkpoint {manifest.checkpoint_id} holds state of {', '.join(texts)}, which the query does not have; it "
            f"has {', '.join(_shown(uid, plan.signatures.get(uid, '')) for uid in sorted(uids))}. Give an operator the "
            "name that it had with .alias(...), or set the option 'allowNonRestoredState' to true to drop that state.",
            what="a checkpoint", left_over=tuple(sorted(left_over)), checkpoint_id=manifest.checkpoint_id,
        )  # fmt: skip
    stages = [_restored_stage(manifest, plan, number) for number in range(len(plan.stages))]
    return msgspec.structs.replace(
        manifest,
        parallelism=plan.parallelism,
        sources={uid: entry for uid, entry in manifest.sources.items() if uid in plan.sources},
        stages=plan.stages,
        subtasks=_read_on_after_producers(stages, plan),
        commits=_of(uids, manifest.commits),
        uncommitted=tuple(UncommittedEpoch(each.epoch, _of(uids, each.committables)) for each in manifest.uncommitted),
        exchanges=dict(plan.exchanges),
        signatures=dict(plan.signatures),
        state_schemas=dict(plan.state_schemas),
        channels=tuple(each for each in manifest.channels if each.exchange in plan.exchanges),
    )


def _moved(manifest: Manifest, plan: QueryPlan) -> tuple[Manifest, dict[str, str]]:
    """Return the checkpoint with the uids of now, and what nobody takes as another state has its uid, with its text.

    Raises
    ------
    StoredStateError
        Several could have a state.
    """
    found = moves(described(manifest, plan.named), described(plan, plan.named))
    stored = with_state(manifest)
    for uid, others in found.unclear.items():
        if uid in stored:
            fix = (
                "End the query as it was with a savepoint, which holds no rows on their way, and start the changed one "
                "from that."
                if uid in manifest.exchanges
                else f"Call the one that it is .alias({uid!r}), right after it, or others by new names."
            )
            raise StoredStateError(
                f"Checkpoint {manifest.checkpoint_id} holds state of {_shown(uid, manifest.signatures.get(uid, ''))}, "
                f"and more than one operator could have it now, or it more than one state: "
                f"{', '.join(map(repr, others))}. {fix}",
                what="a checkpoint", uid=uid, candidates=others, checkpoint_id=manifest.checkpoint_id,
            )  # fmt: skip
    lost = {uid for uid, target in found.targets.items() if target is None} & stored
    return moved(manifest, found.targets), {uid: manifest.signatures.get(uid, "") for uid in lost}


def _shown(uid: str, signature: str) -> str:
    return f"{uid!r} ({signature})" if signature else repr(uid)


def _check_exchanges(manifest: Manifest, plan: QueryPlan) -> None:
    """Refuse rows in flight of an exchange that has changed: their receivers are no longer known."""
    for uid in sorted({each.exchange for each in manifest.channels} & set(plan.exchanges)):
        was, now = manifest.exchanges[uid].kind, plan.exchanges[uid].kind
        if was != now:
            raise StoredStateError(
                f"Checkpoint {manifest.checkpoint_id} holds rows in flight of the exchange {uid!r} of the kind "
                f"{was!r}, which is now of the kind {now!r}. Stop the unchanged query with a savepoint, which holds no "
                "rows in flight, and start the changed one from it.",
                what="a checkpoint", uid=uid, expected=now, found=was,
            )  # fmt: skip


def _check_signatures(manifest: Manifest, plan: QueryPlan) -> None:
    """Refuse state that the query would take for something else."""
    keyed = {uid for stage in manifest.subtasks for state in stage for uid, each in state.keyed.items() if each.chunks}
    for uid in (*sorted(keyed), *sorted({each.exchange for each in manifest.channels})):
        was, now = manifest.signatures.get(uid), plan.signatures.get(uid)
        if was is None or now is None or was == now or _is_taken_on(manifest, plan, uid):
            continue
        if uid in keyed:
            change = f"holds state of {uid!r}, which was {was}; now it is {now}"
            fix = (
                "Set it back; or give the changed one another name with .alias(...), and set the option "
                "'allowNonRestoredState' to true, so that it starts without state."
            )
        else:
            change = f"holds rows that were on their way through the exchange {uid!r}, {was}; now it is {now}"
            fix = (
                "Set it back; or end the query as it was with a savepoint, which holds no rows on their way, and start "
                "the changed one from that."
            )
        raise StoredStateError(
            f"Checkpoint {manifest.checkpoint_id} {change}. {fix}",
            what="a checkpoint",
            uid=uid,
            expected=now,
            found=was,
        )


def _is_taken_on(manifest: Manifest, plan: QueryPlan, uid: str) -> bool:
    """Return whether state of before, or rows on their way, can be read as those of now."""
    was, now = manifest.state_schemas.get(uid), plan.state_schemas.get(uid)
    return was is not None and now is not None and now.takes_on(was)


def _check_options(manifest: Manifest, plan: QueryPlan) -> None:
    """Refuse what makes the stored state mean something else."""
    changed: list[tuple[str, Any, Any, str]] = []
    if plan.max_parallelism != manifest.max_parallelism:
        changed.append(("max-parallelism", manifest.max_parallelism, plan.max_parallelism, "the query"))
    for uid, entry in manifest.sources.items():
        source = plan.sources.get(uid)
        if source is None:
            continue
        if source.name != entry.name:
            raise StoredStateError(
                f"Checkpoint {manifest.checkpoint_id} holds the state of a source {entry.name} under the name {uid!r}; "
                f"now it is a source {source.name}. Give the new one another name with .alias(...).",
                what="a checkpoint", uid=uid, expected=source.name, found=entry.name,
            )  # fmt: skip
        changed += _changed_options(uid, source, entry.fixed)
    if changed:
        differences = "; ".join(f"{name!r} of {where} was {was!r} and is {now!r}" for name, was, now, where in changed)
        raise OptionError(
            f"Options that may not change have changed since checkpoint {manifest.checkpoint_id}: {differences}. "
            "Set them back, or start with a new 'checkpointLocation'.",
            option=changed[0][0], value=changed[0][2], options=tuple(name for name, *_ in changed),
        )  # fmt: skip


def _changed_options(uid: str, source: PlannedSource, stored: Mapping[str, object]) -> list[tuple[str, Any, Any, str]]:
    was, now = (msgspec.json.decode(msgspec.json.encode(dict(each))) for each in (stored, source.fixed))
    return [
        (name, was.get(name), now.get(name), f"source {uid!r}")
        for name in sorted(was.keys() | now.keys())
        if was.get(name) != now.get(name)
    ]


def _of(uids: set[str], by_uid: dict[str, tuple[bytes, ...]]) -> dict[str, tuple[bytes, ...]]:
    return {uid: each for uid, each in by_uid.items() if uid in uids}


def _restored_stage(manifest: Manifest, plan: QueryPlan, number: int) -> tuple[SubtaskState, ...]:
    """Return the states of a stage's subtasks."""
    readers: list[dict[str, ReaderState]] = [{} for _ in range(plan.parallelism)]
    operators: list[dict[str, OperatorState]] = [{} for _ in range(plan.parallelism)]
    keyed: list[dict[str, KeyedState]] = [{} for _ in range(plan.parallelism)]
    ended: list[list[bool]] = [[] for _ in range(plan.parallelism)]
    for uid in plan.stages[number]:
        old = _subtasks_of(manifest, plan, uid, number)
        old_readers = [subtask.readers.get(uid, _NO_READER) for subtask in old]
        old_operators = [subtask.operators.get(uid, _NO_OPERATOR) for subtask in old]
        old_keyed = [_own_chunks(manifest, plan, subtask.keyed.get(uid, _NO_KEYED)) for subtask in old]
        old_ended = [subtask.input_ended for subtask in old]
        if len(old) != plan.parallelism:
            old_readers = _dealt_readers(old_readers, plan.parallelism)
            old_operators = _dealt_operators(old_operators, plan.parallelism)
            old_keyed = _dealt_chunks(old_keyed, plan)
            old_ended = [all(old_ended)] * (plan.parallelism if old else 0)
        if uid in plan.sources and uid not in manifest.sources:
            old_ended = [False] * plan.parallelism
        for n, (reader, operator, state) in enumerate(zip(old_readers, old_operators, old_keyed)):
            readers[n] |= {uid: reader} if reader != _NO_READER else {}
            operators[n] |= {uid: operator} if operator != _NO_OPERATOR else {}
            keyed[n] |= {uid: state} if state != _NO_KEYED else {}
        for n, each in enumerate(old_ended):
            ended[n].append(each)
    return tuple(
        SubtaskState(
            readers=readers[n],
            operators=operators[n],
            keyed=keyed[n],
            input_ended=bool(ended[n]) and all(ended[n]),
        )
        for n in range(plan.parallelism)
    )


def _dealt_readers(old: Sequence[ReaderState], parallelism: int) -> list[ReaderState]:
    splits = sorted((split for reader in old for split in reader.splits), key=lambda split: split.split_id)
    finished = sorted({each.split_id for reader in old for each in reader.finished})
    return [
        ReaderState(
            splits=tuple(splits[n::parallelism]),
            finished=tuple(FinishedSplit(each, number) for number, each in enumerate(finished[n::parallelism], 1)),
        )
        for n in range(parallelism)
    ]


def _dealt_operators(old: Sequence[OperatorState], parallelism: int) -> list[OperatorState]:
    items = [item for operator in old for item in operator.items]
    return [OperatorState(items=tuple(items[n::parallelism])) for n in range(parallelism)]


def _dealt_chunks(old: Sequence[KeyedState], plan: QueryPlan) -> list[KeyedState]:
    dealt: list[list[ChunkState]] = [[] for _ in range(plan.parallelism)]
    for chunk in (chunk for state in old for chunk in state.chunks):
        first, last = (
            subtask_of(group, plan.parallelism, plan.max_parallelism)
            for group in (chunk.first_key_group, chunk.last_key_group)
        )
        for n in range(first, last + 1):
            dealt[n].append(chunk)
    return [KeyedState(chunks=tuple(chunks)) for chunks in dealt]


def _own_chunks(manifest: Manifest, plan: QueryPlan, keyed: KeyedState) -> KeyedState:
    """Return the chunks of another query under names that no chunk of this one gets."""
    if manifest.query_id == plan.query_id:
        return keyed
    return KeyedState(
        chunks=tuple(
            msgspec.structs.replace(each, chunk_id=f"{manifest.query_id}.{each.chunk_id}") for each in keyed.chunks
        )
    )


def _read_on_after_producers(
    stages: list[tuple[SubtaskState, ...]], plan: QueryPlan
) -> tuple[tuple[SubtaskState, ...], ...]:
    """Let nobody have read all its input to whom somebody still sends: a source that is new, for example."""
    # What a stage consumes comes from stages of lower numbers.
    for exchange in sorted(plan.exchanges.values(), key=lambda each: each.producer_stage):
        producers, consumers = stages[exchange.producer_stage], stages[exchange.consumer_stage]
        ended = [each.input_ended for each in producers]
        if exchange.kind != "forward":
            ended = [all(ended)] * len(ended)
        stages[exchange.consumer_stage] = tuple(
            msgspec.structs.replace(each, input_ended=each.input_ended and producers_ended)
            for each, producers_ended in zip(consumers, ended)
        )
    return tuple(stages)


def _subtasks_of(manifest: Manifest, plan: QueryPlan, uid: str, number: int) -> tuple[SubtaskState, ...]:
    """Return the states of the stage that an operator of this stage was in.

    The sink of bad records is in all stages: each gets its own, and the last what is left of those that are no more.
    """
    found = [subtasks for stage, subtasks in zip(manifest.stages, manifest.subtasks) if uid in stage]
    homes = [n for n, stage in enumerate(plan.stages) if uid in stage]
    place = homes.index(number)
    own = found[place:] if number == homes[-1] else found[place : place + 1]
    return tuple(subtask for subtasks in own for subtask in subtasks)
