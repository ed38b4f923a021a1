// Below the curves: the newest step's groups, one line each, how many of their texts differ, and the rows of the chosen one.
// While somebody reads, or where the address names a step, the groups stay as they are and a button says that newer ones are there.

import * as api from "./api.js";
import { drawBar, makeBar, makeDots, scaleOf } from "./axis.js";
import { el, fill, keyed, say, set, whenThere } from "./dom.js";
import { MINUS, count, direction, fixed, reward, signed, useOf } from "./format.js";
import { DEAD, open as openInLab } from "./lab.js";
import * as poll from "./poll.js";
import * as tabs from "./tabs.js";
import { spans } from "./text.js";
import * as url from "./url.js";

const ALIKE = 0.5; // share of different texts at which a step's groups count as grown alike
const ALIKE_MEANS = "Half of the texts or more repeat another of their group. Completions that are alike have nothing left to compare: a "
  + "warning, even if they are right. Harder prompts, a higher temperature or an entropy bonus help.";

const USES = "Completions cost more than updates, so a batch of them may serve several: its rewards stay, the policy's probabilities "
  + "of the same tokens move, and the clip keeps the ratio near 1.";

let shown = null, chosen = null, busy = false, held = 0, parts = null,
  pinned = null; // the step that the address asked for when its run came: it stays until the reader asks for newer ones

export function mount() {
  whenThere("lab-newest", (place) => {
    parts = { title: el("b"), use: el("span.quiet.use", { title: USES }), different: el("span.quiet.different"),
      alike: el("span.chip.note", { hidden: true, title: ALIKE_MEANS }, "growing alike"), newer: el("button.small", { type: "button", hidden: true, onclick: () => follow(true) }),
      list: el("div.lines", { role: "listbox", "aria-label": "Groups of the step" }),
      rows: el("section.rows-of.panel", { "aria-label": "Chosen group" }) };
    const lines = el("section.lines-of.panel", {}, el("header", {}, parts.title, parts.use, parts.different, parts.alike,
      el("span.quiet", {}, "widest spread first"), parts.newer), parts.list);
    parts.list.addEventListener("keydown", walk);
    fill(place, el("div.newest", {}, lines, parts.rows));
    poll.on("live", () => follow(false));
    poll.on("run", () => ((shown = null), (pinned = askedStep()), follow(false)));
    document.addEventListener("click", (event) => event.target.closest?.("[role=tab]") && setTimeout(follow, 0, false));
    pinned = askedStep();
    follow(false);
  });
}

const askedStep = () => Number(url.read().step) || null;

/** Fetches the newest step's groups when Train is looked at and nobody is reading the ones shown. */
async function follow(now) {
  const run = poll.state.run;
  if (!parts || busy || !run || tabs.current() !== "train") return;
  if (!poll.hasSteps(run)) return void (shown === null && drawEmpty());
  if (now) url.write({ step: (pinned = null) });
  const step = pinned ?? run.step;
  if (shown && shown.run === run.id && shown.step === step && shown.attempt === run.attempt) return hold(run.step - shown.step);
  if (shown && shown.run === run.id && !now && isReading()) return hold(step - shown.step);
  busy = true;
  try {
    const answer = await api.get(`api/runs/${encodeURIComponent(run.id)}/steps/${step}/groups`);
    shown = answer;
    held = 0;
    chosen = choose(answer.groups);
    draw();
  } catch (error) {
    if (error.status === undefined) throw error;
    pinned = null; // a step that the run does not have
  } finally {
    busy = false;
  }
}

function isReading() {
  const box = document.querySelector(".newest");
  return box.matches(":hover") || box.contains(document.activeElement);
}

function hold(newer) {
  held = newer;
  set(parts.newer, { hidden: held <= 0 });
  say(parts.newer, `${count(held, "newer step")}`);
}

function choose(groups) {
  const asked = Number(url.read().group);
  if (url.read().group !== null && groups.some((group) => group.index === asked)) return asked;
  return order(groups)[0]?.index ?? null;
}

function order(groups) {
  return [...groups].sort((a, b) => (b.std ?? -1) - (a.std ?? -1) || a.index - b.index);
}

function draw() {
  const groups = order(shown.groups);
  fill(parts.title, shown.step === poll.state.run.step ? `Newest step, ${count(groups.length, "group")}`
    : `Step ${shown.step}, ${count(groups.length, "group")}`);
  say(parts.use, useOf(shown) ?? "");
  set(parts.newer, { hidden: true });
  drawDiversity(groups);
  const scale = scaleOf(groups.flatMap((group) => group.completions.map((c) => c.reward)), shown.functions);
  keyed(parts.list, groups, (group) => group.index, (group) => makeLine(group), (line, group) => drawLine(line, group, scale));
  drawRows(groups.find((group) => group.index === chosen), scale);
}

/** As the metric groups/distinct_completions has it, for groups of one size. */
function drawDiversity(groups) {
  const all = groups.reduce((sum, group) => sum + group.completions.length, 0);
  const different = groups.reduce((sum, group) => sum + new Set(group.completions.map((c) => c.text.trim())).size, 0);
  say(parts.different, `${different} of ${all} texts differ`);
  set(parts.alike, { hidden: different > ALIKE * all });
}

