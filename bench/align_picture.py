"""Draws what alignment does: the watermark of each partition over time, without and with it, and what Spark loses.

Never: smooth or invent: each line is what was noted of one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from bench.align_data import MAX_DRIFT_MS

INK, GREY, WATER, SAND, RED = "#22313f", "#9aa5b1", "#1f7a9c", "#d9a441", "#c0392b"
_LINES = (
    {"color": RED, "linewidth": 1.6, "zorder": 5, "label": "partition 0, two hours late"},
    {"color": "#123f52", "linewidth": 2.0, "zorder": 4, "label": "partition 1"},
    {"color": WATER, "linewidth": 3.2, "zorder": 3, "label": "partition 2"},
    {"color": "#a9cbd8", "linewidth": 5.0, "zorder": 2, "label": "partition 3"},
)
"""One above the other: where all go the same way all can be seen."""
_HOUR_MS = 3_600_000
_LEGENDS_AT = 0.055


@dataclass(frozen=True)
class Run:
    """What was seen of one run.

    Parameters
    ----------
    watermarks
        For each partition, seconds of reading and milliseconds of event time.
    remark
        What to write below its lines.
    """

    watermarks: Sequence[Sequence[tuple[float, int]]]
    remark: str


def _draw_run(axes: Axes, run: Run, title: str) -> None:
    for points, style in zip(run.watermarks, _LINES):
        axes.step([second for second, _ in points], [at_ms for _, at_ms in points], where="post", **style)  # type: ignore[arg-type]
    axes.text(0.97, 0.05, run.remark, transform=axes.transAxes, ha="right", va="bottom")
    axes.set_title(title, loc="left", pad=10)
    axes.set_xlabel("seconds of reading")
    axes.grid(axis="y", color="#e6eaee")


def _draw_lost(axes: Axes, lost: Mapping[str, tuple[float, float]], rows: int) -> None:
    names = list(lost)[::-1]
    most = max(1.0, *(each for pair in lost.values() for each in pair))
    for place, name in enumerate(names):
        for shift, colour, value in zip((0.19, -0.19), (SAND, WATER), lost[name]):
            axes.barh(place + shift, value, height=0.34, color=colour)
            axes.text(value + most * 0.02, place + shift, f"{value:,.0f}", va="center", fontsize=9)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.set_xlim(0, most * 1.3)
    axes.set_title(f"Rows lost of {rows:,}", loc="left", pad=10)


def draw(path: Path, unaligned: Run, aligned: Run, lost: Mapping[str, tuple[float, float]], rows: int) -> None:
    """Write the picture as a PNG.

    Parameters
    ----------
    unaligned, aligned
        The two runs of the shape `lagging`.
    lost
        For each shape the rows that Spark's source lost, and those that Headgate did.
    rows
        Of each topic.
    """
    style = {
        "font.family": "DejaVu Sans", "font.size": 10, "text.color": INK, "axes.labelcolor": INK,
        "axes.edgecolor": GREY, "xtick.color": INK, "ytick.color": INK, "axes.spines.top": False,
        "axes.spines.right": False, "axes.titlesize": 12, "axes.titleweight": "bold", "axes.axisbelow": True,
    }  # fmt: skip
    with plt.rc_context(style):
        figure = plt.figure(figsize=(12.5, 5.0))
        both, beside = figure.add_gridspec(
            1, 2, width_ratios=(2.6, 1), wspace=0.19, left=0.075, right=0.985, top=0.91, bottom=0.22
        )
        pair = both.subgridspec(1, 2, wspace=0.08)
        left = figure.add_subplot(pair[0])
        middle = figure.add_subplot(pair[1], sharex=left, sharey=left)
        right = figure.add_subplot(beside)
        _draw_run(left, unaligned, "Without alignment")
        _draw_run(middle, aligned, f"Aligned, drift {MAX_DRIFT_MS // 1000} s")
        middle.tick_params(labelleft=False)
        left.set_ylabel("watermark (event time)")
        left.yaxis.set_major_locator(MultipleLocator(2 * _HOUR_MS))
        left.yaxis.set_major_formatter(FuncFormatter(_clock))
        left.set_xlim(left=0)
        left.xaxis.set_major_locator(MaxNLocator(5))
        _draw_lost(right, lost, rows)
        below = {"loc": "center left", "frameon": False, "columnspacing": 1.4, "handlelength": 1.4}
        figure.legend(*left.get_legend_handles_labels(), bbox_to_anchor=(0.065, _LEGENDS_AT), ncols=4, **below)
        bars = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in (SAND, WATER)]
        names = ["Spark's Kafka source", "Headgate, aligned"]
        figure.legend(bars, names, bbox_to_anchor=(0.685, _LEGENDS_AT), ncols=2, **below)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
        plt.close(figure)


def _clock(at_ms: float, _: int | None) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%H:%M}"
