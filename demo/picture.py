"""Draws what the demo showed: flights arriving and read over time with the kill, and delay by carrier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

INK, GREY, WATER, SAND, RED = "#22313f", "#9aa5b1", "#1f7a9c", "#d9a441", "#c0392b"


@dataclass
class Timeline:
    """What happened when, in seconds since the stream began; rows are flights."""

    seconds: list[float] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    killed_at: float | None = None
    resumed_at: float | None = None


def _draw_stream(axes: Axes, timeline: Timeline, total: int) -> None:
    # Spark's first start is not what this is about: the picture begins shortly before the first flights are read.
    first = next(second for second, read in zip(timeline.seconds, timeline.read, strict=True) if read)
    cut = max(0.0, first - 2)
    seconds = [second - cut for second in timeline.seconds]
    seconds.append(seconds[-1] + 1.5)
    arrived, read = [*timeline.arrived, timeline.arrived[-1]], [*timeline.read, timeline.read[-1]]
    axes.fill_between(seconds, read, step="post", color=WATER, alpha=0.15, linewidth=0)
    axes.step(seconds, arrived, where="post", color=SAND, linewidth=2.2, label="arrived in the folder")
    axes.step(seconds, read, where="post", color=WATER, linewidth=2.6, label="read and committed")
    if timeline.killed_at is not None and timeline.resumed_at is not None:
        killed, resumed = timeline.killed_at - cut, timeline.resumed_at - cut
        axes.axvspan(killed, resumed, color=RED, alpha=0.07, linewidth=0, zorder=0)
        axes.axvline(killed, color=RED, linewidth=1.4)
        mark = {"color": RED, "textcoords": "offset points"}
        below = (killed, total * 0.42)
        axes.annotate("SIGKILL", below, xytext=(7, 0), fontsize=10, fontweight="bold", **mark)
        middle = ((killed + resumed) / 2, total * 0.06)
        axes.annotate("no query, then\nSpark starts again", middle, xytext=(0, 0), fontsize=9, ha="center", **mark)
    axes.set_title(f"{total:,} flights as a stream, killed half-way", loc="left", pad=30)
    axes.set_xlabel("seconds")
    axes.set_ylabel("flights")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:,.0f} k" if value else "0"))
    axes.set_xlim(0, seconds[-1])
    axes.set_ylim(0, total * 1.06)
    axes.grid(axis="y", color="#e6eaee")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False, columnspacing=1.2)


def _draw_carriers(axes: Axes, carriers: Sequence[tuple[str, float, int]]) -> None:
    ordered = sorted(carriers, key=lambda each: each[1])
    names = [name for name, _, _ in ordered]
    delays = [delay for _, delay, _ in ordered]
    bars = axes.barh(names, delays, color=WATER, height=0.72)
    axes.bar_label(bars, fmt="%.1f", padding=4, color=INK, fontsize=9)
    axes.set_title("Mean departure delay, minutes", loc="left", pad=30)
    axes.set_xlim(min(0.0, *delays), max(delays) * 1.13)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_visible(False)


def draw(path: Path, timeline: Timeline, carriers: Sequence[tuple[str, float, int]], total: int) -> None:
    """Write the picture as a PNG. A carrier is its name, mean delay in minutes, and number of flights."""
    style = {
        "font.family": "DejaVu Sans", "font.size": 10, "text.color": INK, "axes.labelcolor": INK,
        "axes.edgecolor": GREY, "xtick.color": INK, "ytick.color": INK, "axes.spines.top": False,
        "axes.spines.right": False, "axes.titlesize": 12, "axes.titleweight": "bold", "axes.axisbelow": True,
    }  # fmt: skip
    with plt.rc_context(style):
        figure, (left, right) = plt.subplots(1, 2, figsize=(12.5, 5.2), width_ratios=(1.35, 1))
        _draw_stream(left, timeline, total)
        _draw_carriers(right, carriers)
        right.spines[["left", "bottom"]].set_visible(False)
        figure.tight_layout(w_pad=3)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
        plt.close(figure)
