// The panels of the page: each shows its part of a snapshot.

import { attr, byId, make, rows, shares, svg, sync, text, width } from "./dom.js";
import { age, bytes, clock, counted, duration, percent, position, short, whole } from "./format.js";
import { Durations, sparkline, Watermarks } from "./charts.js";
import { Graph } from "./graph.js";

const FEW = 40; // splits that are shown with their names
const ROWS = 25;
const MORE = 100;

const splitKey = (source, split) => `${source.uid}/${split.id}`;
const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);
const byIndex = (_, index) => index;

/** All splits of all sources that the snapshot has, each with its source. */
const allSplits = (snapshot) => (snapshot.sources ?? []).flatMap((source) => (source.splits ?? []).map((split) => ({ ...split, source, key: splitKey(source, split) })));

/** In steps of a power of ten, so that a colour means the same in every query. */
const lagStep = (lag) => (lag == null || lag < 100 ? 0 : lag < 1000 ? 1 : lag < 10_000 ? 2 : lag < 100_000 ? 3 : 4);

function condition(split) {
  if (split.idle) return "idle";
  if (split.paused) return "paused";
  return "reading";
}

/** What sources say of their lag: the figures with one name belong together. */
function lags(snapshot) {
  const found = new Map();
  for (const source of snapshot.sources ?? []) for (const [name, value] of Object.entries(source.lag ?? {})) {
    const average = /^(avg|max|min)/.test(name);
    found.set(name, average ? Math.max(found.get(name) ?? 0, value) : (found.get(name) ?? 0) + value);
  }
  return found;
}

export class Panels {
  constructor() {
    this.graph = new Graph(byId("graph"));
    this.durations = new Durations(byId("cp-chart"));
    this.watermarks = new Watermarks(byId("wm-chart"));
    this.shown = ROWS;
    const legend = [["l0", "no lag"], ["l2", "1 k rows"], ["l4", "100 k rows"], ["lp", "paused"], ["li", "idle"], ["ls", "slowest"]];
    byId("lag-legend").append(...legend.map(([kind, name]) => make(`li.${kind}`, {}, name)));
    byId("filter").addEventListener("input", () => this.again());
    byId("order").addEventListener("change", () => this.again());
    byId("more").addEventListener("click", () => { this.shown += MORE; this.again(); });
    new ResizeObserver(() => this.snapshot && this.charts(this.snapshot, this.history)).observe(byId("wm-chart").parentElement);
  }

  again() {
    if (this.snapshot) this.splits(this.snapshot);
  }

  show(snapshot, history) {
    [this.snapshot, this.history] = [snapshot, history];
    this.slowest = new Set((snapshot.alignmentGroups ?? []).filter((group) => group.slowest).map((group) => `${group.slowest.source}/${group.slowest.split}`));
    this.why(snapshot);
    this.figures(snapshot, history);
    this.graph.show(snapshot);
    this.checkpoints(snapshot);
    this.recovery(snapshot);
    this.slots(snapshot);
    this.groups(snapshot);
    this.charts(snapshot, history);
    this.splits(snapshot);
    this.restarts(snapshot);
    this.autoscaler(snapshot);
    this.sinks(snapshot);
    this.sources(snapshot);
  }

  why(snapshot) {
    const sentences = snapshot.why?.length ? snapshot.why : [{ severity: "info", text: snapshot.state === "running" ? "Nothing holds the query up." : `The query is ${snapshot.state}.` }];
    sync(byId("why"), sentences, byIndex, () => make("li", {}, make("span.visually-hidden"), make("span")), (line, each) => {
      attr(line, "data-severity", each.severity);
      text(line.children[0], each.severity === "info" ? "" : `${each.severity}: `);
      // Names of the user's are between backticks.
      sync(line.children[1], each.text.replaceAll(/(\d) (?=%|(?:ms|min|s|h|d)\b)/g, "$1\u00a0").split("`"), byIndex, () => make("span"), (span, part, index) => {
        span.className = index % 2 ? "name" : "";
        text(span, index === 0 ? part.charAt(0).toUpperCase() + part.slice(1) : part);
      });
    });
  }

