// What the page may do to a query, with the driver's token: each with a button, a shortcut and, where it needs one, a dialog.

import { attr, byId, make, text } from "./dom.js";

const KEY = "headgate-token";

/** Take the token out of the address, so that it is not copied with it, and keep it for this tab. */
export function takeToken(fragment) {
  const given = fragment.get("token");
  if (given) sessionStorage.setItem(KEY, given);
}

export const token = () => sessionStorage.getItem(KEY);

/** Say something to everybody: as a message on the page, and to a screen reader. */
export function notify(sentence, bad = false) {
  announce(sentence);
  const toast = make(bad ? "div.toast.bad" : "div.toast", {}, sentence);
  byId("toasts").append(toast);
  setTimeout(() => toast.remove(), bad ? 15_000 : 6000);
}

export const announce = (sentence) => text(byId("live"), sentence);

export class Actions {
  /** current: returns {id, name, snapshot} of the query on the page, or null. */
  constructor(current) {
    this.current = current;
    this.running = 0;
    byId("act-checkpoint").addEventListener("click", () => this.begin("checkpoint"));
    for (const name of ["savepoint", "rescale", "stop"]) byId(`act-${name}`).addEventListener("click", () => this.begin(name));
    this.dialog("savepoint", (form) => [{ location: form.location.value.trim() }, (done) => `Savepoint ${done.checkpointId} is written to ${done.location}.`]);
    this.dialog("rescale", (form) => [{ parallelism: Number(form.parallelism.value) }, (done) => `The query goes on with ${done.parallelism} slots.`]);
    this.dialog("stop", (form) => {
      const how = form.how.value;
      const body = how === "savepoint" ? { savepoint: form.location.value.trim() } : how === "drain" ? { drain: true } : {};
      return [body, () => (how === "savepoint" ? "The query is suspended; its savepoint is written." : how === "drain" ? "The query is drained and has ended." : "The query has ended.")];
    });
    for (const way of byId("d-stop").querySelectorAll("[name=how]")) way.addEventListener("change", () => this.way());
    byId("d-token").querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, event.target.token.value.trim());
      event.target.reset();
      byId("d-token").close();
      this.show();
      if (this.wanted) this.begin(this.wanted);
    });
    byId("d-help").querySelector("form").addEventListener("submit", (event) => { event.preventDefault(); byId("d-help").close(); });
    for (const dialog of document.querySelectorAll("dialog")) {
      dialog.querySelector("[value=cancel]")?.addEventListener("click", () => dialog.close());
      dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    }
    byId("lock").addEventListener("click", () => { this.wanted = null; byId("d-token").showModal(); });
  }

  /** A dialog whose form makes a request: read returns its body, and the sentence for what it is answered. */
  dialog(name, read) {
    const dialog = byId(`d-${name}`);
    dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      const [body, sentence] = read(event.target.elements);
      dialog.close();
      this.send(name, body, sentence);
    });
  }

  begin(name) {
    const query = this.current();
    if (!query || byId(`act-${name}`).disabled) return;
    if (!token()) {
      this.wanted = name;
      byId("d-token").showModal();
      return;
    }
    if (name === "checkpoint") return void this.send(name, {}, (done) => `Checkpoint ${done.checkpointId} is complete.`);
    if (name === "rescale") {
      const field = byId("d-rescale").querySelector("input");
      const { parallelism, maxParallelism } = query.snapshot;
      field.value = parallelism ?? "";
      attr(field, "max", maxParallelism);
      text(byId("rescale-hint"), `It has ${parallelism ?? "–"} now; at most ${maxParallelism ?? "–"}, which is max-parallelism.`);
      queueMicrotask(() => field.select());
    }
    if (name === "stop") {
      byId("d-stop").querySelector("form").reset();
      text(byId("t-stop"), `Stop the query ${query.name}?`);
      this.way();
    }
    byId(`d-${name}`).showModal();
  }

  way() {
    const form = byId("d-stop").querySelector("form").elements;
    const suspend = form.how.value === "savepoint";
    byId("stop-folder").hidden = !suspend;
    form.location.required = suspend;
  }

  async send(name, body, sentence) {
    const query = this.current();
    if (!query) return;
    const button = byId(`act-${name}`);
    attr(button, "aria-busy", "true");
    this.running += 1;
    announce(`${button.textContent} was requested.`);
    try {
      const answer = await fetch(`api/queries/${encodeURIComponent(query.id)}/${name}`, {
        method: "POST", body: JSON.stringify(body), headers: { Authorization: `Bearer ${token()}`, "Content-Type": "application/json" },
      });
      const done = await answer.json();
      if (answer.ok) notify(sentence(done));
      else {
        if (answer.status === 401 || (answer.status === 403 && /token/.test(done.error))) sessionStorage.removeItem(KEY);
        notify(done.error, true);
      }
    } catch {
      notify(`The driver did not answer the request for a ${name}.`, true);
    } finally {
      attr(button, "aria-busy", null);
      this.running -= 1;
      this.show();
    }
  }

  /** Buttons are on while the query lives and the driver answers. */
  show(alive = this.alive) {
    this.alive = alive;
    for (const name of ["checkpoint", "savepoint", "rescale", "stop"]) byId(`act-${name}`).disabled = !alive;
    const lock = byId("lock");
    lock.hidden = Boolean(token());
    attr(lock, "title", "Read only: give the token");
    attr(lock, "aria-label", "This page may only read: give the token");
  }
}
