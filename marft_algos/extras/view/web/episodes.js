// The second view: episodes, filtered and searched on the server, and one or two of them whole.
import { ask, count, el, failure, fileName, MARKS, short, visible } from "./dom.js";
import { compared } from "./episode.js";

const OUTCOMES = { "": "any outcome", solved: "solved", failed: "not solved", unjudged: "without a verdict", error: "infrastructure error", damaged: "damaged lines" };
const ORDERS = { "": "as recorded", best: "best first", worst: "worst first", longest: "most turns first" };
const FIELDS = ["source", "file", "outcome", "order", "task", "text"];
const PAGE = 50;

export class Episodes {
  constructor(app) {
    this.app = app;
    this.list = el("div", { class: "list", role: "list" });
    this.status = el("p", { class: "note", role: "status" });
    this.more = el("button", { type: "button", hidden: true, onclick: () => this.load() }, "more");
    this.form = el("form", { class: "tools", onsubmit: (e) => { e.preventDefault(); this.filter(); } });
    this.reading = el("div", { class: "reading" });
    this.root = el("section", { class: "episodes" },
      el("div", { class: "finder" }, this.form, this.status, this.list, this.more), this.reading);
    document.addEventListener("keydown", (e) => this.key(e));
  }

  async open(query) {
    this.query = query;
    const wanted = FIELDS.map((name) => query.get(name) ?? "").join("\n");
    if (wanted !== this.wanted) {
      this.wanted = wanted;
      this.showForm();
      await this.search();
    }
    await this.read();
  }

  /** New files of a run that trains appear in the form, and its list grows. */
  async update() {
    const files = JSON.stringify(this.source().files);
    if (files === this.files) return;
    const first = this.files === undefined;
    this.files = files;
    if (first) return;
    const at = document.activeElement;
    if (!this.form.contains(at)) this.showForm();
    if (this.next === null) { this.next = this.shown; await this.load(); }
  }

  source() { return this.app.sources[+(this.query?.get("source") ?? 0)] ?? this.app.sources[0]; }

  showForm() {
    const at = (name) => this.query.get(name) ?? "";
    const choose = (name, options, label) => el("label", {}, el("span", {}, label), el("select", { name, onchange: () => this.filter() },
      Object.entries(options).map(([value, text]) => el("option", { value, selected: value === at(name) }, visible(text)))));
    const write = (name, label, hint) => el("label", {}, el("span", {}, label),
      el("input", { name, type: "search", value: at(name), placeholder: hint, oninput: () => this.soon() }));
    const files = { "": "all", eval: "evaluations", train: "training" };
    for (const file of Object.keys(this.source().files)) files[file] = fileName(file);
    const kinds = Object.keys(this.source().files).some((f) => /^(eval|train)-/.test(f));
    if (!kinds) { delete files.eval; delete files.train; }
    this.form.replaceChildren(
      choose("source", Object.fromEntries(this.app.sources.map((s, i) => [i, s.name])), "run"),
      choose("file", files, "episodes"), choose("outcome", OUTCOMES, "outcome"), choose("order", ORDERS, "order"),
      write("task", "task", "part of its name"), write("text", "text", "in a prompt, reply or result"));
  }

  soon() { clearTimeout(this.typing); this.typing = setTimeout(() => this.filter(), 350); }

  /** Puts the form into the address, from where the view is made. */
  filter() {
    const now = new URLSearchParams();
    for (const [name, value] of new FormData(this.form)) if (value && !(name === "source" && value === "0")) now.set(name, value);
    const same = (now.get("source") ?? "0") === (this.query.get("source") ?? "0");
    if (!same) now.delete("file");
    else for (const name of ["at", "with"]) if (this.query.get(name)) now.set(name, this.query.get(name));
    location.hash = `#episodes?${now}`;
  }

  async search() {
    this.run = {};
    this.list.replaceChildren();
    this.next = 0; this.shown = 0; this.rows = [];
    await this.load();
  }

