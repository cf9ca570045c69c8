// The first view: what each run is and where it stands, and the curves of all of them together.
import { chart } from "./chart.js";
import { ask, color, count, el, failure, svg, visible } from "./dom.js";
import { family, seeded, table } from "./table.js";

const DASHES = [null, "5 3", "1.5 3", "8 3 2 3"];
const UNITS = { iteration: "iteration", tokens: "tokens sampled", seconds: "seconds" };

const MANY = 6, AT_ONCE = 8;
// What the team does has a colour of its own; agents and policies have theirs here as in their episodes.
const TEAM = { "evaluation (held out)": "var(--ink)", evaluation: "var(--ink)", training: "var(--soft)", demonstrations: "var(--soft)" };

const sample = (line) => svg("svg", { width: 18, height: 8 }, line.dots ? svg("circle", { cx: 9, cy: 4, r: 3.5, fill: line.color })
  : svg("line", { x1: 0, x2: 18, y1: 4, y2: 4, stroke: line.color, "stroke-width": 2, "stroke-dasharray": line.dash }));

export class Runs {
  constructor(app) {
    this.app = app;
    // As many as there are colours; the others are a tick away.
    this.hidden = new Set([...app.sources.keys()].filter((i) => i >= AT_ONCE));
    this.x = "iteration";
    this.smooth = 1;
    this.span = [null, null];
    this.by = [];
    this.together = seeded(app.sources);
    this.listed = this.together || app.sources.length > AT_ONCE ? "table" : "cards";
    if (this.together) this.hidden.clear();
    this.keys = [];
    this.curves = new Map();
    this.cards = el("div", { class: "runs" });
    this.tools = el("div", { class: "tools" });
    this.figures = el("div", { class: "figures" });
    this.verdicts = el("div", {}, this.together && el("p", { class: "note" }, "Comparing …"));
    this.root = el("section", {}, this.verdicts, this.cards, this.tools, this.figures);
    new ResizeObserver(() => this.draw()).observe(this.figures);
  }

  /** Called when the view opens and whenever the sources have been asked for again. */
  async update() {
    this.showCards();
    if (!this.figures.childElementCount) this.figures.append(el("p", { class: "note" }, "Loading curves …"));
    const changed = await Promise.all(this.app.sources.map((source, i) => !this.hidden.has(i) && this.fetch(source, i)));
    if (changed.some(Boolean) || !this.drawn) { this.showTools(); this.draw(true); this.compare(); }
  }

  /** What the report of a benchmark says first stands first here. */
  async compare() {
    try { this.verdicts.replaceChildren(...(await ask("verdicts")).verdicts.map((text) => el("p", { class: "verdict" }, visible(text)))); }
    catch (error) { this.verdicts.replaceChildren(failure(error)); }
  }

  /** Asks for a run's curves; false if there is nothing new. */
  async fetch(source, i) {
    if (source.iteration === null && !source.facts.length && !source.trouble) return false;
    const keys = this.keys.join(","), before = this.curves.get(i);
    try {
      const now = await ask("curves", { source: i, keys, seen: before?.wanted === keys ? before.size : "" });
      if (now.same) return false;
      this.curves.set(i, { ...now, wanted: keys });
    } catch (error) {
      const same = before?.error?.message === error.message;
      this.curves.set(i, { size: -1, diagrams: [], axes: {}, keys: [], wanted: keys, error });
      return !same;
    }
    return true;
  }

  showCards() {
    const head = this.cards.contains(document.activeElement) && document.activeElement.textContent;
    this.cards.classList.toggle("listed", this.listed === "table");
    if (this.listed === "table") {
      this.cards.replaceChildren(table(this.app.sources, this.together, this.by,
        (i) => [!this.together && this.toggle(this.app.sources[i], i), el("i", { style: { background: this.shade(i) } })], () => this.showCards()));
      return [...this.cards.querySelectorAll("button")].find((b) => head && b.textContent === head)?.focus();
    }
    const opened = new Set([...this.cards.querySelectorAll("details[open]")].map((d) => d.dataset.source));
    this.cards.replaceChildren(...this.app.sources.map((source, i) => this.card(source, i, opened.has(String(i)))));
  }

