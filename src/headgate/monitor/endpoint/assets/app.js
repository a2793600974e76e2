// The page: which query it shows, the connection to the driver, the theme, the keyboard.

import { Actions, announce, takeToken } from "./actions.js";
import { attr, byId, make, svg, sync, text } from "./dom.js";
import { age, clock, counted } from "./format.js";
import { Panels } from "./panels.js";

const POINTS = 300; // of a series, as the driver keeps
const SPLITS = 64; // with a line of their own
const SILENT_MS = 8000; // the driver sends something each second
const ENDED = ["ended", "failed"];

const panels = new Panels();
const page = { queries: [], id: null, snapshot: null, history: null, events: null, newsMs: 0, goneMs: null, tries: 0, timer: null };
const actions = new Actions(() => page.snapshot && { id: page.id, name: nameOf(page.snapshot), snapshot: page.snapshot });

const nameOf = (query) => query.name || query.id.slice(0, 8);
const isAlive = () => page.goneMs == null && page.snapshot != null && !ENDED.includes(page.snapshot.state);

// The connection

async function read(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(5000), cache: "no-store" });
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.json();
}

/** Find the queries, choose one and follow it; tries again until the driver answers. */
async function connect() {
  clearTimeout(page.timer);
  page.events?.close();
  page.events = null;
  try {
    page.queries = await read("api/queries");
    const wanted = fragment().get("query");
    const chosen = page.queries.find((each) => each.id === page.id) ?? page.queries.find((each) => [each.id, each.name].includes(wanted)) ?? page.queries[0];
    showChoice(chosen?.id);
    if (!chosen) {
      isBack();
      showNothing();
      page.timer = setTimeout(connect, 2000);
      return;
    }
    page.history = await read(`api/queries/${encodeURIComponent(chosen.id)}/history`);
    page.id = chosen.id;
    follow(chosen.id);
  } catch {
    isGone();
  }
}

function follow(id) {
  const events = new EventSource(`api/queries/${encodeURIComponent(id)}/events`);
  page.events = events;
  page.newsMs = Date.now();
  events.addEventListener("snapshot", (event) => {
    if (page.events !== events) return;
    isBack();
    take(JSON.parse(event.data));
  });
  events.addEventListener("alive", () => page.events === events && isBack());
  events.addEventListener("error", () => page.events === events && isGone());
}

function isBack() {
  page.newsMs = Date.now();
  page.tries = 0;
  if (page.goneMs == null) return;
  page.goneMs = null;
  byId("gone").hidden = true;
  document.body.classList.remove("is-gone");
  announce("The driver answers again.");
  showTop();
}

function isGone() {
  page.events?.close();
  page.events = null;
  page.goneMs ??= Date.now();
  document.body.classList.add("is-gone");
  byId("gone").hidden = false;
  showGone();
  showTop();
  page.tries += 1;
  clearTimeout(page.timer);
  page.timer = setTimeout(connect, Math.min(8000, 500 * 2 ** Math.min(page.tries, 5)));
}

function showGone() {
  text(byId("gone"), `The driver does not answer${page.snapshot ? `: what you see is from ${clock(page.snapshot.nowMs)}` : ""}. The page connects again when it does.`);
}

setInterval(() => {
  if (page.events && Date.now() - page.newsMs > SILENT_MS) isGone();
}, 1000);

let listed = 0;
setInterval(async () => { // other queries may start meanwhile
  if (page.goneMs != null || document.hidden || !page.events) return;
  try {
    page.queries = await read("api/queries");
    showChoice(page.id);
    if (listed && page.queries.length > listed) announce("Another query has started.");
    listed = page.queries.length;
  } catch { /* the stream finds out */ }
}, 5000);

// What came

function take(snapshot) {
  const before = page.snapshot;
  page.snapshot = snapshot;
  append(page.history, snapshot);
  if (before && before.id === snapshot.id && before.state !== snapshot.state) announce(`The query ${nameOf(snapshot)} is ${snapshot.state}.`);
  const [worst] = snapshot.why ?? [];
  if (worst?.severity === "critical" && worst.text.replaceAll(/\d+/g, "") !== page.alarm && before?.state === snapshot.state) {
    page.alarm = worst.text.replaceAll(/\d+/g, ""); // not again when only a figure moves
    announce(worst.text);
  }
  schedule();
}

/** Add a snapshot to the series that the charts began with. */
function append(history, snapshot) {
  if (!history?.points || ENDED.includes(snapshot.state)) return;
  const at = snapshot.nowMs;
  if (history.points.length && at <= history.points.at(-1)) return;
  const length = history.points.length;
  history.points.push(at);
  (history.inputRowsPerSecond ??= []).push((snapshot.sources ?? []).reduce((total, each) => total + (each.rowsPerSecond ?? 0), 0));
  history.watermarks ??= {};
  for (const source of snapshot.sources ?? []) {
    const series = (history.watermarks[source.uid] ??= {});
    for (const split of source.splits ?? []) {
      if (split.watermarkMs == null) continue;
      if (!series[split.id] && Object.keys(series).length < SPLITS) series[split.id] = Array(length).fill(null);
      series[split.id]?.push(split.watermarkMs);
    }
  }
  const excess = history.points.length - POINTS;
  for (const splits of Object.values(history.watermarks)) for (const [id, values] of Object.entries(splits)) {
    if (values.length <= length) values.push(null);
    if (excess > 0) values.splice(0, excess);
    if (values.every((value) => value == null)) delete splits[id];
  }
  if (excess > 0) {
    history.points.splice(0, excess);
    history.inputRowsPerSecond.splice(0, history.inputRowsPerSecond.length - POINTS);
  }
}

let drawing = false;

