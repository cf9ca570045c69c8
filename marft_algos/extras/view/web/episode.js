// One episode, or two beside each other: each agent's prompts and replies, token by token, tool results and rewards.
import { dependence } from "./dependence.js";
import { color, el, fileName, MARKS, short, signed, visible } from "./dom.js";

const MODES = { advantages: "advantage", logprobs: "log-prob", values: "value", "": "none" };
const NAMED = { status: "judged", tier: "compared by" };
let mode = "advantages";

/** Shows what `api/episode` has answered, one or two of them; `choose(place)` is called with what is to stand beside. */
export function compared(answers, sources, choose) {
  const [first, second] = answers;
  const name = (p) => `${sources[p.source].name} · ${fileName(p.file)}${p.file === first.place.file && p.source === first.place.source ? `, line ${p.line}` : ""}`;
  const place = (p) => `${p.source}:${p.file}:${p.line}`;
  const options = first.others.map((p) => el("option", { value: place(p), selected: second && place(second.place) === place(p) },
    `${MARKS[p.outcome]} ${visible(name(p))}`));
  const beside = el("label", {}, "compare with ", el("select", { name: "beside", disabled: !options.length, onchange: (e) => choose(e.target.value || null) },
    el("option", { value: "" }, options.length ? "no other episode" : "no other episode of this task"), options));
  const box = el("div", { class: answers.length > 1 ? "pair" : "" });
  const tokens = answers.some((a) => a.episode.turns.some((t) => t.extras?.pieces));
  const colored = tokens && el("label", {}, "colour tokens by ", el("select", { name: "tokens", onchange: (e) => { mode = e.target.value; fill(); } },
    Object.entries(MODES).map(([key, text]) => el("option", { value: key, selected: key === mode }, text))));
  const fill = () => box.replaceChildren(...answers.map((a, i) =>
    whole(a, `${sources[a.place.source].name} · ${fileName(a.place.file)}, line ${a.place.line}`, answers[1 - i]?.episode)));
  fill();
  return el("div", {}, el("div", { class: "tools" }, beside, colored), box);
}

function whole({ episode }, title, other) {
  const agents = new Map(episode.agents.map((agent, i) => [agent.name, i]));
  const state = episode.outcome;
  const ends = [`score ${short(episode.team_return)}`, episode.seed == null ? "" : `seed ${episode.seed}`, ["task", "max_rounds"].includes(episode.stop_reason) ? "" : episode.stop_reason,
    typeof episode.info.blame === "string" && `to blame: ${episode.info.blame}`, episode.fault && `fault: ${episode.fault}`, episode.invalid && `${episode.invalid} invalid routes`].filter(Boolean);
  const turns = [];
  let prompt = null;
  for (const layer of episode.layers) {
    if (episode.layers.length > 1 || layer.team_reward) turns.push(rewards(layer, episode));
    for (const index of layer.turns) {
      turns.push(turn(episode.turns[index], episode, agents, other, prompt));
      prompt = episode.turns[index].extras?.observation ?? prompt;
    }
  }
  return el("article", { class: `episode ${state}` },
    el("header", {}, el("h2", {}, el("b", {}, MARKS[state]), " ", visible(episode.task_id || "episode")),
      el("p", { class: "note" }, visible(title)), el("p", { class: "note" }, visible(ends.join(" · ")))),
    facts(episode), dependence(episode, color, (index) => turns.flat(3).find((t) => t.dataset?.turn === String(index))?.scrollIntoView({ block: "center", behavior: "smooth" })),
    profiles(episode), turns);
}

function facts(episode) {
  const known = Object.entries(episode.info), measured = Object.entries(episode.metrics);
  const flat = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));
  const plain = known.filter(([, v]) => flat(v) && flat(v).length <= 60), long = known.filter(([, v]) => flat(v).length > 60);
  const table = (rows) => el("dl", {}, rows.map(([k, v]) => [el("dt", {}, visible(k)), el("dd", {}, visible(typeof v === "number" ? short(v) : flat(v)))]));
  return [plain.length > 0 && el("p", { class: "chips" }, plain.map(([k, v]) => el("span", {}, `${visible(NAMED[k] ?? k)} `, el("b", {}, visible(flat(v)))))),
    (measured.length > 0 || long.length > 0) && el("details", {}, el("summary", {}, "state and metrics"), table([...long, ...measured]))];
}