  /** The colour of a run: that of its seeds where they stand together. */
  shade(i) {
    const { sources } = this.app;
    return color(this.together ? [...new Set(sources.map((s) => family(s.name)))].indexOf(family(sources[i].name)) : i);
  }

  toggle(source, i) {
    return el("input", { type: "checkbox", checked: !this.hidden.has(i), "aria-label": `show ${source.name}`,
      onchange: (e) => { this.hidden[e.target.checked ? "delete" : "add"](i); this.draw(true); this.update(); } });
  }

  card(source, i, open) {
    const toggle = this.toggle(source, i);
    const live = source.writer && el("span", { class: "live" }, source.writer === "here" ? "training" : `training on ${source.writer}`);
    const episodes = Object.values(source.files).reduce((a, b) => a + b, 0);
    const facts = [["iteration", source.iteration], ["episodes recorded", count(episodes)], ...source.facts];
    const details = el("details", { "data-source": i, open, ontoggle: (e) => e.target.open && this.settings(i, e.target) },
      el("summary", {}, "commands and settings"));
    const many = this.app.sources.length > MANY, scored = facts.filter(([k]) => !many || /^(iteration|untrained|after)/.test(k));
    if (open) this.settings(i, details);
    return el("article", { class: "run", style: { "--run": this.shade(i) } },
      el("h2", {}, el("label", {}, toggle, el("i", {}), visible(source.name)), live),
      source.trouble && el("p", { class: "error" }, visible(source.trouble)),
      el("dl", {}, scored.filter(([, v]) => v != null).map(([k, v]) => [el("dt", {}, k), el("dd", {}, visible(v))])),
      !many && el("p", { class: "note path" }, visible(source.root)),
      el("p", {}, el("a", { href: `#episodes?source=${i}` }, "read its episodes")), details);
  }

  async settings(i, details) {
    try {
      const settings = await ask("settings", { source: i });
      details.replaceChildren(details.firstElementChild,
        ...settings.commands.map((c) => el("pre", { class: "command" }, visible(c.command))),
        settings.start && el("p", { class: "note" }, `begins with the weights of ${visible(settings.start)}`), el("pre", {}, visible(settings.config)));
    } catch (error) { details.replaceChildren(details.firstElementChild, failure(error)); }
  }

  showTools() {
    const keys = [...new Set([...this.curves.values()].flatMap((c) => c.keys))];
    if (!keys.length) return this.tools.replaceChildren();
    const axis = el("select", { id: "axis", onchange: (e) => { this.x = e.target.value; this.draw(true); } },
      Object.entries(UNITS).map(([key, text]) => el("option", { value: key, selected: key === this.x }, text)));
    const more = el("select", { id: "more", onchange: (e) => { this.keys.push(e.target.value); this.update(); } },
      el("option", { value: "" }, "another number …"),
      keys.filter((key) => !this.keys.includes(key)).map((key) => el("option", { value: key }, visible(key))));
    const choose = (name, options) => el("select", { id: name, onchange: (e) => { this[name] = e.target.value; this.showCards(); this.draw(true); } },
      Object.entries(options).map(([key, text]) => el("option", { value: key, selected: key === String(this[name]) }, text)));
    const tick = (name, text) => el("label", {}, el("input", { type: "checkbox", id: name, checked: this[name], onchange: (e) => { this[name] = e.target.checked; this.showCards(); this.draw(true); } }), text);
    const end = (k, text) => el("label", {}, text, el("input", { type: "number", id: text.trim(), value: this.span[k] ?? "", onchange: (e) => { this.span[k] = e.target.value === "" ? null : +e.target.value; this.draw(true); } }));
    this.tools.replaceChildren(el("label", {}, "runs as ", choose("listed", { cards: "cards", table: "a table" })), ...(seeded(this.app.sources) ? [tick("together", "means of seeds")] : []),
      el("label", {}, "over ", axis), end(0, "from "), end(1, "to "), el("label", {}, "smoothed over ", choose("smooth", { 1: "nothing", 5: "5 points", 15: "15 points", 50: "50 points" })),
      tick("log", "log axis"), el("label", {}, "add ", more));
  }

