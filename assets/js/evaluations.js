// Base beside tuned on held-out prompts: a row and a figure per evaluated step, open down to the prompts and completions.
// Works for a run that goes, is paused or is over: the engine answers between two events of whatever else it does.

import * as api from "./api.js";
import { loadPlotly } from "./curves.js";
import { makeAnswers } from "./answers.js";
import { el, fill, say, set, whenThere } from "./dom.js";
import { NONE, fixed, signed } from "./format.js";
import * as poll from "./poll.js";
import * as runs from "./runs.js";
import * as theme from "./theme.js";

const REST = 3000; // milliseconds between two looks while steps arrive
const CONFIG = { displayModeBar: false, showSendToCloud: false, responsive: true };
let known = empty(), parts = null, seen = "", looked = 0, waiting = null, opened = null;

export function mount() {
  whenThere("lab-evaluations", (place) => {
    parts = makeParts();
    fill(place, parts.panel);
    draw();
    look();
  });
  poll.on("run", () => ((known = empty()), (opened = null), parts && parts.answers.hide(), draw(), look()));
  poll.on("live", follow);
  theme.onChange(look);
}

function empty() {
  return { run: null, rows: [], ks: [], failed: [], figure: null, settings: {} };
}

function makeParts() {
  const size = (name, label) => el("input", { type: "text", inputmode: "numeric", "aria-label": label, "data-setting": name,
    onkeydown: (event) => event.key === "Enter" && evaluate() });
  const prompts = size("eval_prompts", "Held-out prompts to answer"), samples = size("eval_samples", "Samples per prompt");
  const act = el("button.small", { type: "button", onclick: () => evaluate() }, "Evaluate now");
  const bar = el("i"), share = el("span"), track = el("div.track", { role: "progressbar", "aria-label": "Held-out prompts answered",
    "aria-valuemin": 0, "aria-valuemax": 100 }, bar);
  const stop = el("button.small", { type: "button", onclick: () => cancel() }, "Cancel");
  const going = el("div.going", { hidden: true }, track, share, stop);
  const ask = el("div.ask", {}, prompts, el("span", {}, "prompts ×"), samples, el("span", {}, "samples"), act);
  const note = el("p.note"), body = el("div.table"), plot = el("div.plot");
  const figure = el("figure", { "data-metric": "eval_accuracy", "data-step": "", "data-value": "", tabindex: 0 }, plot);
  const both = el("div.both", { hidden: true }, body, figure), answers = makeAnswers();
  const panel = el("section.evaluations.panel", { "aria-label": "Evaluations" },
    el("header", {}, el("b", {}, "Held-out prompts"), el("span.quiet", {}, "base beside tuned"), going, ask), note, both, answers.node);
  return { panel, prompts, samples, act, ask, going, stop, bar, share, track, note, body, both, figure, plot, answers };
}

/** Is something new to be fetched, and how far is an evaluation that was asked for? */
function follow() {
  const run = poll.state.run, open = asked();
  if (waiting && !open) over(waiting);
  waiting = open?.id ?? null;
  const now = `${run?.id} ${run?.status} ${run?.attempt}`;
  const more = known.settings.eval_steps > 0 && known.step !== run?.step && Date.now() - looked > REST;
  if (run && (now !== seen || more)) {
    seen = now;
    look();
  }
  draw();
}

/** The person's own evaluation of this run that waits or is being made. */
function asked() {
  return poll.state.queue.find((command) => command.mine && command.kind === "evaluate" && command.run === poll.state.run?.id);
}

async function over(command) {
  const answer = await api.get(`api/commands/${command}`).catch(() => ({}));
  if (answer.status === "failed") runs.report(answer.error ?? "The evaluation failed.");
  await look();
}

async function look() {
  const run = poll.state.run;
  looked = Date.now();
  if (!run || !parts) return;
  try {
    const answer = await api.get(`api/runs/${encodeURIComponent(run.id)}/evaluations?theme=${theme.current()}`);
    if (answer.run !== poll.state.run?.id) return;
    if (known.run !== answer.run) prefill(answer.settings);
    known = answer;
    draw();
    drawFigure();
  } catch (error) {
    if (error.status === undefined) throw error;
  }
}

function prefill(settings) {
  parts.prompts.value = settings.eval_prompts ?? "";
  parts.samples.value = settings.eval_samples ?? "";
}

function draw() {
  if (!parts) return;
  const run = poll.state.run, open = asked(), own = run && run.kind !== "recorded";
  set(parts.panel, { hidden: !run || (!own && !known.rows.length) });
  set(parts.ask, { hidden: !own || Boolean(open) });
  const why = possible();
  set(parts.act, { "aria-disabled": why === true ? null : "true", title: why === true ? null : why });
  drawProgress(open);
  say(parts.note, noteOf(own));
  set(parts.both, { hidden: !known.rows.length });
  if (known.rows.length) drawTable();
}

