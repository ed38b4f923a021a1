// What the Reward tab knows: the source, what came of it, and the weights. Everything that is drawn follows from here.

import * as api from "./api.js";
import * as poll from "./poll.js";
import * as url from "./url.js";
import * as weigh from "./reward_weigh.js";

const WEIGHTS = "lab-reward-weights", OTHERS = "lab-reward-functions";
const listeners = new Map();

export const state = {
  source: "", saved: null, check: null, result: null, busy: false, problem: null, took: 0,
  start: null, // what GET api/rewards said: versions, built-ins, templates, runs, sandbox
  on: { kind: "run" }, typed: { prompt: "What is 69 + 13?", answer: "", text: "" }, against: "previous",
  others: remembered(OTHERS, ["accuracy", "format"]), weights: remembered(WEIGHTS, { mine: 1, accuracy: 0, format: 0 }),
  figures: null, // totals, advantages, … of the result under the weights
};

/** Events: "source" (typed, checked), "result" (scored), "weights", "start" (versions and choices), "busy". */
export function on(event, listener) {
  listeners.set(event, [...(listeners.get(event) ?? []), listener]);
}

export function tell(event) {
  (listeners.get(event) ?? []).forEach((listener) => listener(state));
}

export async function begin() {
  const step = state.on.kind === "run" && state.on.step ? `&step=${state.on.step}` : "";
  const run = state.on.kind === "run" ? (state.on.run ?? ownRun()) : null;
  state.start = await api.get(`api/rewards?kind=${state.on.kind === "typed" ? "last" : state.on.kind}${run ? `&run=${encodeURIComponent(run)}` : ""}${step}`);
  tell("start");
}

/** The run that is looked at, if it has anything to score; before the first answer of the lab, the one the address names. */
export function ownRun() {
  const { run } = poll.state;
  return run ? (run.step ? run.id : null) : url.read().run;
}

export function setWeight(written, value) {
  state.weights[written] = value;
  localStorage.setItem(WEIGHTS, JSON.stringify(state.weights));
  reckon();
  tell("weights");
}

export function setOthers(others) {
  state.others = others;
  localStorage.setItem(OTHERS, JSON.stringify(others));
}

export const weightOf = (written) => state.weights[written] ?? (written === "mine" ? 1 : 0);

/** Totals and everything that follows from them, for the weights as they are. */
export function reckon() {
  const { result } = state;
  if (!result) return;
  const weights = result.functions.map((f) => weightOf(f.written));
  const sizes = result.groups.map((group) => group.completions.length);
  const lengths = result.groups.map((group) => group.completions.map((c) => c.tokens
    || c.text.split(/\s+/).filter(Boolean).length));
  state.figures = { weights, lengths, ...weighed(result.functions, weights, sizes, lengths, result.on.scale_rewards) };
  if (result.against) {
    const others = result.functions.map((f) => (f.written === "mine" ? result.against : f));
    state.figures.was = weighed(others, weights, sizes, lengths, result.on.scale_rewards);
    state.figures.was.values = cut(result.against.values, sizes);
  }
}

function weighed(functions, weights, sizes, lengths, scale) {
  const broken = new Set(functions.flatMap((f, place) => (weights[place] ? failedRows(f) : [])));
  const all = functions[0].values.map((_, row) => (broken.has(row) ? functions.map(() => null)
    : functions.map((f) => f.values[row])));
  const rows = cut(all, sizes), totals = weigh.totalsOf(rows, weights);
  return { totals, ranks: weigh.ranks(totals), shares: weigh.varianceShares(rows, weights),
    total: weigh.describe(totals, lengths),
    advantages: weigh.sumThenNormalize(totals, scale), apart: weigh.normalizeThenSum(rows, weights),
    each: functions.map((f) => weigh.describe(cut(f.values, sizes), lengths)),
    hostile: hostileTotals(functions, weights) };
}

/** Totals of the hostile texts, each by itself: null where a function with a weight broke or gave nothing. */
function hostileTotals(functions, weights) {
  const asked = functions.map((f) => f.hostile);
  const count = Math.max(0, ...asked.map((values) => values?.length ?? 0));
  return Array.from({ length: count }, (_, i) => {
    const broken = functions.some((f, place) => weights[place]
      && (!f.hostile || f.hostile_failures.some((x) => x.rows === null || x.rows.includes(i))));
    return broken ? null : weigh.totalsOf([[asked.map((values) => values?.[i] ?? null)]], weights)[0][0];
  });
}

export function failedRows(f) {
  return f.failures.flatMap((failure) => failure.rows ?? f.values.map((_, row) => row));
}

export function cut(values, sizes) {
  let at = 0;
  return sizes.map((size) => values.slice(at, (at += size)));
}

function remembered(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}
