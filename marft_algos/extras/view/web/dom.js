// Elements, questions to the server, and how numbers and strangers' text are shown. Text only ever becomes text nodes.

export const COLORS = Array.from({ length: 8 }, (_, i) => `var(--c${i})`);
export const color = (i) => COLORS[i % COLORS.length];

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, inner] of Object.entries(value)) node.style.setProperty(key, inner);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null && child !== false && child !== ""));
  return node;
}

export const el = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

/** Asks the server; throws an Error with its words. */
export async function ask(name, query = {}) {
  let reply;
  try {
    reply = await fetch(`api/${name}?${new URLSearchParams(query)}`);
  } catch {
    throw new Error("marft view has ended: start it again, and open the address that it prints.");
  }
  const body = reply.headers.get("content-type")?.startsWith("application/json") ? await reply.json() : {};
  if (!reply.ok) throw new Error(body.error ?? `The server said ${reply.status}.`);
  return body;
}

// What moves or hides other characters (controls, zero width, bidirectional overrides) is shown as its code point.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]|\p{Cs}/gu;
export const visible = (text) =>
  String(text ?? "").replace(HIDDEN, (c) => `⟨${c.codePointAt(0).toString(16).padStart(4, "0")}⟩`);

export const signed = (x) => (x == null ? "?" : (x < 0 ? "−" : "+") + short(+Math.abs(x).toPrecision(3)));

/** A number in few characters. */
export function short(x) {
  if (x == null || !Number.isFinite(x)) return "?";
  const size = Math.abs(x);
  if (size >= 1e9) return x.toExponential(0);
  if (size >= 1e6) return `${+(x / 1e6).toFixed(1)}M`;
  if (size >= 1e4) return `${+(x / 1e3).toFixed(1)}k`;
  if (size && size < 1e-3) return x.toExponential(1);
  return String(+x.toPrecision(4));
}

export const count = (n) => n.toLocaleString("en");
export const MARKS = { solved: "✓", failed: "✗", unjudged: "·", error: "!", damaged: "?" };

/** What a file of episodes is called: `eval-000020` is "evaluation, iteration 20". */
export function fileName(file) {
  const match = /^(eval|train)-(\d+)$/.exec(file);
  if (!match) return file;
  if (match[1] === "eval" && +match[2] === 0) return "untrained";
  return `${match[1] === "eval" ? "evaluation" : "training"}, iteration ${+match[2]}`;
}

export const failure = (error) => el("p", { class: "error", role: "alert" }, visible(error.message));
