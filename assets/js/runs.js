// Starting and steering a run: what the strip's buttons do, and when each can.

import { LabError, get, post, said } from "./api.js";
import * as forms from "./forms.js";
import * as poll from "./poll.js";
import * as tabs from "./tabs.js";

const ALIVE = ["queued", "loading", "training", "paused"];
const ANSWER_WAITS = [200, 400, 800, 1600, 3200, ...Array(20).fill(6400)]; // milliseconds between looks
const WISHES = { pause: "Pausing", stop: "Stopping" };
const IN_THE_WAY = 409; // what was asked for does not go with what is going on now
let starting = false, problem = null, wish = null, against = null; // against: the state that a refusal was about
const listeners = [];

/** A refusal of a moment is over when what stood in the way is. */
export function mount() {
  poll.on("live", () => problem && against && poll.state.run?.status !== against && report(null));
}

/** Listens to what went wrong with the last thing asked for: a sentence, or null. */
export function onProblem(listener) {
  listeners.push(listener);
}

export function report(sentence, { passes = false } = {}) {
  problem = sentence;
  against = passes ? poll.state.run?.status : null;
  listeners.forEach((listener) => listener(problem));
}

/** Goes on with a paused run; otherwise starts what the Train form says. */
export function train() {
  if (possible().train !== true) return;
  if (poll.state.run?.status === "paused" && isOwn()) return command("resume");
  start(null);
}

/** n steps, then pause. */
export function steps(n) {
  if (possible().step !== true) return;
  if (isAlive()) return command("step", { n });
  if (n > 1 && isOver()) return send("resume_run", { more: n });
  start(n);
}

/** What ten more would do now, in words. */
export function moreHint() {
  const run = poll.state.run;
  return isAlive() ? "Ten more steps, then pause." : isOver() ? `Gives ${run.name} ten steps more than it was planned to have.`
    : "Starts a run that pauses after ten steps.";
}

export async function command(kind, args = {}) {
  if (kind in possible() && possible()[kind] !== true) return;
  wish = kind in WISHES ? { run: poll.state.run.id, word: WISHES[kind] } : null;
  await attempt(() => order(poll.state.run.id, kind, args));
}

/** "Pausing" or "Stopping" from the press of the button to the end of the step in work; otherwise null. */
export function wished() {
  if (poll.state.phase !== "training" || poll.state.run?.id !== wish?.run) wish = null;
  return wish?.word ?? null;
}

export async function resume(run) {
  await attempt(() => order(run, "resume_run"));
}

/** Sends a command whose end one looks for elsewhere, or waits for: a branch answers with its new run. */
export async function send(kind, args) {
  let answer = null;
  await attempt(async () => {
    const { command } = await post(`api/runs/${encodeURIComponent(poll.state.run.id)}/commands`, { kind, args });
    poll.nudge();
    if (kind !== "evaluate") answer = await answered(command);
  });
  return answer;
}

export async function cancelCommand(command) {
  await attempt(() => post(`api/commands/${command}/cancel`));
}

/** Changes settings of the run that goes. A refusal is an error with the sentence. */
export function change(settings) {
  return order(poll.state.run.id, "change", settings);
}

export async function restartEngine() {
  await attempt(() => post("api/engine/restart"));
}

/** The Train form's start button calls this with what it holds. With `steps` the run pauses after so many. */
export async function startWith(config, steps = null) {
  await attempt(async () => {
    const { run } = await post("api/runs", { config, ...(steps && { steps }) });
    poll.show(run);
    tabs.choose("train");
  });
}

/** What Train would do now, in words, for the button's title. */
export function trainHint() {
  if (poll.state.run?.status === "paused" && isOwn()) return `Goes on with ${poll.state.run.name}.`;
  const form = { ...forms.lastKnown("lab"), ...forms.lastKnown("train") };
  if (!form.model) return null;
  const group = form.prompts_per_step ? `${form.prompts_per_step} prompts × ${form.num_generations}` : `groups of ${form.num_generations}`;
  return `Starts ${form.model} on ${form.task}: ${group}, temperature ${form.temperature}, at most ${form.max_completion_length} tokens, `
    + `seed ${form.seed}. The settings are those of the Train form.`;
}

/** For each button: true, or why not. */
export function possible() {
  const { phase, run, contact, engine } = poll.state;
  const off = contact === "lost" ? "Off until the lab answers." : engine.state === "dead" ? "The engine has stopped." : null;
  const alive = isAlive(), status = run?.status;
  const noRun = "No run is going.";
  return {
    train: off ?? (alive && status !== "paused" ? "The run is going already." : true),
    pause: off ?? (!alive ? noRun : status === "paused" ? "The run is paused already." : true),
    step: off ?? (phase === "training" ? "Pause first to go step by step." : status === "loading" || status === "queued"
      ? "The run is about to start." : true),
    more: off ?? (phase === "training" ? "Pause first to ask for ten more." : status === "loading" || status === "queued"
      ? "The run is about to start." : true),
    stop: off ?? (alive ? true : noRun),
  };
}

export function isAlive() {
  return isOwn() && ALIVE.includes(poll.state.run.status);
}

/** A run of the person's own that has done all its steps. */
function isOver() {
  return isOwn() && poll.state.run.status === "finished" && poll.state.run.step > 0;
}

function isOwn() {
  return poll.state.run !== null && poll.state.run.kind !== "recorded";
}

/** Seconds spent in steps so far. Thinned rows stand for the ones left out. */
export function elapsed() {
  const times = poll.series("step_time").filter((time) => time !== null);
  const { rows, cursor } = poll.state.steps;
  if (!times.length) return null;
  const mean = times.reduce((sum, time) => sum + time, 0) / times.length;
  return mean * (cursor - rows[0][0] + 1);
}

/** Estimated seconds to the planned end, from the last five steps. */
export function timeLeft() {
  const times = poll.series("step_time").filter((time) => time !== null).slice(-5);
  const run = poll.state.run;
  if (!times.length || !run?.max_steps) return null;
  return (times.reduce((sum, time) => sum + time, 0) / times.length) * Math.max(0, run.max_steps - run.step);
}

/** Starts what the Train form says; where the Lab form has the same setting, both say what was touched last. */
async function start(steps) {
  if (starting) return;
  starting = true;
  try {
    await startWith(await forms.values("train"), steps);
  } finally {
    starting = false;
  }
}

/** Sends a command, so that a refusal is told. */
async function order(run, kind, args = {}) {
  const { command } = await post(`api/runs/${encodeURIComponent(run)}/commands`, { kind, args });
  poll.nudge();
  await answered(command);
}

/** Waits a moment for the engine's answer to a command. A refusal is an error with the sentence. */
export async function answered(command) {
  for (const wait of ANSWER_WAITS) {
    await new Promise((done) => setTimeout(done, wait));
    const answer = await get(`api/commands/${command}`);
    if (answer.status === "failed") throw new LabError(answer.error ?? `${answer.kind} failed.`, 422);
    if (answer.status === "done") return answer;
  }
}

async function attempt(act) {
  report(null);
  try {
    await act();
  } catch (error) {
    wish = null;
    report(said(error), { passes: error.status === IN_THE_WAY });
  }
  poll.nudge();
}
