// The two forms: what they hold, kept over a reload, and alike where both have the same setting.
// Gradio owns the fields. Each form has hidden buttons that hand all its values to this page (tell), or put values of this
// page's into its fields (take: the settings both forms have; restore: all of them).

import * as api from "./api.js";
import { whenThere } from "./dom.js";
import * as tabs from "./tabs.js";

const SIDES = ["lab", "train"], KEY = "lab-forms", KNOCK = 100, SETTLE = 2000, PAUSE = 120; // milliseconds
const SHARED = ["system_prompt", "model", "task", "num_generations", "temperature", "max_completion_length", "seed", "rewards",
  "reward_weights"];
const forms = Object.fromEntries(SIDES.map((side) => [side, { known: null, kept: {}, out: null, way: null, settling: 0, timer: null, waiting: [] }]));
const other = { lab: "train", train: "lab" };
const listeners = [];

/** Listens to a form that holds something else: (side, values). */
export function onChange(listener) {
  listeners.push(listener);
}

export function mount() {
  const kept = read();
  for (const side of SIDES) {
    forms[side].kept = kept[side] ?? {};
    whenThere(`${side}-tell`, () => knock(side));
  }
}

/** What the form holds now. The Train form is built when its tab is first opened: it is opened then. */
export async function values(side) {
  const form = forms[side];
  if (form.known === null) {
    tabs.choose(side);
    await new Promise((done) => form.waiting.push(done));
  }
  while (form.timer !== null || Date.now() < form.settling) await new Promise((done) => setTimeout(done, KNOCK / 2));
  const { preset, ...settings } = form.known;
  return settings;
}

/** What it held when it was last heard; before it is built, what the other form would give it. */
export function lastKnown(side) {
  return forms[side].known ?? { ...forms[side].kept };
}

/** Gradio calls this with all fields of a form: after any of them changed, and when asked. */
export function told(side, names, given) {
  const form = forms[side], next = Object.fromEntries(names.map((name, i) => [name, given[i]]));
  if (form.known === null) return begin(side, next);
  if (Date.now() < form.settling) { // what was put in arrives field by field
    if (!same(next, form.known)) return;
    form.settling = 0;
  }
  const changed = names.filter((name) => !same(next[name], form.known[name]));
  form.known = next;
  if (!changed.length) return;
  share(side, changed);
  if (side === "lab" && changed.includes("model")) suit(next.model);
  heard(side);
}

/** Gradio calls this for the values to put into fields. */
export function given(side, names) {
  return names.map((name) => forms[side].out[name]);
}

/** The first word of a form: what was typed before a reload, or in the other form, goes into it. */
function begin(side, first) {
  const form = forms[side];
  const kept = Object.fromEntries(Object.entries(form.kept).filter(([name]) => name in first));
  form.known = first;
  if (!same({ ...first, ...kept }, first)) put(side, { ...first, ...kept }, "restore");
  form.waiting.splice(0).forEach((done) => done());
  heard(side);
}

/** The settings that both forms have follow the one that was touched last. */
function share(side, changed) {
  const now = forms[side].known, shared = changed.filter((name) => SHARED.includes(name));
  if (shared.length) give(other[side], Object.fromEntries(shared.map((name) => [name, now[name]])), "take");
}

/** Another model brings the settings with which it is known to learn. */
async function suit(model) {
  const asked = new URLSearchParams({ model: model ?? "", task: "" });
  const name = (await api.get(`api/examples?${asked}`).catch(() => ({}))).preset;
  const found = name && (await api.get("api/presets").catch(() => ({ presets: [] }))).presets.find((each) => each.name === name);
  if (!found || forms.lab.known.model !== model) return;
  const lab = forms.lab.known, shared = Object.fromEntries(SHARED.map((each) => [each, lab[each]]));
  give("train", { ...found.form, preset: name, ...shared }, "restore");
}

function give(side, settings, way) {
  const form = forms[side];
  if (form.known === null) form.kept = { ...form.kept, ...settings };
  else if (!same({ ...form.known, ...settings }, form.known)) put(side, { ...form.known, ...settings }, way);
  keep();
}

/** Into the fields, a moment later: many keys make one update. */
function put(side, settings, way) {
  const form = forms[side];
  form.known = form.out = settings;
  form.settling = Date.now() + SETTLE;
  if (form.way !== "restore") form.way = way;
  form.timer ??= setTimeout(flush, PAUSE, side);
  heard(side);
}

function flush(side) {
  const form = forms[side], way = form.way;
  form.timer = form.way = null;
  press(`${side}-${way}`);
}

function heard(side) {
  keep();
  listeners.forEach((listener) => listener(side, forms[side].known));
}

/** Gradio shows a button some time before it answers to it. */
function knock(side) {
  if (forms[side].known !== null) return;
  press(`${side}-tell`);
  setTimeout(knock, KNOCK, side);
}

function press(id) {
  (document.querySelector(`button#${id}`) ?? document.querySelector(`#${id} button`))?.click();
}

function keep() {
  const all = Object.fromEntries(SIDES.map((side) => [side, lastKnown(side)]));
  try {
    sessionStorage.setItem(KEY, JSON.stringify(all));
  } catch { /* storage may be full or forbidden: then a reload starts afresh */ }
}

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY)) ?? {};
  } catch {
    return {};
  }
}

function same(a, b) {
  if (a === null || b === null || typeof a !== "object" || typeof b !== "object") return a === b;
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((name) => same(a[name], b[name]));
}