/** Draw the newest snapshot with the next frame: once, and only while somebody looks. */
function schedule() {
  if (drawing || document.hidden) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    if (!page.snapshot) return;
    byId("nothing").hidden = true;
    byId("all").hidden = false;
    showTop();
    panels.show(page.snapshot, page.history);
  });
}

document.addEventListener("visibilitychange", schedule);

function showTop() {
  const snapshot = page.snapshot;
  const state = byId("state");
  const word = page.goneMs != null ? "gone" : snapshot?.state ?? "none";
  attr(state, "data-state", word);
  text(state, page.goneMs != null ? "driver gone" : snapshot?.state ?? "no query");
  actions.show(isAlive());
  if (!snapshot) return;
  text(byId("name"), nameOf(snapshot));
  const since = snapshot.startedMs == null ? "" : `, ${ENDED.includes(snapshot.state) ? "started" : "for"} ${ENDED.includes(snapshot.state) ? clock(snapshot.startedMs) : age(snapshot.nowMs - snapshot.startedMs)}`;
  text(byId("about"), `${counted(snapshot.parallelism ?? 0, "slot")}${since}`);
  attr(byId("about"), "title", `id ${snapshot.id}, run ${snapshot.runId}`);
  document.title = `${nameOf(snapshot)}: ${state.textContent}`;
  text(byId("foot"), `Headgate ${snapshot.headgateVersion ?? ""} on Spark ${snapshot.sparkVersion ?? ""} · id ${snapshot.id} · as of ${clock(snapshot.nowMs)}`);
}

function showNothing() {
  page.id = page.snapshot = page.history = null;
  byId("nothing").hidden = false;
  byId("all").hidden = true;
  text(byId("name"), "Headgate");
  text(byId("about"), "");
  showTop();
}

// Which query

const fragment = () => new URLSearchParams(location.hash.slice(1));

function showChoice(id) {
  const select = byId("queries");
  byId("choice").hidden = page.queries.length < 2;
  sync(select, page.queries, (each) => each.runId, () => make("option"), (option, each) => {
    attr(option, "value", each.id);
    text(option, `${nameOf(each)} (${each.state})`);
  });
  if (id && select.value !== id && document.activeElement !== select) select.value = id;
}

function choose(id) {
  if (id === page.id) return;
  history.replaceState(null, "", `#query=${encodeURIComponent(id)}`);
  page.id = id;
  page.snapshot = page.history = null;
  connect();
}

byId("queries").addEventListener("change", (event) => choose(event.target.value));

function readFragment() {
  const given = fragment();
  if (given.has("token")) {
    takeToken(given);
    given.delete("token");
    history.replaceState(null, "", given.size ? `#${given}` : location.pathname);
  }
  return given.get("query");
}

addEventListener("hashchange", () => {
  const id = readFragment();
  actions.show();
  const chosen = page.queries.find((each) => [each.id, each.name].includes(id));
  if (chosen) choose(chosen.id);
});

// Theme

const THEMES = ["system", "light", "dark"];
const ICONS = {
  system: "M12 3a9 9 0 1 0 0 18a9 9 0 0 0 0-18M12 3v18a9 9 0 0 0 0-18z",
  light: "M12 7.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 0 0 0-9M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M5 19l1.4-1.4M17.6 6.4L19 5",
  dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5z",
};

const icon = (path, fill = "none") => svg("svg", { viewBox: "0 0 24 24", fill, stroke: "currentColor", "stroke-width": 1.8, "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true" }, svg("path", { d: path }));

function setTheme(theme) {
  localStorage.setItem("headgate-theme", theme);
  attr(document.documentElement, "data-theme", theme === "system" ? null : theme);
  const button = byId("theme");
  button.replaceChildren(icon(ICONS[theme]));
  attr(button, "aria-label", `Theme: ${theme === "system" ? "as the system has it" : theme}`);
  attr(button, "title", `Theme: ${theme === "system" ? "as the system has it" : theme} (t)`);
}

const nextTheme = () => setTheme(THEMES[(THEMES.indexOf(localStorage.getItem("headgate-theme") ?? "system") + 1) % THEMES.length]);

byId("theme").addEventListener("click", nextTheme);
byId("lock").append(icon("M6 11h12v9H6zM8.5 11V7.5a3.5 3.5 0 0 1 7 0V11"));

// Keyboard

const SECTIONS = ["s-why", "s-stages", "s-checkpoints", "s-slots", "s-watermarks", "s-splits", "s-restarts", "s-sinks", "s-sources"];
const SHORTCUTS = {
  c: () => byId("act-checkpoint").click(), s: () => byId("act-savepoint").click(), r: () => byId("act-rescale").click(), x: () => byId("act-stop").click(),
  t: nextTheme, "?": () => byId("d-help").showModal(), "/": () => byId("filter").focus(), q: () => byId("queries").focus(),
};

byId("help").addEventListener("click", SHORTCUTS["?"]);
const keysOn = byId("keys-on");
keysOn.checked = localStorage.getItem("headgate-keys") !== "off";
keysOn.addEventListener("change", () => localStorage.setItem("headgate-keys", keysOn.checked ? "on" : "off"));

document.addEventListener("keydown", (event) => {
  if (!keysOn.checked || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const section = /^[1-9]$/.test(event.key) && byId(SECTIONS[Number(event.key) - 1]);
  if (section && !section.hidden) {
    attr(section, "tabindex", -1);
    section.focus({ preventScroll: true });
    section.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  } else if (SHORTCUTS[event.key]) {
    event.preventDefault();
    SHORTCUTS[event.key]();
  }
});

// Begin

setTheme(localStorage.getItem("headgate-theme") ?? "system");
readFragment();
actions.show(false);
connect();
