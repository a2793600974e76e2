"""One line in a terminal that shows, over and over in the same place, how a query is doing.

Never: write anything where nobody looks: no terminal, or no ``rich`` (which is optional), no line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

from headgate.monitor.late_publications import LATE_MS

if TYPE_CHECKING:
    from rich.live import Live


class LiveLine:
    """The line of one query; it is gone after `close`. All calls must come from one thread; none starts one.

    Parameters
    ----------
    stream
        Where to, commonly ``sys.stderr``. One that is not a terminal stays untouched.
    """

    def __init__(self, stream: TextIO) -> None:
        self._live = _live(stream) if stream.isatty() else None

    def show(self, progress: dict[str, Any]) -> None:
        """Show a progress, as `ProgressReporter` made it, in the place of the one before."""
        if self._live is None:
            return
        from rich.text import Text

        if not self._live.is_started:
            self._live.start()
            self._live.console.show_cursor(True)  # a process that is killed would leave a terminal without one
        self._live.update(Text(live_text(progress), no_wrap=True, overflow="ellipsis"), refresh=True)

    def close(self) -> None:
        """Take the line away."""
        if self._live is not None:
            self._live.stop()


def live_text(progress: dict[str, Any]) -> str:
    """Return a progress in one line.

    Examples
    --------
    >>> from headgate.monitor.progress import ProgressReporter, QueryIdentity
    >>> identity = QueryIdentity(query_id="", run_id="", name="rides", sources={"a": "kafka"}, sinks={"b": "parquet"})
    >>> live_text(ProgressReporter(identity, started_ms=0).report(1000)[0])
    'rides: 0 rows/s in, 0 rows out'
    """
    parts = [f"{progress['inputRowsPerSecond']:,.0f} rows/s in", f"{progress['sink']['numOutputRows']:,} rows out"]
    for source in progress["sources"]:
        parts += [f"{name} {int(value):,}" for name, value in source["metrics"].items() if "ehind" in name]
    if "watermark" in progress["eventTime"]:
        parts.append(f"watermark {progress['eventTime']['watermark']}")
    for group, aligned in progress["headgate"]["alignmentGroups"].items():
        if aligned["driftMs"] is not None:
            parts.append(f"drift of {group} {aligned['driftMs'] / 1000:,.1f} s")
        if aligned["pausedSplits"]:
            parts.append(f"{aligned['pausedSplits']:,} of {aligned['numSplits']:,} splits paused")
    checkpoint = progress["headgate"]["checkpoint"]
    if checkpoint is not None:
        size_kb = checkpoint["sizeBytes"] / 1000
        parts.append(f"checkpoint {checkpoint['id']} ({checkpoint['durationMs']:,} ms, {size_kb:,.0f} kB)")
    if progress["headgate"]["skippedRecords"]:
        parts.append(f"{progress['headgate']['skippedRecords']:,} bad records skipped")
    late_ms = max(progress["headgate"]["unpublishedMs"].values(), default=0)
    if late_ms >= LATE_MS:
        parts.append(f"nothing published for {late_ms // 1000:,} s")
    return f"{progress['name'] or progress['id']}: {', '.join(parts)}"


def _live(stream: TextIO) -> Live | None:
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        return None
    return Live(
        console=Console(file=stream, force_terminal=True),
        auto_refresh=False,  # no thread
        transient=True,
        redirect_stdout=False,  # what the user prints is the user's
        redirect_stderr=False,
    )