  figures(snapshot, history) {
    const { sources = [], sinks = [], checkpoints: cp = {}, nowMs } = snapshot;
    const lag = [...lags(snapshot)];
    const [name, value] = lag.find(([each]) => /row|record|message/i.test(each)) ?? lag[0] ?? [null, null];
    const behind = snapshot.watermarkMs == null ? null : nowMs - snapshot.watermarkMs;
    const last = cp.last;
    const restart = snapshot.restarts?.recent?.at(-1);
    const bad = [[snapshot.skippedRecords, "bad record"], [snapshot.lateRows, "late row"]].filter(([count]) => count).map(([count, noun]) => counted(count, noun));
    const lagText = name && /milli|Ms$/.test(name) ? duration(value) : short(value);
    const figures = [
      ["Rows in", short(sum(sources.map((each) => each.rowsPerSecond))), "/s", `${short(sum(sources.map((each) => each.rowsRead)))} so far`, history?.inputRowsPerSecond],
      ["Rows out", short(sum(sinks.map((each) => each.rowsPerSecond))), "/s", [`${short(sum(sinks.map((each) => each.rowsWritten)))} so far`, ...bad].join(", ")],
      ["Lag", lagText, "", name ? name.replaceAll(/([A-Z])/g, " $1").toLowerCase() : "no source reports one"],
      ["Watermark", behind == null ? "–" : age(behind), behind == null || behind < 1000 ? "" : "ago", snapshot.watermarkMs == null ? "no event time yet" : clock(snapshot.watermarkMs, nowMs)],
      ["Last checkpoint", last ? age(last.ageMs) : "–", last && last.ageMs >= 1000 ? "ago" : "", last ? `took ${duration(last.durationMs)}, ${bytes(last.sizeBytes)}` : cp.pending ? "the first is under way" : "none yet"],
      ["Restarts", whole(snapshot.restarts?.count ?? 0), "", restart ? `last ${age(nowMs - restart.atMs)} ago` : "none"],
    ];
    sync(byId("figures"), figures, byIndex, ([title]) => {
      const dd = make("dd.value", {}, make("span"), make("small"));
      return make("div.figure", {}, make("dt", {}, title), dd, make("dd.sub"));
    }, (card, [, main, unit, sub, line]) => {
      text(card.children[1].children[0], main);
      text(card.children[1].children[1], unit);
      text(card.children[2], sub);
      attr(card.children[2], "title", sub);
      if (line?.length > 1) {
        if (!card.children[3]) card.append(svg("svg", { "aria-hidden": "true" }));
        sparkline(card.children[3], line);
      }
    });
  }

  checkpoints(snapshot) {
    const cp = snapshot.checkpoints ?? {};
    const parts = [`every ${duration(cp.intervalMs)}`, `${whole(cp.completed ?? 0)} complete`];
    if (cp.failed) parts.push(`${whole(cp.failed)} failed`);
    if (cp.pending && snapshot.nowMs - cp.pending.startedMs >= 2000) parts.push(`${cp.pending.id} under way for ${duration(snapshot.nowMs - cp.pending.startedMs)}`);
    text(byId("cp-about"), parts.join(", "));
    this.durations.show(cp);
    rows(byId("cp-table"), (cp.recent ?? []).slice(-5).reverse(), (each) => each.id,
      (each) => each.status === "failed" ? [each.id, "failed", each.reason ?? "", ""] : [each.id, duration(each.durationMs), bytes(each.sizeBytes), each.completedMs == null ? "–" : age(snapshot.nowMs - each.completedMs)],
      (row, each) => { row.className = each.status === "failed" ? "bad" : ""; attr(row, "title", each.reason); });
  }

