// What stands in the way, if anything: lost contact, a fallen engine, a failed, interrupted or waiting run. Each says what is
// so, why, what is kept, and what to press.

import * as api from "./api.js";
import { el, fill, say, set, whenThere } from "./dom.js";
import { duration } from "./format.js";
import * as poll from "./poll.js";
import * as runs from "./runs.js";

const places = [];
let problem = null, ticking = null;

export function mount() {
  for (const id of ["lab-notice-lab", "lab-notice-train"]) {
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
  const key = JSON.stringify(notices.map(({ key }) => key));
  for (const place of places) {
    if (place.dataset.key === key) continue;
    place.dataset.key = key;
    fill(place, notices.map((notice) => notice.make()));
  }
  clearInterval(ticking);
  if (poll.state.contact === "lost") ticking = setInterval(countDown, 500);
  countDown();
}

function lost() {
  if (poll.state.contact !== "lost") return null;
  const step = poll.state.run?.step;
  return { key: ["lost", step], make: () => el("section.notice.lost", { role: "alert", "data-notice": "lost" },
    el("div.words", {}, el("h3", {}, "No answer from the lab. ", el("span.countdown")),
      el("p", {}, `The run does not need this page and most likely goes on. ${step ? `What you see is from step ${step}, ${clock(poll.state.heard)}.` : ""} Buttons are off until the lab answers.`)),
    el("div.acts", {}, el("button.small", { type: "button", onclick: () => poll.nudge() }, "Try now"))) };
}

function engine() {
  const { engine, contact } = poll.state;
  if (contact === "lost") return null;
  if (engine.state === "dead") {
    return { key: ["dead", engine.error], make: () => box("bad", "engine", "The engine has stopped", engine.sentence, "Everything up to the last step is kept. It starts again by itself in a moment.",
      [button("Restart engine", () => runs.restartEngine(), true)], engine.traceback ?? engine.error) };
  }
  if (engine.state === "stale") return { key: ["stale"], make: () => box("", "engine", "The engine is silent", engine.sentence, "", [], null) };
  const loading = engine.info?.loading;
  if (loading) {
    const share = loading.share === null || loading.share === undefined ? "" : `${Math.round(100 * loading.share)} %`;
    return { key: ["loading", loading.model, loading.text, share], make: () => box("", "loading", `Loading ${loading.model}`, [loading.text, share].filter(Boolean).join(" · ") || "Reading the weights.", "", [], null) };
  }
  return engine.state === "starting" ? { key: ["starting"], make: () => box("", "starting", "The engine is starting", "It loads torch and the model. Recorded runs can be read meanwhile.", "", [], null) } : null;
}

function run() {
  const { run, contact } = poll.state;
  if (!run || contact === "lost" || run.kind === "recorded") return null;
  const resume = () => button("Resume", () => runs.resume(run.id), true);
  const key = ["run", run.id, run.status, run.attempt, run.error];
  if (run.status === "failed") return { key, make: () => box("bad", "failed", `Stopped at step ${run.step}: the run failed`, run.error, kept(run), [resume()], () => traceback(run.id)) };
  if (run.status === "interrupted") return { key, make: () => box("bad", "interrupted", `Interrupted at step ${run.step}`, run.error, kept(run), [resume()], null) };
  if (run.status === "stopped" && run.step < (run.max_steps ?? 0)) return { key, make: () => box("", "stopped", `Stopped and saved at step ${run.step}`, run.error ?? `${run.name} can go on from here, or Train starts a new run.`, "", [resume()], null) };
  if (run.status === "paused" && run.error) {
    return { key, make: () => box("bad", "waiting", `Paused at step ${run.step}: a reward could not be given`, run.error,
      "The completions are kept. Mend the function or its data, then press Train: the same completions are scored again.", [], null) };
  }
  return null;
}

function kept(run) {
  return run.step ? `Nothing is lost: the steps up to ${run.step} stay readable.` : "No step was done yet.";
}

function asked() {
  return problem === null ? null : { key: ["problem", problem], make: () => box("bad", "problem", "That did not work", problem, "", [button("Close", () => runs.report(null))], null) };
}

function box(kind, name, title, why, keeps, buttons, details) {
  const trace = el("pre", { hidden: true });
  const more = details ? el("button.link", { type: "button", "aria-expanded": "false", onclick: async () => {
    if (trace.hidden) say(trace, (typeof details === "function" ? await details() : details) ?? "Nothing more is known.");
    trace.hidden = !trace.hidden;
    set(more, { "aria-expanded": String(!trace.hidden) });
  } }, "Details") : null;
  return el(`section.notice${kind ? `.${kind}` : ""}`, { "data-notice": name, role: kind === "bad" ? "alert" : null },
    el("div.words", {}, el("h3", {}, title), why ? el("p", {}, why) : null, keeps ? el("p", {}, keeps) : null), el("div.acts", {}, buttons, more), trace);
}

function button(label, act, filled = false) {
  return el(`button.${filled ? "filled" : "small"}`, { type: "button", onclick: act }, label);
}

async function traceback(id) {
  return (await api.get(`api/runs/${encodeURIComponent(id)}`).catch(() => ({}))).traceback;
}

function countDown() {
  const left = (poll.state.retryAt ?? 0) - Date.now();
  for (const node of document.querySelectorAll(".countdown")) say(node, left > 0 ? `Trying again in ${duration(left / 1000)}.` : "Trying now.");
}

function clock(time) {
  return time ? new Date(time).toLocaleTimeString() : "";
}
