// D of each round, as a matrix and as a graph: turns in their layers, an edge from each message to the turns that received it.
import { el, svg, visible } from "./dom.js";

const SIDE = 20, STEP = 64;

/** Draws an episode's D; `go(index)` is called when a turn is chosen. */
export function dependence(episode, color, go) {
  const names = episode.agents.map((agent) => agent.name);
  if (names.length < 2 || !episode.rounds.length) return null;
  const drawn = episode.rounds.map((round) => el("figure", {}, el("figcaption", {}, `round ${round.index + 1}`),
    el("div", { class: "scroll dependence" }, matrix(round, names, color), played(round, episode, names, color, go))));
  const first = drawn.slice(0, 3), rest = drawn.slice(3);
  return el("details", { class: "rounds", open: names.length <= 12 }, el("summary", {}, "D: which agent receives whose messages"),
    el("p", { class: "note" }, "Row: the sender; column: the receiver. Filled: sent; a ring: requested, but not sent; a dot: sent without a request. Agents have the same numbers in both pictures; point at a circle for its turn."),
    first, rest.length > 0 && el("details", {}, el("summary", {}, `${rest.length} more rounds`), rest));
}

function matrix(round, names, color) {
  const n = names.length, left = Math.min(Math.max(...names.map((s) => s.length)), 14) * 6.6 + 22;
  const size = n * SIDE;
  const root = svg("svg", { class: "matrix", width: left + size + 4, height: size + 20, role: "img", "aria-label": `D of round ${round.index + 1}` });
  names.forEach((name, i) => {
    const y = 16 + i * SIDE;
    root.append(svg("text", { x: left - 6, y: y + 14, "text-anchor": "end", class: "tick" }, clipped(name), svg("tspan", { class: "number" }, ` ${i + 1}`)),
      svg("text", { x: left + i * SIDE + SIDE / 2, y: 11, "text-anchor": "middle", class: "tick" }, i + 1));
    names.forEach((receiver, j) => {
      const done = round.D[i][j], asked = round.asked.length ? round.asked[i][j] : done;
      const x = left + j * SIDE;
      const what = i === j ? "" : done ? (asked ? "requested and sent" : "sent, not requested") : asked ? "requested, not sent" : "not sent";
      const square = svg("rect", { x: x + 1.5, y: y + 1.5, width: SIDE - 3, height: SIDE - 3, rx: 3, class: i === j ? "self" : done ? "done" : asked ? "asked" : "none",
        fill: done ? color(i) : null, stroke: asked && !done ? color(i) : null }, what && svg("title", {}, `${visible(name)} → ${visible(receiver)}: ${what}`));
      root.append(square);
      if (done && !asked) root.append(svg("circle", { cx: x + SIDE / 2, cy: y + SIDE / 2, r: 3, class: "beyond" }));
    });
  });
  return root;
}

function played(round, episode, names, color, go) {
  const layers = episode.layers.filter((layer) => layer.round === round.index);
  const column = new Map(layers.flatMap((layer, i) => layer.turns.map((t) => [t, i])));
  const top = (t) => 16 + (names.indexOf(episode.turns[t].agent) + 0.5) * SIDE;
  const place = (t) => [18 + column.get(t) * STEP, top(t)];
  const width = 40 + (layers.length - 1) * STEP, height = 20 + names.length * SIDE;
  const root = svg("svg", { class: "played", width, height, role: "img", "aria-label": `turns of round ${round.index + 1}` });
  for (const [seen, seer] of round.edges) {
    if (!column.has(seer)) continue;
    const [x2, y2] = place(seer), before = !column.has(seen);
    const [x1, y1] = before ? [2, top(seen)] : place(seen);
    root.append(svg("path", { class: "edge", stroke: color(names.indexOf(episode.turns[seen].agent)),
      d: `M${x1},${y1}C${(x1 + x2) / 2},${y1} ${(x1 + x2) / 2},${y2} ${x2 - 8},${y2}` }));
  }
  layers.forEach((layer, i) => root.append(svg("text", { class: "tick", x: 18 + i * STEP, y: 11, "text-anchor": "middle" }, `layer ${layer.index + 1}`)));
  for (const t of column.keys()) {
    const [cx, cy] = place(t), agent = episode.turns[t].agent;
    root.append(svg("circle", { cx, cy, r: 7, fill: color(names.indexOf(agent)), class: "dot", tabindex: 0, onclick: () => go(t),
      onkeydown: (e) => e.key === "Enter" && go(t) }, svg("title", {}, `turn ${t}: ${visible(agent)}`)),
      svg("text", { x: cx, y: cy + 3.5, "text-anchor": "middle", class: "index" }, names.indexOf(agent) + 1));
  }
  return root;
}

const clipped = (name) => visible(name.length > 14 ? name.slice(0, 13) + "…" : name);