  draw(always = false) {
    const width = this.figures.clientWidth;
    if (!width || (width === this.width && !always)) return;
    this.width = width;
    const titles = new Map();
    for (const [i, curves] of [...this.curves].sort(([a], [b]) => a - b))
      if (!this.hidden.has(i)) for (const d of curves.diagrams) titles.set(d.title, [...(titles.get(d.title) ?? []), [i, d]]);
    for (const link of this.figures.querySelectorAll(".csv")) URL.revokeObjectURL(link.href);
    const columns = Math.max(1, Math.floor(width / 330));
    const errors = [...this.curves].filter(([i, c]) => c.error && !this.hidden.has(i)).map(([, c]) => c).map((c) => failure(c.error));
    const figures = [...titles].map(([title, shown], at) => {
      const inner = at === 0 ? width - 26 : (width - 12 * (columns - 1)) / columns - 26;
      return this.figure(title, shown, inner, at === 0);
    });
    const left = this.hidden.size && el("p", { class: "note" }, `${this.app.sources.length - this.hidden.size} of ${this.app.sources.length} are drawn; tick others to add them.`);
    const none = !figures.length && !errors.length && el("p", { class: "note" }, "No curves yet: nothing has been measured.");
    this.drawn = true;
    this.figures.replaceChildren(...(left ? [left] : []), ...errors, ...figures, ...(none ? [none] : []));
  }

  figure(title, shown, width, wide) {
    const several = new Set([...this.curves.keys()].filter((i) => !this.hidden.has(i) && this.curves.get(i).diagrams.length)).size > 1;
    let lines = [], dashed = [];
    for (const [i, diagram] of shown) {
      const at = this.axis(i), labels = [...new Set(this.curves.get(i).diagrams.flatMap((d) => Object.keys(d.series)))].filter((name) => !TEAM[name]);
      const source = this.app.sources[i].name, own = this.shade(i);
      for (const [k, [name, points]] of Object.entries(diagram.series).entries()) {
        const measured = k === 0 && diagram.bars.length > 0, drawn = TEAM[name] ? 0 : Math.max(0, labels.indexOf(name));
        const label = several ? `${this.together ? family(source) : source} · ${name}` : name;
        lines.push({ label: visible(label), name: visible(name), color: several ? own : TEAM[name] ?? color(labels.indexOf(name)), dash: several && drawn > 0 ? DASHES[drawn % 4] : null,
          dots: measured, shift: 4 * (shown.findIndex(([j]) => j === i) - (shown.length - 1) / 2) * measured, points: points.map(([x, y]) => [at(x), y]).filter(([x, y]) => x != null && y != null),
          bars: measured ? diagram.bars.map(([x, ...ends]) => [at(x), ...ends]) : [] });
      }
      if (diagram.dashed != null && !this.together) dashed.push({ y: diagram.dashed, color: several ? own : "var(--soft)" });
    }
    if (this.together) lines = means(lines);
    lines = lines.map((line) => ({ ...line, points: inside(line.dots ? line.points : smoothed(line.points, +this.smooth), this.span), bars: inside(line.bars, this.span) }));
    const said = shown[0][1].note, bars = lines.some((line) => line.bars.length) ? ", with the lowest and the highest" : "";
    const note = this.together ? [said.split(" with 95 %")[0], `means of seeds${bars}`].filter(Boolean).join("; ") : said;
    const options = { title, x: UNITS[this.x], whole: this.x === "iteration", dashed, unit: shown.every(([, d]) => d.unit), share: shown.every(([, d]) => d.share),
      floor: shown[0][1].floor, log: this.log, zoom: (span) => { this.span = span; this.showTools(); this.draw(true); } };
    const legend = (several && lines.length > AT_ONCE ? this.briefly(shown, lines) : lines.filter((l) => l.points.length))
      .map((l) => el("span", {}, sample(l), l.label));
    return el("figure", { class: wide ? "wide" : "" },
      el("figcaption", {}, el("b", {}, visible(title)), " ", el("span", {}, visible(note)), " ",
        el("a", { class: "csv", download: `${title}.csv`, href: URL.createObjectURL(new Blob([csv(lines, UNITS[this.x])], { type: "text/csv" })), "aria-label": `${visible(title)} as CSV` }, "CSV")),
      chart(lines, Math.max(width, 200), wide ? 230 : 150, options), el("div", { class: "legend" }, legend));
  }

