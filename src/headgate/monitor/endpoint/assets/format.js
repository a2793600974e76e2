// Figures as people read them. Absent figures are null, and shown as a dash.

const NONE = "–";

/** A whole number, grouped: 12,345. */
export const whole = (value) => (value == null ? NONE : Math.round(value).toLocaleString("en"));

/** A number in few digits: 950, 12.3 k, 4.56 M. */
export function short(value) {
  if (value == null) return NONE;
  const size = Math.abs(value);
  if (size < 10 && size % 1 !== 0) return value.toFixed(1);
  if (size < 1000) return String(Math.round(value));
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit * 0.9995) return `${(value / unit).toPrecision(3)} ${name}`;
  }
  return String(Math.round(value));
}

export const percent = (share) => (share == null ? NONE : `${Math.round(100 * share)} %`);

export function bytes(value) {
  if (value == null) return NONE;
  for (const [unit, name] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (value >= unit) return `${(value / unit).toPrecision(3)} ${name}`;
  }
  return `${Math.round(value)} B`;
}

/** A duration from milliseconds: 850 ms, 4.2 s, 3 min 05 s, 2 h 10 min, 3 d 4 h. */
export function duration(ms) {
  if (ms == null) return NONE;
  const sign = ms < 0 ? "-" : "";
  const size = Math.abs(ms);
  if (size < 1000) return `${sign}${Math.round(size)} ms`;
  const seconds = size / 1000;
  if (seconds < 60) return `${sign}${seconds < 9.95 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${sign}${minutes} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${sign}${hours} h ${String(minutes % 60).padStart(2, "0")} min`;
  const days = Math.floor(hours / 24);
  return `${sign}${whole(days)} d${days < 100 ? ` ${hours % 24} h` : ""}`;
}

/** The same, in whole seconds: for what counts on in front of the reader. */
export const age = (ms) => (ms == null ? NONE : ms < 1000 ? "now" : duration(1000 * Math.floor(ms / 1000)).replace(/(\d)\.0 s/, "$1 s"));

const pad = (value) => String(value).padStart(2, "0");

/** A time of day, in the reader's zone; with the date if it is not today's. */
export function clock(ms, nowMs = Date.now()) {
  if (ms == null) return NONE;
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return "end of time";
  const time = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  if (new Date(nowMs).toDateString() === at.toDateString()) return time;
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${time}`;
}

/** A position as a source has it, in one line. */
export function position(value) {
  if (value == null) return NONE;
  return typeof value === "object" ? JSON.stringify(value).replaceAll('"', "").replace(/^[{[](.*)[}\]]$/, "$1") : String(value);
}

/** A count with its noun: 1 split, 12 splits. */
export const counted = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