function profiles(episode) {
  const shown = episode.agents.filter((agent) => agent.prompt || agent.examples?.length);
  return shown.length > 0 && el("details", {}, el("summary", {}, "profiles"), shown.map((agent) => el("div", {}, el("b", {}, visible(agent.name)),
    el("pre", {}, visible(agent.prompt)), agent.examples?.length ? el("p", { class: "note" }, `and ${agent.examples.length} worked examples`) : "")));
}

const ordinal = (i) => ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"][i] ?? `${i + 1}th`;

function rewards(layer, episode) {
  const late = Object.entries(layer.late_rewards ?? {}).map(([i, r]) => `${signed(r)} late, to turn ${i}`);
  const each = Object.entries(layer.agent_rewards ?? {}).map(([agent, r]) => `${agent} ${signed(r)}`);
  const words = [layer.team_reward ? `team reward ${signed(layer.team_reward)}` : "", ...each, ...late].filter(Boolean).join(" · ");
  return el("p", { class: "layer" }, `${ordinal(layer.round)} round, ${ordinal(layer.index)} layer`, words && el("b", {}, ` ${visible(words)}`));
}

function turn(record, episode, agents, other, prompt) {
  const extras = record.extras ?? {}, names = record.sees.map((i) => episode.turns[i].agent);
  const cut = episode.cuts.filter((c) => c.turn === record.index).reduce((sum, c) => sum + c.chars, 0);
  const numbers = [record.reward && `reward ${signed(record.reward)}`, typeof extras.blame === "string" && extras.blame,
    ...["value", "advantage", "return", "logprob"].map((k) => typeof extras[k] === "number" && `${k === "logprob" ? "log-prob" : k} ${signed(extras[k])}`),
    extras.tokens != null && `${extras.tokens} tokens${extras.stop_reason === "length" ? ", truncated" : ""}`, cut && `${cut} characters truncated in its prompt`].filter(Boolean);
  const twin = other?.turns[record.index];
  const same = twin && twin.agent === record.agent && (twin.text === record.text ? "same reply" : "other reply");
  const seen = extras.observation !== undefined && extras.observation !== prompt;
  return el("section", { class: "turn", "data-turn": record.index, style: { "--run": color(agents.get(record.agent) ?? 0) } },
    el("div", { class: "who" }, el("i", {}), el("b", {}, visible(record.agent)), names.length > 0 && el("span", {}, `received from ${visible([...new Set(names)].join(", "))}`),
      same && el("span", { class: same.split(" ")[0] }, same), el("em", {}, visible(numbers.join(" · ")))),
    seen && el("pre", { class: "prompt" }, visible(extras.observation)), words(record, extras),
    record.result && el("div", { class: "result" }, el("span", {}, "result"), el("pre", {}, visible(record.result))));
}

function words(record, extras) {
  const { pieces } = extras, shown = extras[mode];
  const fits = (list) => Array.isArray(list) && Array.isArray(pieces) && list.length === pieces.length;
  if (!mode || !fits(shown)) return el("pre", { class: "said" }, visible(record.text) || el("span", { class: "note" }, "(empty)"));
  const readout = el("div", { class: "note token" }, "\u00a0");
  const largest = Math.max(...shown.map((x) => Math.abs(x ?? 0)), mode === "logprobs" ? 3 : 1e-6);
  const known = ["logprobs", "values", "advantages"].filter((key) => fits(extras[key]));
  const marks = pieces.map((piece, i) => {
    const x = shown[i] ?? 0, text = known.map((key) => `${MODES[key]} ${signed(extras[key][i])}`).join(" · ");
    const kind = mode === "logprobs" ? "doubt" : x < 0 ? "down" : "up";
    const tell = () => { readout.textContent = `${JSON.stringify(visible(piece))}  ${text}`; };
    return el("mark", { class: kind, title: text, style: { "--p": `${Math.round((60 * Math.abs(x)) / largest)}%` }, onpointerover: tell, onclick: tell }, visible(piece));
  });
  return [el("pre", { class: "said" }, marks), readout];
}
