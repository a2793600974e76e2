// The stages as a graph: sources, stages, sinks. From left to right; on a phone from top to bottom.

import { attr, shares, svg, sync, text } from "./dom.js";
import { percent, short } from "./format.js";

const GAP = 46;
const HIGH = { source: 62, stage: 106, sink: 62 };

/** Nodes with their column, and edges. A stage comes after all of its inputs. */
function layout(snapshot) {
  const stages = snapshot.stages ?? [];
  const depth = new Map();
  const deep = (number, seen = new Set()) => {
    if (depth.has(number)) return depth.get(number);
    const stage = stages.find((each) => each.stage === number);
    if (!stage || seen.has(number)) return 0;
    seen.add(number);
    const found = Math.max(0, ...(stage.inputs ?? []).map((input) => deep(input, seen) + 1));
    depth.set(number, found);
    return found;
  };
  const nodes = [];
  const edges = [];
  for (const source of snapshot.sources ?? []) {
    const reader = stages.find((stage) => stage.sources?.includes(source.uid));
    nodes.push({ key: `source ${source.uid}`, kind: "source", column: reader ? deep(reader.stage) : 0, source });
    if (reader) edges.push({ from: `source ${source.uid}`, to: `stage ${reader.stage}`, rate: source.rowsPerSecond, pressed: false });
  }
  for (const stage of stages) {
    nodes.push({ key: `stage ${stage.stage}`, kind: "stage", column: deep(stage.stage) + 1, stage });
    for (const input of stage.inputs ?? []) {
      const producer = stages.find((each) => each.stage === input);
      edges.push({ from: `stage ${input}`, to: `stage ${stage.stage}`, rate: producer?.rowsOutPerSecond, pressed: (producer?.backPressured ?? 0) >= 0.5 });
    }
  }
  for (const sink of snapshot.sinks ?? []) {
    const writer = stages.find((stage) => stage.sinks?.includes(sink.uid)) ?? stages.at(-1);
    nodes.push({ key: `sink ${sink.uid}`, kind: "sink", column: writer ? deep(writer.stage) + 2 : 2, sink });
    if (writer) edges.push({ from: `stage ${writer.stage}`, to: `sink ${sink.uid}`, rate: sink.rowsPerSecond, pressed: false });
  }
  return { nodes, edges };
}

/** Give each node its place; returns the size of the whole. */
function place(nodes, room) {
  const columns = [];
  for (const node of nodes) (columns[node.column] ??= []).push(node);
  const used = columns.filter(Boolean);
  const across = used.length;
  const wide = (room - GAP * (across - 1)) / across;
  const upright = wide < 128;
  if (upright) {
    let y = 2;
    for (const column of used) {
      const each = (room - 12 * (column.length - 1) - 4) / column.length;
      column.forEach((node, index) => Object.assign(node, { x: 2 + index * (each + 12), y, width: each, height: HIGH[node.kind] }));
      y += Math.max(...column.map((node) => node.height)) + 34;
    }
    return { width: room, height: y - 34 + 4, upright };
  }
  const highest = Math.max(...used.map((column) => column.reduce((sum, node) => sum + HIGH[node.kind] + 16, -16)));
  used.forEach((column, number) => {
    let y = 2 + (highest - column.reduce((sum, node) => sum + HIGH[node.kind] + 16, -16)) / 2;
    for (const node of column) {
      Object.assign(node, { x: 2 + number * (wide + GAP - 4 / across), y, width: wide - 4, height: HIGH[node.kind] });
      y += node.height + 16;
    }
  });
  return { width: room, height: highest + 4, upright };
}

const fit = (value, room, each = 6.7) => {
  const most = Math.max(4, Math.floor(room / each));
  return value.length > most ? `${value.slice(0, most - 1)}…` : value;
};

/** What to call a source or a sink: where the whole description has no room, as the program does. */
const title = (description, uid, room) => (description && description.length * 7.4 <= room ? description : fit(uid, room, 7.4));

function lines(node) {
  const room = node.width - 24;
  if (node.kind === "source") {
    const { uid, description, rowsPerSecond, numSplits } = node.source;
    return [["title", title(description, uid, room)], ["soft", fit(`${short(rowsPerSecond)} rows/s, ${short(numSplits)} splits`, room)]];
  }
  if (node.kind === "sink") {
    const { uid, description, rowsPerSecond, rowsWritten } = node.sink;
    return [["title", title(description, uid, room)], ["soft", fit(`${short(rowsPerSecond)} rows/s, ${short(rowsWritten)} rows`, room)]];
  }
  const { stage, name, rowsInPerSecond, rowsOutPerSecond } = node.stage;
  const rates = [[rowsInPerSecond, "in"], [rowsOutPerSecond, "out"]].filter(([rate]) => rate != null).map(([rate, way], index) => `${short(rate)} ${index ? "" : "rows/s "}${way}`);
  const [busy, pressed, idle] = times(node.stage);
  return [
    ["title", fit(`${stage}  ${(name || "stage").replaceAll(" -> ", ", ")}`, room, 7.4)],
    ["big", fit(rates.join(", "), room)],
    ["soft", fit([busy, idle].filter(Boolean).join(", "), room) || "no figures yet"],
    ["soft", fit(pressed ?? "", room)],
  ];
}

