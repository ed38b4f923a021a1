// The Lab tab: which group is under the glass, and the panels around it.

import * as api from "./api.js";
import { draw as drawArithmetic, statistics } from "./arithmetic.js";
import { makeCompare } from "./compare.js";
import { el, fill, icon, say, set, whenThere } from "./dom.js";
import { count, signed, useOf } from "./format.js";
import { makeGroup } from "./group.js";
import * as poll from "./poll.js";
import * as sample from "./sample.js";
import * as tabs from "./tabs.js";
import { makeTied } from "./tied.js";
import * as url from "./url.js";

let view = null, group = null, parts = null, pointed = null, shownKey = null, summaryStep = null, arithmeticOpen = true;

export function mount() {
  whenThere("lab-group", (place) => whenThere("lab-arithmetic", (below) => {
    group = makeGroup({ onPoint: (index) => ((pointed = index), drawSide()), cards: localStorage.getItem("lab-layout") === "cards" });
    parts = makeParts();
    fill(place, el("div.glass-head", {}, parts.title, parts.summary, parts.tools), parts.frame);
    parts.frame.append(group.node, parts.empty);
    fill(below, parts.arithmetic, parts.compare.node, parts.tied.node, parts.key);
    ["live", "run"].forEach((name) => poll.on(name, refresh));
    sample.onChange(refresh);
    refresh();
  }));
}

/** Shows a group of a recorded or trained step, as chosen in Train. */
export function open(run, step, index) {
  sample.forget();
  url.write({ tab: "lab", run, step, group: index, sample: null });
  tabs.choose("lab");
  refresh();
}

function makeParts() {
  const compact = layoutButton("compact", "Compact"), cards = layoutButton("cards", "Cards");
  const base = el("button", { type: "button", "data-adapter": "base", onclick: () => chooseAdapter("base") }, "Base");
  const tuned = el("button", { type: "button", "data-adapter": "tuned", onclick: () => chooseAdapter("tuned") }, "Tuned");
  const stop = el("button.small.only-narrow", { type: "button", hidden: true, onclick: () => sample.cancel() }, icon("stop"), "Cancel");
  return {
    title: el("h2"), summary: el("div.summary"), frame: el("div.frame"), empty: emptyState(), stop, base, tuned, compact, cards,
    tools: el("div.glass-tools", {}, stop, el("span.quiet", {}, "sample with"),
      el("div.segment", { role: "group", "aria-label": "Sample with" }, base, tuned),
      el("div.segment", { role: "group", "aria-label": "Layout" }, compact, cards)),
    arithmetic: el("section.arithmetic.panel", { "aria-label": "The arithmetic", hidden: true }),
    compare: makeCompare(),
    tied: makeTied(),
    key: makeKey(),
  };
}

async function refresh() {
  if (!parts) return;
  drawTools();
  const wanted = choose();
  if (wanted.key !== shownKey || wanted.live) {
    const next = await wanted.load();
    if (next === null) return;
    shownKey = wanted.key;
    show(next);
  } else if (view?.trained && newestStep() !== summaryStep) drawSummary();
}

/** What the address and the last sample ask for. */
function choose() {
  const asked = url.read(), run = poll.state.run;
  const current = sample.current();
  if (current) return { key: `sample ${current.rollout} ${current.state}`, live: current.state === "writing",
    load: () => sample.view(current) };
  if (asked.sample) return { key: `sample ${asked.sample}`, load: () => sample.fetch(Number(asked.sample)) };
  if (!run || !poll.hasSteps(run)) return { key: "empty", load: async () => ({ empty: true }) };
  const isRead = poll.state.steps.run === run.id;
  if (run.kind === "recorded" && !asked.step && !isRead) return { key: "reading", load: async () => null }; // where it learned is not known yet
  const step = Number(asked.step) || startStep(run), index = asked.group === null ? null : Number(asked.group);
  // while a run goes on, what is under the glass stays: a button says that a newer step is there
  const key = shownKey?.startsWith(`run ${run.id} `) && !asked.step ? shownKey : `run ${run.id} ${step} ${index}`;
  return { key, load: () => loadStep(run, step, index, key) };
}

/** A recording opens where it has begun to learn and completions still differ; a run of one's own at its newest step. */
function startStep(run) {
  if (run.kind !== "recorded") return run.step;
  const place = poll.series("reward", "smooth").findIndex((value) => value >= 0.4);
  return place < 0 ? run.step : poll.state.steps.rows[place][0];
}

