// What stands in the way, if anything: lost contact, a fallen engine, a failed, interrupted or waiting run. Each says what is
// so, why, what is kept, and what to press.

import * as api from "./api.js";
import { el, fill, say, set, whenThere } from "./dom.js";
import { duration } from "./format.js";
import * as poll from "./poll.js";
import * as runs from "./runs.js";
import * as tabs from "./tabs.js";

const places = [];
let problem = null, ticking = null;

export function mount() {
  for (const id of ["lab-notice-lab", "lab-notice-train", "lab-notice-data", "lab-notice-reward"]) {
    whenThere(id, (place) => {
      fill(place, el("div.notices"));
      places.push(place.firstChild);
      draw();
    });
  }
  ["live", "contact", "run"].forEach((name) => poll.on(name, draw));
  runs.onProblem((sentence) => ((problem = sentence), draw()));
}

function draw() {
  const notices = [lost(), engine(), run(), asked()].filter(Boolean);
  const key = JSON.stringify(notices.map((notice) => notice.key));
  for (const place of places) {
    if (place.dataset.key === key) continue;
    place.dataset.key = key;
    fill(place, notices.map(makeNotice));
  }
  clearInterval(ticking);
  if (poll.state.contact === "lost") ticking = setInterval(countDown, 500);
  countDown();
}

function lost() {
  if (poll.state.contact !== "lost") return null;
  const step = poll.state.run?.step;
  const seen = step ? ` What you see is from step ${step}, ${clock(poll.state.heard)}.` : "";
  return {
    key: ["lost", step], kind: "lost", name: "lost", title: ["No answer from the lab. ", el("span.countdown")],
    why: `The run does not need this page and most likely goes on.${seen} Buttons are off until the lab answers.`,
    buttons: [{ label: "Try now", act: poll.nudge }],
  };
}

function engine() {
  const { engine, contact } = poll.state, loading = engine.info?.loading;
  if (contact === "lost") return null;
  if (engine.state === "dead") {
    return {
      key: ["dead", engine.sentence], kind: "bad", name: "engine", title: "The engine has stopped", why: engine.sentence,
      keeps: "Everything up to the last step is kept. It starts again by itself in a moment.",
      buttons: [{ label: "Restart engine", act: runs.restartEngine, filled: true }], details: engine.traceback ?? engine.error,
    };
  }
  if (engine.other_version) {
    return { key: ["version"], name: "version", title: "The engine is from another version of the lab",
      why: "It was started before this page and goes on with its work. It is exchanged as soon as it has nothing to do; restarting it now "
        + "saves the run, which can then be resumed.", buttons: [{ label: "Restart engine", act: runs.restartEngine }] };
  }
  if (engine.state === "stale") return { key: ["stale"], name: "engine", title: "The engine is silent", why: engine.sentence };
  if (loading) {
    const share = typeof loading.share === "number" ? `${Math.round(100 * loading.share)} %` : "";
    const why = [loading.text, share].filter(Boolean).join(" · ") || "Reading the weights.";
    return { key: ["loading", loading.model, why], name: "loading", title: `Loading ${loading.model}`, why };
  }
  if (engine.state !== "starting") return null;
  return { key: ["starting"], name: "starting", title: "The engine is starting",
    why: "It loads torch and the model. Recorded runs can be read meanwhile." };
}

function run() {
  const { run, contact } = poll.state;
  if (!run || contact === "lost" || run.kind === "recorded") return null;
  const notice = about(run);
  return notice && { key: ["run", run.id, run.status, run.attempt, run.error, run.step], ...notice };
}

function about(run) {
  const resume = { label: "Resume", act: () => runs.resume(run.id), filled: true };
  const kept = run.step ? `The steps up to ${run.step} stay readable.` : "No step was done yet.";
  if (run.status === "failed") {
    return { kind: "bad", name: "failed", title: `Stopped at step ${run.step}: the run failed`, why: run.error, keeps: kept,
      buttons: [resume], details: () => traceback(run.id) };
  }
  if (run.status === "interrupted") {
    return { kind: "bad", name: "interrupted", title: `Interrupted at step ${run.step}`, why: run.error, keeps: kept, buttons: [resume] };
  }
  if (run.status === "stopped" && run.step < (run.max_steps ?? 0)) {
    return { name: "stopped", title: `Stopped and saved at step ${run.step}`, buttons: [resume],
      why: run.error ?? `${run.name} can go on from here, or Train starts a new run.` };
  }
  if (run.status === "paused" && run.error && !run.error.startsWith("Waiting for scores")) { // those have a panel of their own
    return { kind: "bad", name: "waiting", title: `Paused at step ${run.step}: a reward could not be given`, why: run.error,
      keeps: "The completions are kept: Train scores the same ones again. A function of yours is kept with the run as it was: freeze the "
        + "mended one in Reward, and choose it in Train under Reward functions.",
      buttons: [{ label: "Open Reward", act: () => tabs.choose("reward") }] };
  }
  return null;
}

/** What the person asked for last and did not get. */
function asked() {
  if (problem === null) return null;
  return { key: ["problem", problem], kind: "bad", name: "problem", title: "That did not work", why: problem,
    buttons: [{ label: "Close", act: () => runs.report(null) }] };
}

function makeNotice({ kind = "", name, title, why, keeps, buttons = [], details = null }) {
  const trace = el("pre", { hidden: true });
  const more = details && el("button.link", { type: "button", "aria-expanded": "false", onclick: async () => {
    if (trace.hidden) say(trace, (typeof details === "function" ? await details() : details) ?? "Nothing more is known.");
    trace.hidden = !trace.hidden;
    set(more, { "aria-expanded": String(!trace.hidden) });
  } }, "Details");
  const acts = buttons.map(({ label, act, filled }) =>
    el(`button.${filled ? "filled" : "small"}`, { type: "button", onclick: () => act() }, label));
  const words = [el("h3", {}, title), why ? el("p", {}, why) : null, keeps ? el("p", {}, keeps) : null];
  return el(`section.notice${kind && `.${kind}`}`, { "data-notice": name, role: ["bad", "lost"].includes(kind) ? "alert" : null },
    el("div.words", {}, words), el("div.acts", {}, acts, more), trace);
}

async function traceback(id) {
  return (await api.get(`api/runs/${encodeURIComponent(id)}`).catch(() => ({}))).traceback;
}

function countDown() {
  const left = (poll.state.retryAt ?? 0) - Date.now();
  for (const node of document.querySelectorAll(".countdown")) say(node,
    left > 0 ? `Trying again in ${duration(left / 1000)}.` : "Trying now.");
}

function clock(time) {
  return time ? new Date(time).toLocaleTimeString() : "";
}
