// The Reward tab: keeps the draft as it is typed, scores it at each save, and says what is going on. Its panels draw themselves.

import * as api from "./api.js";
import * as editor from "./reward_editor.js";
import * as functions from "./reward_functions.js";
import * as hostile from "./reward_hostile.js";
import * as rows from "./reward_rows.js";
import * as source from "./reward_source.js";
import { begin, ownRun, reckon, state, tell } from "./reward_state.js";
import * as tabs from "./tabs.js";
import { whenThere } from "./dom.js";

const PAUSE = 500; // milliseconds without a key until the draft is kept and read
let timer = null, waiting = null, begun = false, saves = 0;

export function mount() {
  [editor, source, functions, hostile, rows].forEach((part) => part.mount({ save, put }));
  whenThere("lab-reward-check", start);
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s" && tabs.current() === "reward") {
      event.preventDefault();
      setTimeout(save, 30); // the last key is still on its way from the editor
    }
  });
}

/** Draft, or a template where there is none; then the first scores. */
async function start() {
  try {
    await begin();
  } catch (error) {
    return fail(error);
  }
  begun = true;
  state.saved = state.start.draft;
  put(state.start.draft ?? state.start.templates[0].source);
  save();
}

/** Gradio's editor tells of every change. */
export function typed(text) {
  if (!begun || text === null || text === state.source) return;
  state.source = text;
  clearTimeout(timer);
  timer = setTimeout(keep, PAUSE);
  tell("source");
}

/** What Gradio's hidden button puts into the editor. */
export function text() {
  return waiting ?? state.source;
}

/** Another source into the editor; what stood there can be brought back. */
export async function put(text, keepOld = false) {
  if (keepOld && state.source.trim() && state.source !== text) {
    await api.post("api/rewards/draft", { source: state.source, name: "previous" }).catch(() => null);
    state.start.previous = state.source;
  }
  waiting = state.source = text;
  press("reward-put");
  tell("source");
  return keep();
}

function press(id, tries = 100) {
  const button = document.getElementById(id);
  button?.click();
  const shown = document.querySelector("#reward-code .cm-content")?.textContent ?? "";
  const first = state.source.split("\n").find((line) => line.trim()) ?? "";
  if (tries && !shown.includes(first.trim())) setTimeout(press, 100, id,
    tries - 1); // Gradio answers to clicks a little later than it shows
}

async function keep() {
  const source = state.source;
  try {
    const answer = await api.post("api/rewards/draft",
      { source, columns: state.result?.on.columns ?? state.start?.columns ?? null });
    if (state.source !== source) return;
    state.check = answer.check;
    state.saved = source;
  } catch (error) {
    state.problem = error.message;
  }
  tell("source");
}

/** Runs the source on the chosen completions. */
export async function save() {
  if (!begun) return;
  clearTimeout(timer);
  const started = performance.now(), source = state.source, mine = ++saves;
  state.busy = true;
  state.problem = null;
  tell("busy");
  try {
    const answer = await api.post("api/rewards/bench", { source, functions: state.others, on: chosen(), against: state.against });
    if (mine !== saves) return; // a newer save of this page is on its way
    if (answer.overtaken) return fail(new Error("Another page of yours saved meanwhile: save here once more."));
    const took = (performance.now() - started) / 1000;
    Object.assign(state, { result: answer, check: answer.check, saved: source, busy: false, took });
    reckon();
    tell("result");
  } catch (error) {
    if (mine === saves) fail(error);
  }
}

/** The completions to score, as the lab wants them named. */
function chosen() {
  const { kind, run, step } = state.on, { prompt, answer, text } = state.typed;
  if (kind === "run") return { kind, ...((run ?? ownRun()) && { run: run ?? ownRun() }), ...(step && { step }) };
  if (kind === "typed") return { kind, prompt, answer,
    texts: text.split(/^\s*---\s*$/m).map((each) => each.replace(/^\n|\n$/g, "")) };
  return { kind };
}

function fail(error) {
  Object.assign(state, { busy: false, problem: error.message });
  tell("busy");
}
