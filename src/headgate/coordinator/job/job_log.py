"""What the log says of a query: sentences for people.

Never: decide what is worth a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headgate.checkpoint import checkpoint_events as cp
from headgate.coordinator.alignment import alignment_group as al
from headgate.coordinator.job import scheduler_events as sch


def absent_from(group: str, absence: al.WarnOfAbsence) -> str:
    """Return that other queries wait for this one no longer."""
    return (
        f"The query has had no reader for {absence.absent_ms // 1000} s. From now on no other query of the alignment "
        f"group {group!r} waits for it, until it reads again."
    )


def held_by(group: str, holder: al.WarnOfHolder) -> str:
    """Return who has held an alignment group back for long, and what can be done."""
    if not holder.source:
        who = "Another query of this Spark application"
    elif not holder.split_id:
        who = (
            f"Reader {holder.subtask} of the source {holder.source!r}, which has not reported yet how far it is or "
            "waits for its next split,"
        )
    else:
        who = f"The split {holder.split_id!r} of the source {holder.source!r} (reader {holder.subtask})"
    return (
        f"{who} has held the alignment group {group!r} back for {holder.held_ms // 1000} s, and others wait for it. If "
        "a split may be without rows for so long, set the option scan.watermark.idle-timeout; if the others may be "
        "read further ahead of it, set a larger max drift: withWatermarkAlignment, or the option "
        "scan.watermark.alignment.max-drift."
    )


def trouble(action: sch.ReportFailure | sch.ReportMissingSlots) -> str:
    """Return what failed or is missing, and what is done about it."""
    match action:
        case sch.ReportFailure(error=error, restarted=restarted, delay_ms=delay_ms):
            return (
                f"{error.error_type}: {sentence(error.message)} In {delay_ms} ms subtasks {_some(restarted)} restart "
                "from the last completed checkpoint."
            )
        case sch.ReportMissingSlots(wanted=wanted, missing=missing):
            return f"Of {wanted} slots these have not come for long: {_some(missing)}. The query waits for them."


def news_of_files(action: cp.ReportLostFiles) -> Iterator[tuple[str, str]]:
    """Yield that files of a checkpoint are gone, or missed no longer, with the level of each sentence."""
    if action.gone:
        yield (
            "warning",
            (
                f"Files that checkpoint {action.checkpoint_id} names are gone from the checkpoint location: "
                f"{_some(action.gone)}. Slots that have this state write it again with the next checkpoint; until it "
                "is complete the query cannot be restored. Let nothing but the query delete files there."
            ),
        )
    if action.back:
        yield (
            "info",
            (
                f"Files that were gone from the checkpoint location are there again, or checkpoint "
                f"{action.checkpoint_id} names them no longer: {_some(action.back)}."
            ),
        )


def sentence(text: str) -> str:
    """Return a text with a full stop."""
    return text if text.endswith(".") else f"{text}."


def _some(things: Iterable[int | str]) -> str:
    shown = [str(each) for each in things]
    return ", ".join(shown[:20]) + (f" and {len(shown) - 20} more" if len(shown) > 20 else "")
