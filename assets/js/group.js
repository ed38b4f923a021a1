// A group: one row per completion, read from left to right: completion → reward → advantage → effect.
// One unbroken line, the mean, runs through all rows; each advantage is drawn as the distance from it.

import { drawBar, makeBar, scaleOf } from "./axis.js";
import { el, fill, keyed, say, set } from "./dom.js";
import { count, direction, fixed, reward, signed } from "./format.js";
import { spans } from "./text.js";

const EFFECT = { up: "pushed up", down: "pushed down", none: "no signal" };

/** Makes a group view. `onPoint(index)` hears which completion is under the pointer or has the focus. */
export function makeGroup({ onPoint = () => {}, cards = false } = {}) {
  const head = el("div.head"), rows = el("div.rows"), line = el("i.mean-line", { "aria-hidden": "true" });
  const meanLabel = el("span.mean-label");
  const body = el("div.body", {}, rows, el("div.overlay", { "aria-hidden": "true" }, line));
  const node = el("section.group", { "aria-label": "Completions" }, head, body);
  const self = { node, view: null, pointed: null, open: new Set(), order: [] };

  const point = (index) => {
    if (self.pointed === index) return;
    self.pointed = index;
    for (const row of rows.children) row.classList.toggle("pointed", Number(row.dataset.completion) === index);
    onPoint(index);
  };
  const toggle = (row) => {
    const index = Number(row.dataset.completion);
    self.open.has(index) ? self.open.delete(index) : self.open.add(index);
    point(index);
    self.show(self.view);
  };
  let at = "";
  rows.addEventListener("pointerover", (event) => {
    const moved = `${event.screenX} ${event.screenY}` !== at; // rows that slide under a resting pointer are not pointed at
    at = `${event.screenX} ${event.screenY}`;
    if (moved) pointRow(event.target);
  });
  rows.addEventListener("pointermove", (event) => (at = `${event.screenX} ${event.screenY}`));
  rows.addEventListener("focusin", (event) => pointRow(event.target));
  rows.addEventListener("click", (event) => {
    const row = event.target.closest("article");
    if (row && !event.target.closest("button") && !String(getSelection())) toggle(row);
  });
  rows.addEventListener("keydown", (event) => keyOn(event, toggle));
  const pointRow = (target) => {
    const row = target.closest("article");
    if (row) point(Number(row.dataset.completion));
  };

  /** Draws a view: {key, functions, completions, mean, std, verdict, trained, writing, limit}. */
  self.show = (view) => {
    if (view.key !== self.view?.key) start(view);
    const settled = !view.writing;
    if (settled && self.view?.writing && view.key === self.view.key) start(view); // scored: sort once, now
    self.view = view = { ...view, functions: inForce(view) };
    if (self.order.length !== view.completions.length) self.order = sorted(view);
    const scale = scaleOf(view.completions.map((c) => c.reward), view.functions);
    node.style.setProperty("--parts", view.functions.length);
    set(node, { "data-writing": view.writing ? "" : null, "data-verdict": view.verdict });
    drawHead(head, meanLabel, view, scale);
    const known = view.mean !== null && !view.writing;
    set(line, { style: { left: known ? `${scale.at(view.mean)}%` : "0%" }, hidden: !known });
    const byIndex = new Map(view.completions.map((c) => [c.index, c]));
    keyed(rows, self.order.map((index) => byIndex.get(index)), (c) => c.index, () => makeRow(),
      (row, c) => drawRow(row, c, view, scale, self));
    rows.classList.toggle("grow", view.grow === true);
  };
  const start = (view) => {
    const best = sorted(view)[0];
    self.order = [];
    self.open = new Set(view.openFirst && best !== undefined ? [best] : []);
    self.pointed = null;
    if (!view.writing && best !== undefined) {
      self.pointed = best;
      queueMicrotask(() => onPoint(best));
    }
  };
  self.setCards = (on) => node.classList.toggle("cards", on);
  self.setCards(cards);
  return self;
}