/** The group in which the rewards differ most; the first such. */
function liveliest(groups) {
  const kinds = (group) => new Set(group.completions.map((c) => c.reward)).size;
  return [...groups].sort((a, b) => kinds(b) - kinds(a) || (b.std ?? 0) - (a.std ?? 0) || a.index - b.index)[0];
}

async function loadStep(run, step, index, key) {
  try {
    const answer = await api.get(`api/runs/${encodeURIComponent(run.id)}/steps/${step}/groups`);
    const found = answer.groups.find((each) => each.index === index) ?? liveliest(answer.groups);
    if (!found) return { empty: true };
    const from = run.kind === "recorded" ? (run.info?.label ?? "").replace("Recorded: ", "") : null;
    const where = [from, useOf(answer)].filter(Boolean).join(" · ");
    return { ...found, key, step, batch: answer.groups, functions: answer.functions, trained: true, openFirst: true,
      recorded: run.kind === "recorded", label: `${run.name}, step ${step}`, where };
  } catch (error) {
    if (error.status === undefined) throw error;
    return null;
  }
}

function show(next) {
  view = next;
  set(parts.empty, { hidden: !view.empty });
  set(group.node, { hidden: view.empty === true });
  parts.frame.classList.toggle("recorded", view.recorded === true);
  if (view.empty) {
    sayWhyEmpty(view);
    fill(parts.title, view.prompt || "Lab");
    fill(parts.summary);
    [parts.arithmetic, parts.compare.node, parts.tied.node].forEach((node) => set(node, { hidden: true }));
    return;
  }
  fill(parts.title, view.prompt);
  set(parts.title, { title: view.prompt });
  drawSummary();
  group.show(view);
  drawSide();
}

function drawSummary() {
  const done = view.completions.filter((c) => (view.writing ? c.ended : true)).length, all = view.completions.length;
  const chips = [];
  if (view.recorded) chips.push(el("span.chip.recorded", {}, "recorded"));
  if (view.writing) {
    const tokens = view.completions.reduce((sum, c) => sum + c.tokens, 0);
    chips.push(el("span", {}, `${done} of ${all} done, ${count(tokens, "token")}`));
  } else {
    const right = view.completions.filter((c) => c.rewards?.accuracy === 1).length;
    const judged = view.completions.some((c) => (c.rewards?.accuracy ?? null) !== null);
    const cut = view.completions.filter((c) => c.finished === false).length;
    chips.push(el("span", {}, [count(all, "completion"), judged ? `${right} right` : null,
      view.answer ? `answer ${view.answer}` : null].filter(Boolean).join(" · ")));
    if (cut) chips.push(el("span.chip.note", {}, `${cut} cut off`));
    if (view.verdict) chips.push(el("span.chip.dead", { title: DEAD[view.verdict] }, el("i.hatch"), `dead group: ${view.verdict}`));
    if (view.stopped) chips.push(el("span.chip", {}, view.stopped));
  }
  const source = [view.label, view.where].filter(Boolean).join(" · ");
  chips.push(el("span.quiet", { title: source }, source));
  const newest = (summaryStep = newestStep());
  if (view.trained && view.step < newest && !view.recorded) chips.push(el("button.small", { type: "button", onclick: toNewest },
    `Step ${newest} is there`));
  fill(parts.summary, chips);
}

export const DEAD = {
  "all right": "Every completion is right, so none is better than another. Take a harder prompt.",
  "all wrong": "No completion is right, so none is better than another. Take an easier prompt, or a larger group.",
  "not scored": "No reward function applies to any of them, so there is nothing to compare. Take one that fits the task, or rows with answers.",
  "all equal": "All rewards are equal, so none is better than another. Give the rewards something finer to tell apart.",
};

const newestStep = () => poll.state.run?.step ?? 0;

function toNewest() {
  url.write({ step: null, group: null });
  shownKey = null;
  refresh();
}

