// Charts: small ones beside figures, durations of checkpoints, watermarks of splits over time. SVG, redrawn in place.

import { attr, byId, svg, sync, text } from "./dom.js";
import { clock, duration } from "./format.js";

/** A line without axes; values may be null. */
export function sparkline(root, values) {
  const known = values.filter((value) => value != null);
  const [area, line] = root.children.length ? root.children : (root.append(svg("path.spark-area"), svg("path.spark")), root.children);
  if (known.length < 2) return;
  const top = Math.max(...known, 1e-9);
  attr(root, "viewBox", "0 0 100 30");
  attr(root, "preserveAspectRatio", "none");
  const points = values.map((value, index) => `${((100 * index) / (values.length - 1)).toFixed(2)},${(29 - (27 * (value ?? 0)) / top).toFixed(2)}`);
  attr(line, "d", `M${points.join("L")}`);
  attr(area, "d", `M0,30L${points.join("L")}L100,30Z`);
}

const STEPS_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000,
  3_600_000, 7_200_000, 21_600_000, 43_200_000, 86_400_000, 172_800_000, 604_800_000, 2_592_000_000, 7_776_000_000, 31_536_000_000, 315_360_000_000];

/** Round values of time between two, at most so many. */
function ticks(from, to, most) {
  const step = STEPS_MS.find((each) => (to - from) / each <= most) ?? STEPS_MS.at(-1);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return { found, step };
}

function shortClock(ms, step) {
  const full = clock(ms, ms);
  if (step >= 86_400_000) return clock(ms, 0).slice(0, 10);
  return step >= 60_000 ? full.slice(0, 5) : full;
}

/** Durations of checkpoints as bars, the newest last; failed ones hatched. */
export class Durations {
  constructor(parent) {
    this.parent = parent;
    this.root = svg("svg", { role: "img", height: 92 });
    this.bars = svg("g");
    this.top = svg("text", { x: 0, y: 10 });
    this.line = svg("line.grid");
    this.root.append(this.line, this.bars, this.top);
    parent.append(this.root);
  }

  show(checkpoints) {
    const recent = checkpoints?.recent ?? [];
    const room = this.parent.clientWidth || 300;
    attr(this.root, "viewBox", `0 0 ${room} 92`);
    const most = Math.max(...recent.map((each) => each.durationMs ?? 0), 1);
    const wide = Math.min(18, (room - 2) / Math.max(recent.length, 24));
    text(this.top, recent.length ? `longest ${duration(most)}` : "");
    for (const [name, value] of [["x1", 0], ["x2", room], ["y1", 90.5], ["y2", 90.5]]) attr(this.line, name, value);
    attr(this.root, "aria-label", recent.length ? `The last ${recent.length} checkpoints took at most ${duration(most)}.` : "No checkpoint yet.");
    sync(this.bars, recent, (each) => each.id, () => svg("rect.cp", {}, svg("title")), (bar, each, index) => {
      const failed = each.status === "failed";
      const high = failed ? 72 : Math.max(2, (72 * (each.durationMs ?? 0)) / most);
      attr(bar, "x", (index * wide + 0.5).toFixed(1));
      attr(bar, "width", Math.max(1, wide - 1.5).toFixed(1));
      attr(bar, "y", (90 - high).toFixed(1));
      attr(bar, "height", high.toFixed(1));
      attr(bar, "rx", 1.5);
      attr(bar, "fill", failed ? "url(#pressed)" : null);
      bar.classList.toggle("cp", !failed);
      text(bar.firstChild, failed ? `${each.id} failed: ${each.reason ?? ""}` : `${each.id}: ${duration(each.durationMs)}`);
    });
  }
}

/** The watermark of each split over time: all in grey, the slowest and the fastest marked with a name. */
export class Watermarks {
  constructor(parent) {
    this.parent = parent;
    this.root = svg("svg", { role: "img" });
    this.grid = svg("g");
    this.lines = svg("g");
    this.tags = svg("g");
    this.cross = svg("line.cross", { visibility: "hidden" });
    this.root.append(this.grid, this.lines, this.cross, this.tags);
    parent.append(this.root);
    this.root.addEventListener("pointermove", (event) => this.read(event));
    this.root.addEventListener("pointerleave", () => { attr(this.cross, "visibility", "hidden"); text(byId("wm-read"), this.summary ?? ""); });
  }