  recovery(snapshot) {
    const lines = [
      ...(snapshot.recovery ?? []).map((each) => ({
        key: `rows ${each.stage}`, title: `Stage ${each.stage}: rows that were in flight, ${each.phase}`, share: each.rowsToRead ? 1 - (each.rowsLeft ?? 0) / each.rowsToRead : null,
        about: `${whole(each.rowsLeft)} rows left, ${bytes(each.memoryBytes)} of memory, ${bytes(each.diskBytes)} on disk`,
      })),
      ...(snapshot.restore ?? []).filter((each) => each.bytesLeft || each.subtasks?.length).map((each) => ({
        key: `state ${each.stage}`, title: `Stage ${each.stage}: keyed state, ${counted(each.subtasks?.length ?? each.subtasks ?? 0, "subtask")} not through`, share: each.bytesToRead ? 1 - (each.bytesLeft ?? 0) / each.bytesToRead : null,
        about: `${bytes(each.bytesLeft)} of ${bytes(each.bytesToRead)} left, ${duration(each.durationMs)} so far`,
      })),
    ];
    byId("s-recovery").hidden = !lines.length;
    sync(byId("recovery"), lines, (each) => each.key, () => make("div.slot", {}, make("div.line", {}, make("b"), make("span.soft")), make("div.bar", {}, make("i.b"))), (box, each) => {
      text(box.children[0].children[0], each.title);
      text(box.children[0].children[1], each.about);
      width(box.children[1].firstChild, each.share ?? 0);
    });
  }

  slots(snapshot) {
    const splits = allSplits(snapshot);
    const bySlot = Map.groupBy(splits, (split) => split.slot ?? -1);
    const subtasks = Map.groupBy(snapshot.subtasks ?? [], (each) => each.slot);
    const names = new Map((snapshot.stages ?? []).map((each) => [each.stage, each.name]));
    const left = sum((snapshot.sources ?? []).map((each) => each.splitsLeftOut));
    const slots = [...(snapshot.slots ?? [])];
    if (bySlot.has(-1)) slots.push({ slot: -1, state: "not assigned" });
    const many = splits.length > FEW;
    const several = (snapshot.sources ?? []).length > 1;
    sync(byId("slots"), slots, (each) => each.slot, () => make("div.slot", {}, make("div.line", {}, make("b"), make("span.soft")), make("div.times"), make("div.cells", { role: "img" })), (box, slot) => {
      const own = bySlot.get(slot.slot) ?? [];
      const [line, times, cells] = box.children;
      text(line.children[0], slot.slot < 0 ? "No slot yet" : `Slot ${slot.slot}`);
      text(line.children[1], [slot.state, slot.host && `${slot.host}, pid ${slot.pid}`, slot.attempt ? `attempt ${slot.attempt}` : "", counted(own.length, "split")].filter(Boolean).join(" · "));
      sync(times, subtasks.get(slot.slot) ?? [], (each) => each.stage, () => make("div.time", {}, make("span"), make("div.bar", {}, make("i.b"), make("i.p")), make("span")), (time, each) => {
        const [busy, pressed] = shares(each);
        const title = `Stage ${each.stage}, ${names.get(each.stage) ?? ""}: busy ${percent(each.busy)}, back-pressured ${percent(each.backPressured)}, idle ${percent(each.idle)}; ${short(each.rowsInPerSecond)} rows/s in, ${short(each.rowsOutPerSecond)} out; ${short(each.queueBatches)} batches wait`;
        attr(time, "title", title);
        text(time.children[0], `${each.stage} ${(names.get(each.stage) ?? "").replaceAll(" -> ", ", ")}`);
        width(time.children[1].children[0], busy);
        width(time.children[1].children[1], pressed);
        text(time.children[2], percent(each.busy));
      });
      cells.classList.toggle("many", many);
      cells.hidden = !own.length;
      const [worst] = own.toSorted((a, b) => (b.lag ?? -1) - (a.lag ?? -1));
      attr(cells, "aria-label", `${counted(own.length, "split")}, ${own.filter((each) => each.paused).length} paused, ${own.filter((each) => each.idle).length} idle${worst?.lag ? `; the largest lag is ${whole(worst.lag)} rows, of ${worst.id}` : ""}`);
      sync(cells, own.toSorted((a, b) => (a.key < b.key ? -1 : 1)), (each) => each.key, () => make("span"), (cell, each) => {
        const how = condition(each);
        attr(cell, "class", ["cell", how === "reading" ? "" : how, this.slowest.has(each.key) ? "slowest" : ""].filter(Boolean).join(" "));
        attr(cell, "data-lag", lagStep(each.lag));
        attr(cell, "title", `${each.id}: ${how}, lag ${whole(each.lag)}, watermark ${clock(each.watermarkMs, snapshot.nowMs)}`);
        text(cell, many ? "" : `${several ? `${each.source.uid} ` : ""}${each.id}${each.lag == null ? "" : `  ${short(each.lag)}`}`);
      });
    });
    byId("s-slots").dataset.left = left;
  }

