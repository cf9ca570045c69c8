// One diagram as SVG, in the width that it has: lines, measured points with intervals, and what is under the pointer.
import { el, short, svg } from "./dom.js";

const PAD = { left: 46, right: 10, top: 8, bottom: 34 };

function ticks(low, high, wanted, whole) {
  const rough = (high - low) / Math.max(wanted, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const nice = power * ((whole && power < 10 ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).find((m) => m * power >= rough) ?? 10), step = whole ? Math.max(1, nice) : nice;
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) out.push(i * step);
  return out;
}

/** Ticks of a logarithmic axis: 1, 2 and 5 of each power of ten, or fewer where these are many. */
function decades([low, high], height) {
  const wide = Math.log10(high / low), out = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    for (const m of wide > 2 ? [1] : [1, 2, 5]) if (m * 10 ** power >= low && m * 10 ** power <= high) out.push(m * 10 ** power);
  return out.length > 1 ? out : ticks(low, high, height / 45);
}

function range(values, fallback) {
  let low = Infinity, high = -Infinity;
  for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
  if (low > high) return fallback;
  if (low === high) return [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  return [low, high];
}

/**
 * Draws a diagram.
 * lines: [{label, color, dash, points: [[x, y]], dots: only points, shift: px, bars: [[x, low, high]]}]; options: {unit, share, floor, whole, log, dashed: [{y, color}], x, zoom}; zoom([from, to]) is called after a drag, [null, null] after a double click.
 */
export function chart(lines, width, height, options) {
  const shown = lines.filter((line) => line.points.length);
  const xs = range(shown.flatMap((l) => l.points.map((p) => p[0])), [0, 1]);
  let ys = range(shown.flatMap((l) => [...l.points.map((p) => p[1]), ...(l.bars ?? []).flatMap((b) => [b[1], b[2]])]), [0, 1]);
  const logged = options.log && ys[0] > 0;
  if (logged) ys = [ys[0] / 1.1, ys[1] * 1.1];
  else if (options.unit) ys = [0, 1];
  else if (options.share) ys = [0, Math.min(1, Math.max(...shown.flatMap((l) => l.points.map((p) => p[1]))) * 1.08 || 1)];
  else if (options.floor != null && ys[0] < options.floor) ys = [options.floor, Math.max(ys[1], options.floor + 1) + 0.1];
  else ys = [ys[0] - (ys[1] - ys[0]) * 0.04, ys[1] + (ys[1] - ys[0]) * 0.04];
  const X = (x) => PAD.left + ((x - xs[0]) / (xs[1] - xs[0])) * (width - PAD.left - PAD.right);
  const scale = logged ? Math.log10 : (y) => y, low = scale(ys[0]), high = scale(ys[1]);
  const Y = (y) => height - PAD.bottom - ((scale(y) - low) / (high - low)) * (height - PAD.top - PAD.bottom);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": options.title });
  for (const y of logged ? decades(ys, height) : ticks(ys[0], ys[1], Math.max(4, height / 45))) {
    root.append(svg("line", { class: "grid", x1: PAD.left, x2: width - PAD.right, y1: Y(y), y2: Y(y) }),
      svg("text", { class: "tick", x: PAD.left - 6, y: Y(y) + 4, "text-anchor": "end" }, short(y)));
  }
  for (const x of ticks(xs[0], xs[1], Math.max(3, width / 80), options.whole))
    root.append(svg("text", { class: "tick", x: X(x), y: height - 18, "text-anchor": "middle" }, short(x)));
  root.append(svg("text", { class: "tick", x: (PAD.left + width - PAD.right) / 2, y: height - 5, "text-anchor": "middle" }, options.x));
  for (const { y, color } of options.dashed ?? [])
    root.append(svg("line", { class: "dashed", stroke: color, x1: PAD.left, x2: width - PAD.right, y1: Y(y), y2: Y(y) }));
  // What lies below the floor is cut off at the edge of an inner picture.
  const edge = PAD.top - 5, inner = height - PAD.bottom - edge + 5;
  const plot = svg("svg", { x: 0, y: edge, width, height: inner, viewBox: `0 ${edge} ${width} ${inner}` });
  root.append(plot);
  for (const line of shown) {
    const at = (x) => X(x) + (line.shift ?? 0);  // runs that were measured at one place stand beside each other
    for (const [x, low, high] of line.bars ?? [])
      plot.append(svg("line", { stroke: line.color, "stroke-width": 1.5, x1: at(x), x2: at(x), y1: Y(low), y2: Y(high) }));
    if (!line.dots && line.points.length > 1)
      plot.append(svg("path", { class: "line", stroke: line.color, "stroke-dasharray": line.dash,
        d: "M" + line.points.map(([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`).join("L") }));
    if (line.dots || line.points.length <= 30)
      for (const [x, y] of line.points)
        plot.append(svg("circle", { fill: line.color, r: line.dots ? 3.5 : 1.8, cx: at(x), cy: Y(y) }));
  }
  return pointed(root, shown, { X, Y, xs, width, height, x: options.x, zoom: options.zoom });
}

/** Shows the values nearest to the pointer. */
function pointed(root, lines, { X, Y, xs, width, height, x: unit, zoom }) {
  const rule = svg("line", { class: "rule", y1: PAD.top, y2: height - PAD.bottom, visibility: "hidden" });
  const dots = svg("g");
  root.append(rule, dots);
  const readout = el("div", { class: "readout", hidden: true });
  const box = el("div", { class: "chart" }, root, readout);
  const all = [...new Set(lines.flatMap((l) => l.points.map((p) => p[0])))];
  const leave = () => { rule.setAttribute("visibility", "hidden"); dots.replaceChildren(); readout.hidden = true; };
  root.addEventListener("pointermove", (event) => {
    if (!all.length) return;
    const bounds = root.getBoundingClientRect();
    const at = ((event.clientX - bounds.left) * width) / bounds.width;
    const x = all.reduce((best, each) => (Math.abs(X(each) - at) < Math.abs(X(best) - at) ? each : best));
    rule.setAttribute("x1", X(x)); rule.setAttribute("x2", X(x)); rule.setAttribute("visibility", "visible");
    const here = lines.map((line) => [line, line.points.find((p) => p[0] === x)]).filter(([, point]) => point);
    dots.replaceChildren(...here.map(([l, p]) => svg("circle", { fill: l.color, r: 3, cx: X(p[0]), cy: Y(p[1]) })));
    readout.replaceChildren(el("b", {}, `${unit} ${short(x)}`), ...here.map(([line, point]) => {
      const bar = line.bars?.find((b) => b[0] === x);
      return el("div", {}, el("i", { style: { background: line.color } }), `${line.label} `, el("b", {}, short(point[1])),
        bar ? ` [${short(bar[1])}, ${short(bar[2])}]` : "");
    }));
    readout.hidden = false;
    const left = X(x) > width / 2;
    readout.style.left = left ? "auto" : `${(X(x) / width) * 100}%`;
    readout.style.right = left ? `${(1 - X(x) / width) * 100}%` : "auto";
  });
  root.addEventListener("pointerleave", leave);
  const value = (event) => {
    const bounds = root.getBoundingClientRect(), at = ((event.clientX - bounds.left) * width) / bounds.width;
    const share = (at - PAD.left) / (width - PAD.left - PAD.right);
    return +(xs[0] + Math.min(1, Math.max(0, share)) * (xs[1] - xs[0])).toPrecision(4);
  };
  let from = null;
  root.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") from = [value(event), event.clientX]; });
  root.addEventListener("pointerup", (event) => {
    const start = from;
    from = null;
    if (start && Math.abs(event.clientX - start[1]) > 8) zoom([start[0], value(event)].sort((a, b) => a - b));
  });
  root.addEventListener("dblclick", () => zoom([null, null]));
  return box;
}