function sorted(view) {
  const indices = view.completions.map((c) => c.index);
  if (view.writing) return indices;
  const worth = new Map(view.completions.map((c) => [c.index, c.reward ?? -Infinity]));
  return indices.sort((a, b) => worth.get(b) - worth.get(a) || a - b);
}

function keyOn(event, toggle) {
  const row = event.target.closest("article");
  if (!row || event.target !== row) {
    if (event.key === "Escape" && row) row.focus();
    return;
  }
  const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  if (step) row[step]?.focus();
  else if (event.key === "Enter" || event.key === " ") toggle(row);
  else if (event.key === "Escape" && row.getAttribute("aria-expanded") === "true") toggle(row);
  else return;
  event.preventDefault();
}

function drawHead(head, meanLabel, view, scale) {
  const key = JSON.stringify([view.functions, scale.low, scale.high, view.trained, view.writing]);
  if (head.dataset.key !== key) {
    head.dataset.key = key;
    fill(head,
      el("div.h-text", {}, el("b", {}, "Completion"), el("small", {}, view.writing ? "in the order they were started" : "best first")),
      view.functions.map((f, i) => el(`div.h-part${i === 0 ? ".first" : ""}`, {}, i === 0 ? el("b", {}, el("i.arrow"), "Reward") : "",
        el("span", { title: f.name }, f.name), el("small", {}, f.counts ? `× ${weight(f.counts)}` : "–"))),
      el("div.h-reward", {}, el("span", {}, "reward"), el("small", {}, "sum")),
      el("div.h-axis", {}, el("b", {}, el("i.arrow"), "Advantage"),
        el("div.ends", {}, el("small.low", {}, reward(scale.low)), meanLabel, el("small.high", {}, reward(scale.high)))),
      el("div.h-adv", {}, el("span", {}, "advantage"), el("small", {}, "÷ std")),
      el("div.h-effect", {}, el("b", {}, el("i.arrow"), "Effect"),
        el("span", {}, view.trained ? "what the step did" : "if a step were taken")),
    );
  }
  const known = view.mean !== null && !view.writing;
  say(meanLabel, known ? `mean ${fixed(view.mean, 3)}` : "");
  set(meanLabel, { style: { "--share": known ? scale.at(view.mean) : 0 }, hidden: !known });
}

function weight(value) {
  return Number(value.toFixed(3)).toString().replace("-", "\u2212");
}

function makeRow() {
  return el("article.row", { tabindex: 0 },
    el("span.id"), el("div.text"), el("div.parts"), el("span.reward"), makeBar(), el("span.adv"), el("span.effect"),
      el("div.more", { hidden: true }));
}

function drawRow(row, c, view, scale, self) {
  const open = self.open.has(c.index), way = direction(c.advantage), writing = view.writing && !c.scored;
  const [id, text, parts, total, axis, adv, effect, more] = row.children;
  set(row, { "data-completion": c.index, "data-reward": c.reward ?? "", "data-advantage": c.advantage ?? "", "aria-expanded": String(open),
    "data-way": writing ? "writing" : way, "aria-label": spoken(c, view, way, writing) });
  row.classList.toggle("pointed", self.pointed === c.index);
  say(id, String(c.index + 1));
  drawText(text, c, open, writing);
  drawParts(parts, c, view, writing);
  say(total, writing ? (c.ended ? "" : count(c.tokens, "token")) : c.reward === null ? "no score" : reward(c.reward));
  drawBar(axis, scale, writing ? null : c.reward, view.mean, c.advantage);
  say(adv, writing || c.advantage === null ? "" : signed(c.advantage));
  say(effect, writing || c.advantage === null ? "" : (view.trained || way === "none" ? "" : "will be ") + EFFECT[way]);
  more.hidden = !open;
  if (open) drawMore(more, c, view);
}