  /** series: [{name, values}], values beside points, in milliseconds or null. */
  show(points, series) {
    const room = Math.max(260, this.parent.clientWidth || 400);
    const high = room < 420 ? 190 : 290;
    const [left, right, top, bottom] = [64, 8, 10, 22];
    attr(this.root, "viewBox", `0 0 ${room} ${high}`);
    attr(this.root, "height", high);
    let [low, most] = [Infinity, -Infinity];
    for (const { values } of series) for (const value of values) {
      if (value == null) continue;
      if (value < low) low = value;
      if (value > most) most = value;
    }
    this.parent.hidden = low === Infinity;
    if (low === Infinity) return void text(byId("wm-read"), "No split has a watermark: the sources have no event time, or none has rows yet.");
    if (most - low < 1000) most = low + 1000;
    const [first, last] = [points[0], Math.max(points.at(-1), points[0] + 1000)];
    const x = (ms) => left + ((room - left - right) * (ms - first)) / (last - first);
    const y = (ms) => top + (high - top - bottom) * (1 - (ms - low) / (most - low));
    this.now = { points, series, x, y, left, right: room - right, room, top, bottom: high - bottom };

    const vertical = ticks(first, last, room < 420 ? 3 : 5);
    const across = ticks(low, most, 4);
    sync(this.grid, [...across.found.map((ms) => ["y", ms]), ...vertical.found.map((ms) => ["x", ms])], ([axis, ms]) => `${axis}${ms}`,
      () => svg("g", {}, svg("line.grid"), svg("text")), (group, [axis, ms]) => {
        const [line, label] = group.children;
        const [x1, y1, x2, y2] = axis === "y" ? [left, y(ms), room - right, y(ms)] : [x(ms), high - bottom, x(ms), high - bottom + 4];
        for (const [name, value] of [["x1", x1], ["y1", y1], ["x2", x2], ["y2", y2]]) attr(line, name, value.toFixed(1));
        attr(label, "x", axis === "y" ? left - 8 : x(ms).toFixed(1));
        attr(label, "y", axis === "y" ? (y(ms) + 4).toFixed(1) : high - 5);
        attr(label, "text-anchor", axis === "y" ? "end" : "middle");
        text(label, shortClock(ms, axis === "y" ? across.step : vertical.step));
      });

    const latest = series.map((each) => ({ ...each, value: each.values.findLast((value) => value != null) })).filter((each) => each.value != null);
    latest.sort((a, b) => a.value - b.value);
    const [slow, fast] = [latest[0], latest.length > 1 ? latest.at(-1) : undefined];
    const mark = (each) => (each.key === slow?.key ? "slow" : each.key === fast?.key ? "fast" : "");
    const drawn = [...series].sort((a, b) => mark(a).length - mark(b).length);
    sync(this.lines, drawn, (each) => each.key, () => svg("path.wm"), (line, each) => {
      attr(line, "class", `wm ${mark(each)}`.trim());
      let [d, pen] = ["", false];
      each.values.forEach((value, index) => {
        if (value == null) pen = false;
        else {
          d += `${pen ? "L" : "M"}${x(points[index]).toFixed(1)},${y(value).toFixed(1)}`;
          pen = true;
        }
      });
      attr(line, "d", d);
    });
    const tags = [slow && ["slow", slow], fast && fast.value > slow.value && ["fast", fast]].filter(Boolean);
    sync(this.tags, tags, ([kind]) => kind, ([kind]) => svg(`text.tag.${kind}`, { "text-anchor": "end" }), (tag, [kind, each]) => {
      attr(tag, "x", room - right - 3);
      attr(tag, "y", kind === "slow" ? Math.min(high - bottom - 5, y(each.value) + 16).toFixed(1) : Math.max(top + 9, y(each.value) - 7).toFixed(1));
      text(tag, kind === "slow" ? `slowest: ${each.name}` : `fastest: ${each.name}`);
    });
    this.summary = slow && fast ? `${latest.length} splits, ${duration(fast.value - slow.value)} apart. The slowest is at ${clock(slow.value, last)}, the fastest at ${clock(fast.value, last)}.` : slow ? `One split, at ${clock(slow.value, last)}.` : "";
    attr(this.root, "aria-label", `Watermarks of ${this.summary}`);
    if (this.cross.getAttribute("visibility") === "hidden") text(byId("wm-read"), this.summary);
  }

  read(event) {
    if (!this.now) return;
    const { points, series, left, right, room, top, bottom } = this.now;
    const box = this.root.getBoundingClientRect();
    const at = ((event.clientX - box.left) * room) / box.width;
    if (at < left || at > right || points.length < 2) return;
    const wanted = points[0] + ((points.at(-1) - points[0]) * (at - left)) / (right - left);
    const index = points.reduce((best, ms, each) => (Math.abs(ms - wanted) < Math.abs(points[best] - wanted) ? each : best), 0);
    const values = series.map(({ name, values }) => ({ name, value: values[index] })).filter(({ value }) => value != null).sort((a, b) => a.value - b.value);
    for (const [name, value] of [["x1", at], ["x2", at], ["y1", top], ["y2", bottom], ["visibility", "visible"]]) attr(this.cross, name, value);
    if (values.length) text(byId("wm-read"), `${clock(points[index], points.at(-1))}: slowest ${values[0].name} at ${clock(values[0].value, points.at(-1))}, fastest ${values.at(-1).name} at ${clock(values.at(-1).value, points.at(-1))}, ${duration(values.at(-1).value - values[0].value)} apart.`);
  }
}
