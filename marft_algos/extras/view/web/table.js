// Runs as a table that sorts at a click, and runs that differ in their seed alone put together.
import { el, visible } from "./dom.js";

const SEED = /^(.+) · (\d+)$/;

/** What a run is one of several seeds of: its name without the seed, as benchmarks name their runs. */
export const family = (name) => SEED.exec(name)?.[1] ?? name;

/** Whether several of these runs differ in their seed alone. */
export const seeded = (sources) => new Set(sources.map((s) => family(s.name))).size < sources.length;

/** A number at the beginning of a text such as "84.4% [81.0%, 87.3%]"; null where there is none. */
const leading = (text) => { const found = /^[+−-]?[\d,.]+/.exec(String(text ?? "")); return found ? +found[0].replace("−", "-").replaceAll(",", "") : null; };
const plain = (key) => (key.startsWith("after") ? "trained" : key);

/** Rows of [name, {column: text}]: a run each, or the means of its seeds. */
function rows(sources, together) {
  const each = sources.map((s, i) => [s.name, { iteration: s.iteration, ...Object.fromEntries(s.facts.map(([k, v]) => [plain(k), v])) }, i]);
  if (!together) return each;
  const groups = Map.groupBy ? Map.groupBy(each, ([name]) => family(name))
    : each.reduce((all, row) => all.set(family(row[0]), [...(all.get(family(row[0])) ?? []), row]), new Map());
  return [...groups].map(([name, of]) => {
    const columns = [...new Set(of.flatMap(([, facts]) => Object.keys(facts)))];
    const means = columns.map((column) => {
      const numbers = of.map(([, facts]) => leading(facts[column])).filter((x) => x !== null);
      const unit = /^[\d,.+−-]+(%| min)/.exec(of[0][1][column] ?? "")?.[1] ?? "", low = Math.min(...numbers), high = Math.max(...numbers);
      const shown = (x) => x.toLocaleString("en", { minimumFractionDigits: +!!unit, maximumFractionDigits: unit || x < 1000 ? 1 : 0 });
      const mean = shown(numbers.reduce((a, b) => a + b, 0) / numbers.length), range = low < high ? ` (${shown(low)} to ${shown(high)})` : "";
      return [column, numbers.length ? mean + unit + range : of[0][1][column]];
    });
    return [name, { seeds: of.length, ...Object.fromEntries(means) }, of[0][2]];
  });
}

/** The table; `by` is [column, descending] and is kept by the caller, `first(i)` makes what stands before the name of run i. */
export function table(sources, together, by, first, again) {
  const shown = rows(sources, together), columns = [...new Set(shown.flatMap(([, facts]) => Object.keys(facts)))].filter((c) => c !== "scored on");
  const value = ([name, facts]) => (by[0] === "run" ? name : leading(facts[by[0]]) ?? -Infinity);
  if (by[0]) shown.sort((a, b) => (by[1] ? -1 : 1) * (value(a) < value(b) ? -1 : +(value(a) > value(b))));
  const head = ["run", ...columns].map((column) => el("th", { scope: "col", "aria-sort": by[0] === column && (by[1] ? "descending" : "ascending") },
    el("button", { type: "button", onclick: () => { by.splice(0, 2, column, by[0] === column ? !by[1] : column !== "run"); again(); } }, visible(column))));
  return el("div", { class: "scroll" }, el("table", { class: "sheet" }, el("thead", {}, el("tr", {}, head)),
    el("tbody", {}, shown.map(([name, facts, i]) => el("tr", {}, el("th", { scope: "row" }, first(i), visible(name)),
      columns.map((column) => el("td", {}, visible(facts[column] ?? "–"))))))));
}
