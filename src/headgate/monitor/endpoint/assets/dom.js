// What all panels draw with. Nodes are kept from one snapshot to the next and only what differs is changed: so focus and
// selected text stay, and a thousand splits cost little. Texts of queries become text nodes only, never markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** Make an element: make("td.n", {title: "x"}, "text", child). */
export function make(kind, attributes = {}, ...children) {
  const [name, ...classes] = kind.split(".");
  const node = document.createElement(name);
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) attr(node, key, value);
  node.append(...children);
  return node;
}

/** Make an element of SVG. */
export function svg(kind, attributes = {}, ...children) {
  const [name, ...classes] = kind.split(".");
  const node = document.createElementNS(SVG, name);
  if (classes.length) node.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes)) attr(node, key, value);
  node.append(...children);
  return node;
}

export function text(node, value) {
  const wanted = String(value);
  if (node.textContent === wanted) return;
  if (node.childNodes.length === 1 && node.firstChild.nodeType === Node.TEXT_NODE) node.firstChild.data = wanted;
  else node.textContent = wanted;
}

export function attr(node, name, value) {
  if (value == null || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

export function width(node, share) {
  const wanted = `${(100 * Math.max(0, Math.min(1, share || 0))).toFixed(1)}%`;
  if (node.style.width !== wanted) node.style.width = wanted;
}

const kept = new WeakMap();

/** Let a node have one child for each item, in order: children are known by key, made once, updated each time. */
export function sync(parent, items, key, create, update) {
  const before = kept.get(parent) ?? new Map();
  const now = new Map();
  let at = parent.firstElementChild;
  items.forEach((item, index) => {
    const name = key(item, index);
    if (now.has(name)) return;
    const child = before.get(name) ?? create(item);
    now.set(name, child);
    update(child, item, index);
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
  });
  for (const [name, child] of before) if (now.get(name) !== child) child.remove();
  kept.set(parent, now);
}

/** Rows of a table: cells returns, for an item, the texts of its cells; classes are those of the header's cells. */
export function rows(table, items, key, cells, finish = () => {}) {
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.className);
  sync(
    table.tBodies[0], items, key,
    () => make("tr", {}, ...heads.map((name) => make(name ? `td.${name}` : "td"))),
    (row, item) => {
      cells(item).forEach((value, index) => value !== undefined && text(row.cells[index], value));
      finish(row, item);
    },
  );
}

/** The three shares of time, as a bar; they are extremes of subtasks, so together they may be above 1. */
export function shares({ busy, backPressured }) {
  const first = Math.max(0, Math.min(1, busy ?? 0));
  return [first, Math.max(0, Math.min(1 - first, backPressured ?? 0))];
}