/** The shares of time that are known, in words. */
const times = ({ busy, backPressured, idle }) => [["busy", busy], ["back-pressured", backPressured], ["idle", idle]].filter(([, share]) => share != null).map(([name, share]) => `${name} ${percent(share)}`);

function create(node) {
  const group = svg(`g.node.${node.kind}`);
  if (node.kind !== "stage") group.classList.add("end");
  group.append(svg("title"), svg("rect.box", { rx: 9 }));
  for (let line = 0; line < (node.kind === "stage" ? 4 : 2); line++) group.append(svg("text"));
  if (node.kind === "stage") group.append(svg("rect.bar-idle", { height: 7, rx: 3.5 }), svg("rect.bar-busy", { height: 7, rx: 3.5 }), svg("rect.bar-pressed", { height: 7, rx: 2, fill: "url(#pressed)" }));
  return group;
}

function update(group, node) {
  attr(group, "transform", `translate(${node.x.toFixed(1)},${node.y.toFixed(1)})`);
  const [title, box] = group.children;
  attr(box, "width", node.width.toFixed(1));
  attr(box, "height", node.height);
  const texts = group.querySelectorAll("text");
  const tops = node.kind === "stage" ? [22, 41, 78, 95] : [26, 45];
  lines(node).forEach(([kind, value], index) => {
    attr(texts[index], "class", kind);
    attr(texts[index], "x", 12);
    attr(texts[index], "y", tops[index]);
    text(texts[index], value);
  });
  if (node.kind !== "stage") {
    text(title, (node.source ?? node.sink).description || "");
    return;
  }
  const [busy, pressed] = shares(node.stage);
  const [whole, first, second] = group.querySelectorAll("rect:not(.box)");
  const room = node.width - 24;
  [[whole, 0, 1], [first, 0, busy], [second, busy, pressed]].forEach(([bar, from, share]) => {
    attr(bar, "x", (12 + room * from).toFixed(1));
    attr(bar, "y", 53);
    attr(bar, "width", (room * share).toFixed(1));
  });
  group.classList.toggle("hot", (node.stage.busy ?? 0) >= 0.8);
  group.classList.toggle("pressed", (node.stage.backPressured ?? 0) >= 0.5);
  text(title, `${node.stage.name}: ${(node.stage.operators ?? []).join(", ")}`);
}

function path(edge, nodes, upright) {
  const from = nodes.find((node) => node.key === edge.from);
  const to = nodes.find((node) => node.key === edge.to);
  if (!from || !to) return "";
  if (upright) {
    const [x1, y1, x2, y2] = [from.x + from.width / 2, from.y + from.height, to.x + to.width / 2, to.y];
    return `M${x1},${y1}C${x1},${y1 + 18} ${x2},${y2 - 18} ${x2},${y2}`;
  }
  const [x1, y1, x2, y2] = [from.x + from.width, from.y + from.height / 2, to.x, to.y + to.height / 2];
  const bend = Math.max(18, (x2 - x1) / 2);
  return `M${x1},${y1}C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
}

export class Graph {
  constructor(parent) {
    this.parent = parent;
    this.edges = svg("g");
    this.nodes = svg("g");
    const hatch = svg("pattern", { id: "pressed", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("rect.hatch-a", { width: 6, height: 6 }), svg("line.hatch-b", { x1: 0, y1: 0, x2: 0, y2: 6 }));
    this.root = svg("svg", { role: "img" }, svg("defs", {}, hatch), this.edges, this.nodes);
    parent.append(this.root);
    new ResizeObserver(() => this.snapshot && this.show(this.snapshot)).observe(parent);
  }

  show(snapshot) {
    this.snapshot = snapshot;
    const room = this.parent.clientWidth;
    if (!room) return;
    const { nodes, edges } = layout(snapshot);
    if (!nodes.length) return;
    const size = place(nodes, room);
    attr(this.root, "width", size.width);
    attr(this.root, "height", size.height);
    attr(this.root, "aria-label", (snapshot.stages ?? []).map((stage) =>
      `Stage ${stage.stage}, ${stage.name}: ${short(stage.rowsInPerSecond)} rows a second in, ${short(stage.rowsOutPerSecond)} out, ${times(stage).join(", ")}.`).join(" "));
    sync(this.nodes, nodes, (node) => node.key, create, update);
    sync(this.edges, edges, (edge) => `${edge.from} ${edge.to}`, () => svg("path.edge"), (line, edge) => {
      attr(line, "d", path(edge, nodes, size.upright));
      attr(line, "stroke-width", (1.3 + Math.log10(1 + (edge.rate ?? 0)) * 0.55).toFixed(2));
      line.classList.toggle("pressed", edge.pressed);
    });
  }
}