function noteOf(own) {
  const failed = known.failed.at(-1);
  const mended = known.rows.some((row) => row.adapter === "tuned" && row.step >= failed?.step);
  if (failed && !mended) return `The evaluation at step ${failed.step} failed, and the training went on: ${failed.message} Evaluate now tries it again.`;
  return known.rows.length || !own ? "" : "Not evaluated yet. The base and the tuned model answer the same prompts, which training "
    + "never sees: once greedily, and as often as you say by chance.";
}

function possible() {
  const { run, contact, engine } = poll.state;
  if (contact === "lost") return "Off until the lab answers.";
  if (engine.state === "dead") return "The engine has stopped.";
  return run?.step ? true : "Train a step first.";
}

/** Of an evaluation that was asked for, or of one that the run makes by itself between two steps. */
function drawProgress(open) {
  const own = runs.isAlive() && poll.state.engine.info?.evaluating, mine = own?.run === poll.state.run?.id ? own : null;
  set(parts.going, { hidden: !open && !mine });
  set(parts.stop, { hidden: !open });
  if (!open && mine) {
    set(parts.track, { "aria-valuenow": Math.round(100 * mine.share) });
    set(parts.bar, { style: { width: `${Math.round(100 * mine.share)}%` } });
    return say(parts.share, "the run answers held-out prompts");
  }
  if (!open) return;
  const percent = Math.round(100 * (open.result?.share ?? 0));
  set(parts.track, { "aria-valuenow": percent });
  set(parts.bar, { style: { width: `${percent}%` } });
  say(parts.share, open.status === "queued" || open.result?.share === undefined ? "waiting for its turn" : `${percent} % answered`);
}

/** One row per step, base → tuned in every cell. */
function drawTable() {
  const ks = known.ks;
  const steps = [...new Set(known.rows.map((row) => row.step))].reverse();
  const key = JSON.stringify([known.rows, opened]);
  if (parts.body.dataset.drawn === key) return;
  parts.body.dataset.drawn = key;
  const focused = document.activeElement?.closest?.("tr")?.dataset.step;
  const head = ["step", "greedy accuracy", "gain", ...ks.map((k) => `pass@${k}`), "prompts × samples"];
  fill(parts.body, el("table", {}, el("caption", {}, "Base → tuned: shares of the held-out prompts. Dotted in the figure: the base."),
    el("thead", {}, el("tr", {}, head.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, steps.map((step) => drawStep(step, ks)))));
  if (focused) parts.body.querySelector(`tr[data-step="${focused}"] button`)?.focus({ preventScroll: true });
}

function drawStep(step, ks) {
  const tuned = known.rows.find((row) => row.step === step && row.adapter === "tuned"), base = baseOf(step, tuned), some = tuned ?? base;
  const pair = (of) => el("td", {}, el("span.quiet", {}, base ? fixed(of(base) ?? null, 3) : NONE), tuned ? " → " : "",
    tuned ? el("b", {}, fixed(of(tuned) ?? null, 3)) : null);
  const gain = base && tuned && base.accuracy !== null && tuned.accuracy !== null ? signed(tuned.accuracy - base.accuracy) : NONE;
  return el("tr", { "data-step": step, "data-accuracy": tuned?.accuracy ?? "", "data-base": base?.accuracy ?? "" },
    el("th", { scope: "row" }, el("span.step", {}, tuned ? String(step) : "base"),
      el("button.link", { type: "button", "aria-expanded": String(opened === step), onclick: () => open(step) },
        opened === step ? "Close" : "Open", el("span.spoken", {}, ` step ${step}`))), pair((row) => row.accuracy), el("td", {}, gain),
    ks.map((k) => pair((row) => row.pass[k])),
    el("td.quiet", { title: `${some.prompts} prompts, once greedily and ${some.samples} times by chance` },
      `${some.prompts} × ${some.samples}`));
}

/** The base's own evaluation at this step, or one that answered as much. */
function baseOf(step, tuned) {
  const bases = known.rows.filter((row) => row.adapter === "base");
  return bases.find((row) => row.step === step)
    ?? bases.findLast((row) => row.prompts === tuned.prompts && row.samples === tuned.samples);
}

function open(step) {
  opened = opened === step ? null : step;
  drawTable();
  if (opened === null) parts.answers.hide();
  else parts.answers.show(known.run, step);
}

async function drawFigure() {
  const tuned = known.rows.findLast((row) => row.adapter === "tuned") ?? known.rows.at(-1);
  if (!tuned) return;
  set(parts.figure, { "data-step": tuned.step, "data-value": tuned.accuracy ?? "",
    "aria-label": `Greedy accuracy on held-out prompts: ${fixed(tuned.accuracy, 3)} at step ${tuned.step}` });
  await loadPlotly();
  const layout = structuredClone(known.figure.layout);
  await window.Plotly.react(parts.plot, structuredClone(known.figure.data), layout, CONFIG);
}

/** Base and tuned answer now; what was typed holds for this evaluation. */
async function evaluate() {
  if (possible() !== true || asked()) return;
  const config = Object.fromEntries([parts.prompts, parts.samples].map((input) => [input.dataset.setting, input.value]));
  await runs.send("evaluate", { config });
}

async function cancel() {
  const open = asked();
  if (open) await runs.cancelCommand(open.id);
}
