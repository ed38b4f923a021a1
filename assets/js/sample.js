// Sampling from the Lab tab: asks for a group, shows it while it is written, fetches it when it is scored.

import * as api from "./api.js";
import { el, fill, whenThere } from "./dom.js";
import { count, params } from "./format.js";
import * as poll from "./poll.js";
import * as runs from "./runs.js";
import * as url from "./url.js";

let now = null; // {rollout, command, prompt, size, functions, state: writing | done, result, limit}
let choice = "base";
const listeners = [];

export function onChange(listener) {
  listeners.push(listener);
}

const tell = () => listeners.forEach((listener) => listener());

export const current = () => now;
export const adapter = () => choice;

export function chooseAdapter(name) {
  choice = name;
}

export function forget() {
  now = null;
}

export function mount() {
  poll.on("live", follow);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && document.querySelector("#tab-lab-button[aria-selected=true]")) press();
  });
  whenThere("lab-examples", () => showExamples("tiny", "add2"));
}

export function press() {
  document.querySelector("#lab-sample button, button#lab-sample")?.click();
}

/** The Sample button calls this with what the form holds. */
export async function ask(values) {
  if (now?.state === "writing") return;
  const { prompt, ...config } = values;
  const run = poll.state.run;
  const tuned = choice !== "base" && run && run.kind !== "recorded" && run.step > 0;
  runs.report(null);
  const started = performance.now();
  try {
    const answer = await api.post("api/sample", { prompt, config, adapter: tuned ? run.id : "base" });
    now = { ...answer, prompt, state: "writing", size: Number(config.num_generations), limit: Number(config.max_completion_length), started,
      functions: namesOf(config), tuned: tuned ? run.step : null };
    url.write({ sample: answer.rollout, step: null, group: null });
    mark(true);
    tell();
  } catch (error) {
    runs.report(api.said(error));
  }
  poll.nudge();
}

export async function cancel() {
  if (now?.state !== "writing") return;
  try {
    await api.post(`api/commands/${now.command}/cancel`);
  } catch (error) {
    runs.report(api.said(error));
  }
  poll.nudge();
}

/** After each poll: is the sample still being written? */
async function follow() {
  if (now === null && url.read().sample) return adopt();
  if (now?.state !== "writing") return;
  const open = poll.state.queue.some((command) => command.mine && command.id === now.command);
  if (open) return tell();
  const mine = now;
  const result = await api.get(`api/samples/${mine.rollout}`).catch((error) =>
    (error.status === 0 ? null : { error: error.message, groups: [] }));
  if (result === null || now !== mine) return;
  if (["queued", "sampling"].includes(result.status)) return;
  Object.assign(mine, { state: "done", result });
  poll.state.partials.delete(mine.rollout);
  mark(false);
  if (result.error && result.status !== "cancelled") runs.report(result.error);
  tell();
}

/** A reload or a second tab in the middle of a sample goes on with it. */
function adopt() {
  const rollout = Number(url.read().sample);
  const command = poll.state.queue.find((each) => each.mine && each.kind === "sample" && each.result?.rollout === rollout);
  if (!command) return;
  now = { rollout, command: command.id, prompt: "", state: "writing", size: 0, functions: [], limit: null };
  mark(true);
  tell();
}

function mark(writing) {
  document.body.toggleAttribute("data-sampling", writing);
}

/** The group as it stands: partial texts, or the scored result. */
export async function view(sample) {
  return sample.state === "writing" ? partialView(sample) : resultView(sample.result, true);
}

export async function fetch(rollout) {
  try {
    const result = await api.get(`api/samples/${rollout}`);
    return ["queued", "sampling"].includes(result.status) ? null : resultView(result, false);
  } catch (error) {
    if (error.status !== 404) return null;
    url.write({ sample: null });
    return { empty: true };
  }
}

function partialView(sample) {
  const partials = [...(poll.state.partials.get(sample.rollout)?.values() ?? [])].filter((each) => each.group === 0);
  const size = Math.max(sample.size, ...partials.map((each) => each.index + 1), 0);
  const byIndex = new Map(partials.map((each) => [each.index, each]));
  const completions = Array.from({ length: size }, (_, index) => {
    const found = byIndex.get(index);
    return { index, text: found?.text ?? "", tokens: found?.tokens ?? 0, ended: found?.ended ?? false, rewards: {}, reward: null,
      advantage: null };
  });
  const place = poll.state.queue.findIndex((command) => command.id === sample.command);
  const waiting = place > 0 ? `${count(place, "request")} before yours` : engineIsReady() ? "writing" : "the engine is starting";
  return { key: `sample ${sample.rollout}`, prompt: sample.prompt || partials[0]?.prompt || "", writing: true, completions,
    functions: sample.functions,
    mean: null, std: null, verdict: null, label: waiting };
}

function engineIsReady() {
  const { state, info } = poll.state.engine;
  return state === "running" && info?.phase !== "starting";
}

function resultView(result, fresh) {
  const group = result.groups[0];
  const cancelled = result.status === "cancelled" ? "cancelled" : null;
  if (!group) return { empty: true, ended: cancelled ?? result.status, why: result.error, prompt: result.prompts[0] ?? "" };
  if (cancelled) { // it was not cut off by the token limit, and nothing was scored
    group.completions = group.completions.map((c) => ({ ...c, finished: c.finished || null }));
  }
  const writer = result.adapter === "base" ? "written by the base" : `written by the tuned model, step ${result.adapter_step ?? "?"}`;
  return { ...group, key: `sample ${result.rollout}`, functions: result.functions, trained: false, openFirst: true, grow: fresh,
    label: writer, stopped: cancelled && "cancelled, not scored",
    limit: result.settings.max_completion_length };
}

function namesOf(config) {
  const names = [].concat(config.rewards ?? []).map((name) => name.split("(")[0]);
  const weights = String(config.reward_weights ?? "").split(/[;,]/).map((part) => part.trim()).filter(Boolean).map(Number);
  return names.map((name, i) => ({ name, weight: weights[i] ?? 1 }));
}

/** Chips under the prompt box: prompts that suit model and task. */
export async function showExamples(model, task) {
  const place = document.getElementById("lab-examples");
  if (!place) return;
  const asked = new URLSearchParams({ model: model ?? "", task: task ?? "" });
  const known = await api.get(`api/examples?${asked}`).catch(() => null);
  if (!known) return;
  const chips = known.examples.map((text) => el("button.chip", { type: "button", title: text, onclick: () => typePrompt(text) }, text));
  fill(place, el("div.chips", { role: "group", "aria-label": "Examples" }, chips),
    el("p.note", {}, [params(known.params), known.note].filter(Boolean).join(" · ")));
}

/** Types into Gradio's prompt box as a person would, so that Gradio hears of it. */
function typePrompt(text) {
  const box = document.querySelector("#lab-prompt textarea");
  Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(box, text);
  box.dispatchEvent(new Event("input", { bubbles: true }));
  box.focus();
}