  /** Loads a page; a search in texts comes in parts, until the page is full. */
  async load() {
    const run = this.run, until = this.rows.length + PAGE;
    this.more.hidden = true;
    const query = Object.fromEntries(FIELDS.map((name) => [name, this.query.get(name) ?? ""]));
    query.source ||= "0";
    try {
      while (this.next !== null && this.rows.length < until) {
        const page = await ask("episodes", { ...query, after: this.next, limit: until - this.rows.length });
        if (run !== this.run) return;
        this.rows.push(...page.rows);
        this.list.append(...page.rows.map((row) => this.row(row)));
        this.next = page.next; this.shown = page.looked;
        const all = query.text ? `${count(this.rows.length)} found; searched ${count(page.looked)} of ${count(page.total)} episodes`
          : `${count(this.rows.length)} of ${count(page.total)} episodes`;
        this.status.textContent = all + (page.indexed < page.bytes ? ", more are being indexed" : "");
      }
      if (!this.rows.length) this.list.replaceChildren(el("p", { class: "note" }, "No episode has all of that."));
    } catch (error) { if (run === this.run) this.list.replaceChildren(failure(error)); }
    this.more.hidden = this.next === null;
    this.mark();
  }

  row(row) {
    const at = `${row.file}:${row.line}`;
    return el("a", { class: `row ${row.outcome}`, role: "listitem", href: this.link({ at, with: null }), "data-at": at },
      el("b", {}, MARKS[row.outcome]), el("span", { class: "task" }, visible(row.task || `line ${row.line}`)),
      el("em", {}, row.damage ? "" : `return ${short(row.score)} · ${row.turns} turn${row.turns === 1 ? "" : "s"}`),
      el("span", { class: "words" }, visible(row.damage || row.words)), el("small", {}, fileName(row.file)));
  }

  link(changes) {
    const query = new URLSearchParams(this.query);
    for (const [name, value] of Object.entries(changes)) if (value === null) query.delete(name); else query.set(name, value);
    return `#episodes?${query}`;
  }

  mark() {
    const at = this.query.get("at");
    for (const row of this.list.children) {
      row.toggleAttribute("aria-current", row.dataset.at === at);
      if (row.href && row.dataset.at) row.setAttribute("href", this.link({ at: row.dataset.at, with: null }));
    }
  }

  /** Shows the episode of the address, and the one beside it. */
  async read() {
    const at = this.query.get("at"), beside = this.query.get("with");
    this.mark();
    this.root.classList.toggle("open", Boolean(at));
    const wanted = `${this.query.get("source") ?? 0}:${at}|${beside}`;
    if (wanted === this.wantedEpisode) return;
    this.wantedEpisode = wanted;
    if (!at) return this.reading.replaceChildren(el("p", { class: "note hint" }, "Choose an episode. Keys: j and k for the next and the one before, / to search."));
    try {
      const fetched = await Promise.all([`${this.query.get("source") ?? 0}:${at}`, beside].filter(Boolean).map((place) => {
        const [source, file, line] = parts(place);
        return ask("episode", { source, file, line });
      }));
      if (wanted !== this.wantedEpisode) return;
      this.reading.replaceChildren(el("a", { class: "back", href: this.link({ at: null, with: null }) }, "← all episodes"),
        compared(fetched, this.app.sources, (place) => { location.hash = this.link({ with: place }); }));
      if (matchMedia("(max-width: 900px)").matches) scrollTo(0, 0);
    } catch (error) { if (wanted === this.wantedEpisode) this.reading.replaceChildren(failure(error)); }
  }

  key(event) {
    if (this.app.view !== "episodes" || event.ctrlKey || event.metaKey || event.altKey || /input|select|textarea/i.test(event.target.tagName)) return;
    if (event.key === "/") { event.preventDefault(); this.form.elements.text.focus(); }
    const step = { j: 1, k: -1 }[event.key];
    if (!step) return;
    const rows = [...this.list.querySelectorAll(".row")];
    const now = rows.findIndex((row) => row.dataset.at === this.query.get("at"));
    const row = rows[Math.min(Math.max(now + step, 0), rows.length - 1)];
    if (row) { location.hash = row.getAttribute("href"); row.scrollIntoView({ block: "nearest" }); }
  }
}

/** `2:eval-000020:7` -> source, file (which may hold colons) and line. */
function parts(place) {
  const words = place.split(":");
  return [words[0], words.slice(1, -1).join(":"), words.at(-1)];
}