  groups(snapshot) {
    const groups = (snapshot.alignmentGroups ?? []).filter((each) => each.slowest);
    sync(byId("groups"), groups, (each) => each.group, () => make("li", {}, make("b"), make("span")), (line, each) => {
      const slowest = each.sources?.length > 1 ? `${each.slowest.split} of ${each.slowest.source}` : each.slowest.split;
      text(line.children[0], each.pausedSplits ? `${slowest} holds back ${whole(each.pausedSplits)} of ${counted(each.numSplits, "split")}` : `${slowest} is the slowest of ${counted(each.numSplits, "split")}`);
      text(line.children[1], ` in the group ${each.group}${each.driftMs == null ? "" : `: the fastest is ${duration(each.driftMs)} ahead`}.`);
    });
  }

  charts(snapshot, history) {
    if (!history?.points?.length) return;
    const named = (history.watermarks && Object.keys(history.watermarks).length > 1) ? (source, split) => `${split} of ${source}` : (_, split) => split;
    const series = Object.entries(history.watermarks ?? {}).flatMap(([source, splits]) => Object.entries(splits).map(([split, values]) => ({ key: `${source}/${split}`, name: named(source, split), values })));
    this.watermarks.show(history.points, series);
  }

  splits(snapshot) {
    const wanted = byId("filter").value.trim().toLowerCase();
    const all = allSplits(snapshot);
    const found = all.filter((each) => !wanted || each.id.toLowerCase().includes(wanted) || each.source.uid.toLowerCase().includes(wanted));
    const orders = {
      lag: (a, b) => (b.lag ?? -1) - (a.lag ?? -1) || (a.watermarkMs ?? Infinity) - (b.watermarkMs ?? Infinity),
      watermark: (a, b) => (a.watermarkMs ?? Infinity) - (b.watermarkMs ?? Infinity),
      name: () => 0,
    };
    found.sort((a, b) => orders[byId("order").value](a, b) || a.key.localeCompare(b.key, "en", { numeric: true }));
    const several = (snapshot.sources ?? []).length > 1;
    const most = Math.max(...all.map((each) => each.lag ?? 0), 1);
    const left = sum((snapshot.sources ?? []).map((each) => each.splitsLeftOut));
    rows(byId("split-table"), found.slice(0, this.shown), (each) => each.key,
      (each) => [`${each.id}${several ? ` of ${each.source.uid}` : ""}`, each.slot ?? "–", undefined, clock(each.watermarkMs, snapshot.nowMs), each.driftMs == null ? "–" : duration(each.driftMs), this.slowest.has(each.key) && condition(each) === "reading" ? "reading, slowest" : condition(each), position(each.position)],
      (row, each) => {
        const lag = row.cells[2];
        if (!lag.firstElementChild) lag.append(make("span"), make("span.meter", { "aria-hidden": "true" }, make("i")));
        text(lag.firstElementChild, whole(each.lag));
        lag.lastElementChild.hidden = each.lag == null;
        width(lag.lastElementChild.firstChild, (each.lag ?? 0) / most);
        attr(row.cells[6], "title", position(each.position));
      });
    text(byId("split-count"), all.length ? `${whole(Math.min(this.shown, found.length))} of ${counted(all.length + left, "split")}${left ? `; the driver sends the ${whole(all.length)} with the largest lag` : ""}` : "No split is being read.");
    byId("more").hidden = found.length <= this.shown;
  }