  /** A legend of many lines: the colour of each run, or of its seeds together, and the dashes of each policy. */
  briefly(shown, lines) {
    const name = (i) => visible(this.together ? family(this.app.sources[i].name) : this.app.sources[i].name);
    const runs = new Map(shown.map(([i]) => [name(i), { color: this.shade(i), label: name(i) }]));
    const names = lines.filter((l) => !l.dots).map((l) => ({ dash: l.dash, label: l.name, color: "var(--soft)" }));
    const kinds = new Map(names.map((l) => [`${l.dash} ${l.label}`, l]));
    return [...runs.values(), ...(kinds.size > 1 ? kinds.values() : [])];
  }

  /** Iteration -> place on the x-axis of a run. */
  axis(i) {
    const { axes } = this.curves.get(i);
    if (this.x === "iteration") return (x) => x;
    const table = new Map(axes.iteration.map((n, k) => [n, axes[this.x][k]]));
    return (x) => table.get(x) ?? null;
  }
}

/** Lines of one label as one: the mean of those that have a point there, and their range where it was measured. */
function means(lines) {
  const groups = new Map();
  for (const line of lines) groups.set(line.label, [...(groups.get(line.label) ?? []), line]);
  return [...groups.values()].map((of) => {
    const points = [], bars = [];
    for (let k = 0; k < Math.max(...of.map((l) => l.points.length)); k++) {
      const here = of.map((l) => l.points[k]).filter(Boolean), mean = (at) => here.reduce((sum, p) => sum + p[at], 0) / here.length;
      points.push([mean(0), mean(1)]);
      if (of[0].dots && here.length > 1) bars.push([mean(0), Math.min(...here.map((p) => p[1])), Math.max(...here.map((p) => p[1]))]);
    }
    return { ...of[0], shift: 0, points, bars };
  });
}

const inside = (points, [from, to]) => points.filter(([x]) => (from === null || x >= from) && (to === null || x <= to));
const smoothed = (points, over) => (over < 2 ? points : points.map(([x], i) => {
  const window = points.slice(Math.max(0, i + 1 - over), i + 1);
  return [x, window.reduce((sum, p) => sum + p[1], 0) / window.length];
}));

/** A table of what is drawn; text that a spreadsheet would take for a formula begins with an apostrophe. */
function csv(lines, unit) {
  const quoted = (text) => `"${(/^[=+\-@]/.test(text) ? "'" : "") + String(text).replaceAll('"', '""')}"`;
  const xs = [...new Set(lines.flatMap((l) => l.points.map((p) => p[0])))].sort((a, b) => a - b);
  const at = lines.map((l) => new Map(l.points));
  return [[unit, ...lines.map((l) => l.label)].map(quoted).join(","), ...xs.map((x) => [x, ...at.map((m) => m.get(x) ?? "")].join(","))].join("\n") + "\n";
}