function drawSide() {
  const scored = view && !view.empty && !view.writing ? view.completions.filter((c) => c.reward !== null) : [];
  const chosen = scored.find((c) => c.index === pointed) ?? scored[0];
  set(parts.arithmetic, { hidden: !chosen || scored.length < 2 });
  set(parts.key, { hidden: view?.empty || view?.writing });
  [parts.tied.node, parts.compare.node].forEach((node) => set(node, { hidden: !chosen || scored.length < 2 }));
  if (!chosen || scored.length < 2) return;
  parts.tied.show(scored);
  parts.compare.show(view, group.order, view.trained ? poll.state.run?.way : null);
  const ordered = group.order.map((index) => scored.find((c) => c.index === index)).filter(Boolean);
  const settings = { rewards: ordered.map((c) => c.reward), place: ordered.indexOf(chosen), name: `#${chosen.index + 1}`,
    tokens: chosen.tokens, lengths: ordered.map((c) => c.tokens), trained: view.trained };
  const toggle = () => ((arithmeticOpen = !arithmeticOpen), drawSide());
  if (arithmeticOpen) {
    const dead = view.verdict ? el("span.dead-why", {}, DEAD[view.verdict]) : null;
    const own = ownAdvantage(chosen, ordered.map((c) => c.reward), ordered.indexOf(chosen));
    drawArithmetic(parts.arithmetic, { ...settings, onClose: toggle, children: [own, dead] });
  } else {
    fill(parts.arithmetic, el("header", {}, el("b", {}, "The arithmetic"), el("button.link", { type: "button", onclick: toggle }, "Open")));
  }
}

/** A run under another rule, or with a critic, has learned from another number than the panel works out. */
function ownAdvantage(chosen, rewards, place) {
  if (!view.trained || chosen.advantage === null || view.verdict) return null;
  if (Math.abs(statistics(rewards).advantages[place] - chosen.advantage) < 2e-3) return null;
  const way = poll.state.run?.way ?? {};
  const why = way.algorithm === "ppo" ? "PPO: from the critic's values, token by token, here their mean"
    : `rule ${way.advantage_rule}, scale ${way.scale_rewards}, ${way.multi_objective_aggregation}`;
  return el("span.own-way", {}, "This run learned from ", el("b", {}, signed(chosen.advantage)), ` (${why}).`);
}

function drawTools() {
  const run = poll.state.run, choice = sample.adapter();
  const usable = run && run.kind !== "recorded" && run.step > 0;
  say(parts.tuned, usable ? `Tuned, step ${run.step}` : "Tuned");
  set(parts.tuned, { "aria-disabled": usable ? null : "true",
    title: usable ? null : "Train a step first: then its adapter can write the completions." });
  set(parts.base, { "aria-pressed": String(choice === "base" || !usable) });
  set(parts.tuned, { "aria-pressed": String(choice !== "base" && Boolean(usable)) });
  set(parts.stop, { hidden: sample.current()?.state !== "writing" });
}

function chooseAdapter(choice) {
  if (parts.tuned.getAttribute("aria-disabled") && choice === "tuned") return;
  sample.chooseAdapter(choice);
  drawTools();
}

function layoutButton(name, label) {
  const now = () => localStorage.getItem("lab-layout") ?? "compact";
  const button = el("button", { type: "button", "data-layout": name, "aria-pressed": String(now() === name), onclick: () => {
    localStorage.setItem("lab-layout", name);
    group.setCards(name === "cards");
    [parts.compact, parts.cards].forEach((each) => set(each, { "aria-pressed": String(each.dataset.layout === name) }));
  } }, label);
  return button;
}

function emptyState() {
  const ghost = [0.55, 0.35, 0.45, 0.3].map((width) => el("div.ghost", {}, el("i", { style: { width: `${100 * width}%` } }),
    el("i"), el("i")));
  return el("section.state", { hidden: true }, el("h2"), el("p"), ghost,
    el("button.filled", { type: "button", onclick: () => sample.press() }, icon("play"), "Sample"));
}

/** No sample was asked for yet, or one came to nothing: then why, for the notice above is gone after a reload. */
function sayWhyEmpty({ ended, why }) {
  say(parts.empty.querySelector("h2"), !ended ? "No group yet" : ended === "cancelled" ? "Cancelled before anything was written" : "Nothing was sampled");
  say(parts.empty.querySelector("p"), why ?? "Sample writes a group of completions to your prompt, scores them and works out their advantages.");
}

function makeKey() {
  return el("p.key", {}, el("span", {}, el("i.swatch.up"), el("i.tri.up"), " above the mean: pushed up"),
    el("span", {}, el("i.swatch.down"), el("i.tri.down"), " below: pushed down"),
    el("span", {}, el("i.swatch.none"), " at the mean: no signal"), el("span", {}, el("i.ring.demo"), " reward"),
      el("span", {}, el("i.mean-demo"), " group mean"),
    el("span.right", {}, "ring = reward, bar = distance from the mean, number = distance ÷ std"));
}