function makeLine(group) {
  return el("div.line", { role: "option", tabindex: 0, onclick: () => pick(group.index), onfocus: () => pick(group.index) });
}

function pick(index) {
  if (chosen === index) return;
  chosen = index;
  url.write({ group: index, step: shown.step === poll.state.run.step ? null : shown.step });
  draw();
}

function drawLine(line, group, scale) {
  const ups = group.completions.filter((c) => direction(c.advantage) === "up").length,
    downs = group.completions.filter((c) => direction(c.advantage) === "down").length;
  set(line, { "data-group": group.index, "aria-selected": String(group.index === chosen), "data-verdict": group.verdict,
    title: group.verdict ? DEAD[group.verdict] : null });
  const key = JSON.stringify([shown.run, shown.step, shown.attempt, scale.low, scale.high]);
  if (line.dataset.drawn === key) return;
  line.dataset.drawn = key;
  fill(line, el("span.prompt", { title: group.prompt }, group.prompt), el("div.values", {}, makeDots(group, scale),
    el("span", {}, "mean ", el("b", {}, fixed(group.mean, 2))), el("span", {}, "std ", el("b", {}, fixed(group.std, 2))),
    group.verdict ? el("span.verdict", {}, el("i.tri.none"), group.verdict)
      : el("span.verdict", {}, el("span.up-text", {}, el("i.tri.up"), String(ups)), " ",
      el("span.down-text", {}, el("i.tri.down"), String(downs)))));
}

function drawRows(group, scale) {
  if (!group) return fill(parts.rows);
  const rows = merged(group);
  const line = el("div.overlay", { "aria-hidden": "true" }, el("div.values", {},
    el("i.mean-line", { style: { left: `${scale.at(group.mean ?? 0)}%` } })));
  fill(parts.rows,
    el("header", {}, el("b.prompt", {}, group.prompt),
      el("span.quiet", {}, `mean ${fixed(group.mean, 3)}, std ${fixed(group.std, 4)}`),
      el("button.link", { type: "button", onclick: () => openInLab(shown.run, shown.step, group.index) }, "Open in Lab")),
    el("div.body", {}, rows.map((row) => drawRow(row, group, scale)), group.verdict ? null : line),
    el("footer", {}, story(group, rows)));
}

/** Completions with the same text and reward stand in one row. */
function merged(group) {
  const found = new Map();
  for (const c of [...group.completions].sort((a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity) || a.index - b.index)) {
    const key = JSON.stringify([c.text, c.reward]);
    if (found.has(key)) found.get(key).n += 1;
    else found.set(key, { ...c, n: 1 });
  }
  return [...found.values()];
}

function drawRow(c, group, scale) {
  const axis = makeBar(), way = direction(c.advantage);
  const name = c.n > 1 ? `${c.n} completions` : `Completion ${c.index + 1}`;
  drawBar(axis, scale, c.reward, group.mean, c.advantage);
  return el("article.row", { "data-completion": c.index, "data-reward": c.reward ?? "", "data-advantage": c.advantage ?? "",
    "data-way": way, "aria-label": `${name}, reward ${reward(c.reward)}, advantage ${signed(c.advantage)}` },
    el("div.what", {}, el("span.id", {}, c.n > 1 ? `${c.n} ×` : `#${c.index + 1}`),
      el("div.text", { title: c.text }, c.finished ? null : el("span.chip.note", {}, "cut off"), spans(c.text, { oneLine: true }))),
    el("div.values", {}, el("span.reward", {}, c.reward === null ? "no score" : reward(c.reward)), axis,
      el("span.adv", {}, el(`i.tri.${way}`), signed(c.advantage))));
}

function story(group, rows) {
  if (group.verdict) return el("p", {}, el("b", {}, `No signal: ${group.verdict}. `), DEAD[group.verdict]);
  const last = rows.findLast((row) => row.reward !== null);
  if (!last || group.mean === null) return el("p", {}, "No reward function applies to this prompt.");
  const quotient = `(${reward(last.reward)} ${MINUS} ${fixed(group.mean, 3)}) / (${fixed(group.std, 4)} + 0.0001)`;
  return el("p", {}, `The lowest gets ${quotient} = `, el(`b.${direction(last.advantage)}-text`, {}, signed(last.advantage)), ".");
}

function drawEmpty() {
  fill(parts.title, "No step yet");
  [parts.use, parts.different].forEach((node) => say(node, ""));
  set(parts.alike, { hidden: true });
  fill(parts.list, el("p.note", {}, "The first step's groups appear here as soon as they are scored and learned from."));
  fill(parts.rows);
}

function walk(event) {
  const line = event.target.closest(".line");
  const next = { ArrowDown: line?.nextElementSibling, ArrowUp: line?.previousElementSibling }[event.key];
  if (!next) return;
  next.focus();
  event.preventDefault();
}