  restarts(snapshot) {
    const { count = 0, recent = [] } = snapshot.restarts ?? {};
    text(byId("restart-count"), count ? whole(count) : "");
    const items = recent.length ? recent.slice(-8).reverse() : [{ none: true }];
    sync(byId("restarts"), items, (each) => (each.none ? "none" : `${each.atMs} ${each.stage} ${each.subtask} ${each.slot}`), () => make("li", {}, make("span"), make("span.soft")), (line, each) => {
      if (each.none) return void text(line.children[0], "None since the start.");
      const where = each.kind === "subtask" && each.subtask != null ? `subtask ${each.subtask} of stage ${each.stage}` : each.kind === "slot" && each.slot != null ? `slot ${each.slot}` : each.kind === "rescale" ? "rescaled" : "all subtasks";
      text(line.children[0], each.cause || where);
      text(line.children[1], `${clock(each.atMs, snapshot.nowMs)}, ${age(snapshot.nowMs - each.atMs)} ago, ${where}`);
    });
  }

  autoscaler(snapshot) {
    const scaler = snapshot.autoscaler;
    byId("s-autoscaler").hidden = !scaler || scaler.mode === "off";
    if (!scaler) return;
    text(byId("autoscaler-about"), [scaler.mode, scaler.state, `${scaler.min ?? "–"} to ${scaler.max ?? "–"} slots`].filter(Boolean).join(", "));
    const decisions = (scaler.decisions ?? []).slice(-8).reverse();
    sync(byId("decisions"), decisions.length ? decisions : [{ none: true }], (each) => each.atMs ?? "none", () => make("li", {}, make("span"), make("span.soft")), (line, each) => {
      text(line.children[0], each.none ? "No decision yet." : each.from === each.to ? `stays at ${each.to}` : `${each.from} to ${each.to} slots`);
      text(line.children[1], each.none ? "" : `${clock(each.atMs, snapshot.nowMs)}: ${each.reason}`);
    });
  }

  sinks(snapshot) {
    rows(byId("sink-table"), snapshot.sinks ?? [], (each) => each.uid, (each) => [
      each.description || each.uid, whole(each.rowsWritten), short(each.rowsPerSecond), whole(each.commits), duration(each.lastCommitMs), percent(each.commitShare), each.unpublishedMs ? duration(each.unpublishedMs) : "–",
    ]);
  }

  sources(snapshot) {
    sync(byId("sources"), snapshot.sources ?? [], (each) => each.uid, () => make("div.source", {}, make("div.line", {}, make("b"), make("span.soft")), make("div"), make("dl.pairs")), (box, each) => {
      const [line, troubles, pairs] = box.children;
      text(line.children[0], each.description || each.uid);
      text(line.children[1], [each.state, counted(each.numSplits ?? 0, "split"), each.pausedSplits ? `${each.pausedSplits} paused` : "", each.idleSplits ? `${each.idleSplits} idle` : "", each.bytesPerSecond == null ? "" : `${bytes(each.bytesPerSecond)}/s`].filter(Boolean).join(" · "));
      sync(troubles, each.troubles ?? [], byIndex, () => make("p.trouble"), (line, trouble) => text(line, trouble));
      const metrics = [...Object.entries(each.lag ?? {}), ...Object.entries(each.metrics ?? {}).map(([name, metric]) => [name, metric?.value ?? metric])];
      sync(pairs, metrics.slice(0, 60), ([name]) => name, ([name]) => make("div", {}, make("dt", {}, name), make("dd")), (pair, [name, value]) => {
        text(pair.children[1], /Ms$/.test(name) ? duration(value) : /[bB]ytes/.test(name) ? bytes(value) : typeof value === "number" ? (Number.isInteger(value) ? whole(value) : value.toPrecision(3)) : String(value));
      });
    });
  }
}
