// A run that goes: the settings that can be changed now, and what was changed at which step. Also as marks for the curves.

import * as api from "./api.js";
import { el, fill, keyed, say, set, whenThere } from "./dom.js";
import * as poll from "./poll.js";
import * as runs from "./runs.js";

const REST = 3000; // milliseconds between two looks while steps arrive: another page may have changed something
let known = empty(), asked = 0, parts = null, sending = false;
const listeners = [];

/** Listens to changes that were not known before. */
export function onChange(listener) {
  listeners.push(listener);
}

/** Per step with changes: {step, words}. */
export function marks() {
  const steps = [...new Set(known.changes.map((change) => change.step))];
  return steps.map((step) => ({ step, words: known.changes.filter((change) => change.step === step).map(words).join(", ") }));
}

const words = (change) => `${change.what} ${fromTo(change)}`;
const fromTo = ({ before, after }) => `${before || "none"} to ${after || "none"}`;

export function mount() {
  whenThere("lab-changes", (place) => {
    parts = makeParts();
    fill(place, parts.form, parts.list);
    draw();
  });
  poll.on("run", () => ((known = empty()), tell(), look()));
  poll.on("steps", () => Date.now() - asked > REST && look());
  poll.on("live", draw);
}

async function look() {
  const run = poll.state.run;
  asked = Date.now();
  if (!run) return;
  try {
    const answer = await api.get(`api/runs/${encodeURIComponent(run.id)}/changes`);
    if (answer.run !== poll.state.run?.id) return;
    const news = JSON.stringify(answer.changes) !== JSON.stringify(known.changes);
    known = answer;
    draw();
    if (news) tell();
  } catch (error) {
    if (error.status === undefined) throw error;
  }
}

const tell = () => listeners.forEach((listener) => listener());

function empty() {
  return { run: null, settings: [], changes: [], resumes: [] };
}

function makeParts() {
  const rows = el("div.now-groups"), refused = el("p.refused", { role: "alert", hidden: true });
  const send = el("button.small", { type: "submit", hidden: true }, "Change from the next step");
  const form = el("form.now-settings", { "aria-label": "Settings you can change now", hidden: true, novalidate: true, autocomplete: "off",
    onsubmit: (event) => (event.preventDefault(), change()), oninput: () => drawSend(), onkeydown: (event) => {
      if (event.key === "Escape") undo(event.target);
    } },
  el("b", {}, "Settings you can change now"), rows, refused, send,
  el("p.note", {}, "Each change marks the curves and saves a checkpoint first. Group size, prompts and model wait for the next run, or for a branch."));
  const entries = el("dl.entries"), resumes = el("div"), list = el("section.made-changes", { "aria-label": "Changes", hidden: true },
    el("b", {}, "Changes"), entries, resumes);
  return { form, rows, refused, send, list, entries, resumes };
}

function draw() {
  if (!parts) return;
  set(parts.form, { hidden: !runs.isAlive() || !known.settings.length });
  keyed(parts.rows, groups(), (group) => group.name, makeSettings, drawSettings);
  drawSend();
  set(parts.list, { hidden: !known.changes.length && !known.resumes.length });
  fill(parts.resumes, known.resumes.map(({ step, words }) => el("p.note", {}, `Resumed after step ${step}. ${words}`)));
  const newestFirst = known.changes.map((change, i) => ({ ...change, id: `${change.step} ${change.key} ${i}` })).reverse();
  keyed(parts.entries, newestFirst, (change) => change.id, () => el("div", {}, el("dt"), el("dd")), (row, change) => {
    say(row.children[0], `step ${change.step}, ${change.what}`);
    say(row.children[1], fromTo(change));
  });
}

/** The settings in their groups, in the order they came. */
function groups() {
  const names = [...new Set(known.settings.map((setting) => setting.group))];
  return names.map((name) => ({ name, settings: known.settings.filter((setting) => setting.group === name) }));
}

/** What is changed most lies open; the other groups open on request. */
function makeSettings({ name }) {
  const rows = el("div.now-rows");
  return name ? el("details", {}, el("summary", {}, name), rows) : el("div", {}, rows);
}

function drawSettings(box, { settings }) {
  keyed(box.querySelector(".now-rows"), settings, (setting) => setting.key, makeRow, drawRow);
}

function makeRow(setting) {
  return el(`label${setting.name === "rewards" ? ".wide" : ""}`, { title: setting.help }, el("span.what"), el("small"),
    el("input", { type: "text", inputmode: setting.name === "rewards" ? null : "decimal", placeholder: "none",
      "data-setting": setting.key }));
}

function drawRow(row, setting) {
  const [what, hint, input] = row.children;
  say(what, setting.label);
  set(input, { "aria-label": `${setting.label} from the next step` });
  say(hint, hintOf(setting));
  if (!isTouched(input)) input.value = input.dataset.now = setting.value;
}

/** What it was before; of the learning rate, what a schedule makes of it. */
function hintOf(setting) {
  const rate = setting.name === "learning_rate" ? poll.newest("learning_rate") : null;
  if (rate !== null && Math.abs(rate - Number(setting.value)) > 0.01 * rate) return `now ${rate.toExponential(1)}`;
  return setting.before === null ? "" : `was ${setting.before || "none"}`;
}

const isTouched = (input) => input.dataset.now !== undefined && input.value !== input.dataset.now;
const inputs = () => [...parts.rows.querySelectorAll("input")];

function drawSend() {
  const touched = inputs().some(isTouched);
  set(parts.send, { hidden: !touched, "aria-disabled": sending ? "true" : null });
  if (!touched) set(parts.refused, { hidden: true });
}

function undo(input) {
  input.value = input.dataset.now;
  drawSend();
}

async function change() {
  const touched = inputs().filter(isTouched);
  if (sending || !touched.length) return;
  sending = true;
  set(parts.refused, { hidden: true });
  drawSend();
  try {
    await runs.change(wanted());
    touched.forEach((input) => (input.dataset.now = input.value)); // what comes back may be written otherwise: 0.002 as 2e-3
    await look();
  } catch (error) {
    say(parts.refused, api.said(error));
    set(parts.refused, { hidden: false });
  } finally {
    sending = false;
    drawSend();
  }
}

/** The settings that differ; weights go together, as they are one setting. */
function wanted() {
  const settings = {};
  inputs().forEach((input, i) => {
    const { name } = known.settings[i];
    if (!isTouched(input)) return;
    settings[name] = name === "reward_weights" ? weights() : input.value;
  });
  return settings;
}

const weights = () => inputs().filter((_, i) => known.settings[i].name === "reward_weights").map((input) => input.value);