function spoken(c, view, way, writing) {
  if (writing) return `Completion ${c.index + 1}, ${count(c.tokens, "token")} so far`;
  const advantage = signed(c.advantage).replace("+", "plus ").replace("\u2212", "minus ");
  if (c.finished === null || view.stopped) return `Completion ${c.index + 1}, cancelled, not scored`;
  const worth = c.reward === null ? "not applicable" : reward(c.reward);
  return `Completion ${c.index + 1}, reward ${worth}, advantage ${advantage}, ${EFFECT[way]}`;
}

function drawText(text, c, open, writing) {
  const key = JSON.stringify([c.text, open, writing, c.ended, c.finished]);
  if (text.dataset.key === key) return;
  text.dataset.key = key;
  const isCut = !writing && c.finished === false;
  const cut = isCut ? el("span.chip.note", { title: "It reached the token limit before the model ended it." }, "cut off") : null;
  const empty = c.text === "" && !writing ? el("span.tag", {}, "(empty)") : null;
  fill(text, cut, spans(c.text, { oneLine: !open }), empty, writing && !c.ended ? el("i.cursor") : null);
}

function drawParts(parts, c, view, writing) {
  keyed(parts, view.functions, (f) => f.name, () => el("span.part"), (node, f) => {
    const value = c.rewards?.[f.name];
    say(node, writing ? "" : reward(value ?? null));
    set(node, { "data-function": f.name, title: value === null || value === undefined ? `${f.name} is not applicable here` : null });
    node.classList.toggle("zero", value === 0 || value === null || value === undefined);
  });
}

function drawMore(more, c, view) {
  const scored = (c.reward ?? null) !== null;
  const sum = scored ? view.functions.filter((f) => f.counts).map((f) => part(c, f)).join(" + ") : "";
  const silent = view.functions.filter((f) => !f.applies).map((f) => f.name).join(" and ");
  const key = JSON.stringify([c.tokens, c.finished, sum, c.reward, silent, view.stopped]);
  if (more.dataset.key === key) return;
  more.dataset.key = key;
  const copied = el("span.copied", { role: "status" });
  const copy = el("button", { type: "button",
    onclick: () => navigator.clipboard.writeText(c.text).then(() => say(copied, "copied")) }, "Copy");
  fill(more,
    c.finished === null ? el("p", {}, "cancelled before it ended, not scored")
      : view.stopped ? el("p", {}, "ended by itself, cancelled before it was scored")
      : el("p", {}, el("b", {}, count(c.tokens, "token")), c.finished === false ? `, cut off${view.limit ? ` at ${view.limit}` : ""}`
      : ", ended by itself"),
    el("p.actions", {}, copy, copied),
    sum ? el("p.sum", {}, `${sum} = `, el("b", {}, reward(c.reward))) : c.finished === null || view.stopped ? null : el("p.sum", {}, "No reward function applies to this completion."),
    sum && silent ? el("p.sum", {}, `${silent} cannot be judged here, for lack of an answer or column: its weight goes to the others.`) : "");
}

/** One function's share of a completion's total; a completion that alone lacks it counts as the group's mean. */
function part(c, f) {
  const value = c.rewards?.[f.name] ?? null;
  return `${value === null ? `group's mean ${reward(f.mean)}` : reward(value)} × ${weight(f.counts)}`;
}

/** The weights as they count in this group, as in rewards/scoring.py: a function that applies to nobody leaves its to the others. */
function inForce({ functions, completions }) {
  const found = functions.map((f) => {
    const values = completions.map((c) => c.rewards?.[f.name] ?? null).filter((value) => value !== null);
    return { ...f, applies: values.length > 0, mean: values.reduce((sum, value) => sum + value, 0) / values.length };
  });
  const total = (list) => list.reduce((sum, f) => sum + Math.abs(f.weight), 0);
  const left = total(found) / total(found.filter((f) => f.applies));
  const known = Number.isFinite(left); // while writing no function has spoken yet
  return found.map((f) => ({ ...f, applies: f.applies || !known, counts: known ? (f.applies ? f.weight * left : 0) : f.weight }));
}
