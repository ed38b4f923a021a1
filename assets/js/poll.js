// The one poller of the page. Twice a second while something is going on, slowly when not, not at all while hidden;
// after a failure it backs off and says so. Everything on the page listens here.

import { get } from "./api.js";
import * as url from "./url.js";

const SAMPLING = 150, LIVE = 500, QUIET = 4000; // milliseconds
const FIRST_RETRY = 500, LONGEST_RETRY = 8000;

export const state = {
  contact: "connecting", // live, lost, connecting
  phase: "idle", engine: { state: "starting", info: {} }, run: null, queue: [],
  partials: new Map(), // rollout → Map("group:index" → partial)
  steps: emptySteps(), lostAt: null, retryAt: null, heard: null,
};

const listeners = new Map();
let timer = null, retry = FIRST_RETRY, after = 0, busy = false, again = false;

/** Listens to "live" (each answer), "steps" ({fresh, whole}), "run" (another run is shown) and "contact". */
export function on(name, listener) {
  if (!listeners.has(name)) listeners.set(name, []);
  listeners.get(name).push(listener);
}

function tell(name, detail) {
  for (const listener of listeners.get(name) ?? []) listener(detail);
}

export function start() {
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : nudge()));
  addEventListener("online", nudge);
  nudge();
}

/** Asks now: after an own action, or when the person asks to try again. */
export function nudge() {
  stop();
  if (busy) again = true;
  else tick();
}

function stop() {
  clearTimeout(timer);
}

/** Has the run a step of its own? A new branch stands at its parent's step and has none yet. */
export const hasSteps = (run) => run.step > (run.parent_step ?? 0);

/** Shows another run from here on. */
export function show(run) {
  url.write({ run, step: null, group: null });
  state.steps = emptySteps();
  nudge();
}

async function tick() {
  busy = true;
  try {
    const run = url.read().run;
    const now = await get(`api/live?after=${after}${run ? `&run=${encodeURIComponent(run)}` : ""}`);
    await take(now);
    contact("live");
    retry = FIRST_RETRY;
  } catch (error) {
    if (error.status === 404 && url.read().run) {
      url.write({ run: null, step: null, group: null }); // a run of another browser, or one that was deleted
      again = true;
    } else if (error.status !== undefined) contact("lost", error);
    else throw error;
  } finally {
    busy = false;
    schedule();
  }
}

function schedule() {
  stop();
  if (document.hidden) return;
  if (again) {
    again = false;
    return void tick();
  }
  timer = setTimeout(tick, state.contact === "lost" ? nextRetry() : pace());
}

function pace() {
  const sampling = state.queue.some((command) => command.mine && command.kind === "sample");
  if (sampling) return SAMPLING;
  const moving = ["training", "loading", "sampling"].includes(state.phase) || state.queue.some((command) => command.mine);
  return moving ? LIVE : state.phase === "paused" ? 2 * LIVE : QUIET;
}

function nextRetry() {
  const wait = retry;
  retry = Math.min(2 * retry, LONGEST_RETRY);
  state.retryAt = Date.now() + wait;
  tell("contact", state.contact);
  return wait;
}

function contact(value) {
  if (value === "lost" && state.contact !== "lost") state.lostAt = Date.now();
  if (value === "live") state.heard = Date.now();
  const changed = state.contact !== value;
  state.contact = value;
  if (changed) tell("contact", value);
}

async function take(now) {
  after = now.after;
  const other = now.run?.id !== state.run?.id;
  Object.assign(state, { phase: now.phase, engine: now.engine, run: now.run, queue: now.queue });
  keepPartials(now.partials);
  if (other) {
    state.steps = emptySteps();
    tell("run", now.run);
  }
  if (now.run && (now.run.step !== state.steps.cursor || now.run.attempt !== state.steps.attempt)) await catchUp(now.run);
  tell("live", state);
}

function keepPartials(partials) {
  if (state.queue.length === 0 && partials.length === 0) state.partials.clear();
  for (const partial of partials) {
    if (!state.partials.has(partial.rollout)) state.partials.set(partial.rollout, new Map());
    state.partials.get(partial.rollout).set(`${partial.group}:${partial.index}`, partial);
  }
}

/** Fetches the rows after the cursor; all of them when the run was resumed and steps were done again. */
async function catchUp(run) {
  const known = state.steps;
  const whole = known.run !== run.id || known.attempt !== run.attempt || known.cursor > run.step;
  const rows = await get(`api/runs/${encodeURIComponent(run.id)}/steps?columns=curves&after=${whole ? 0 : known.cursor}`);
  if (whole || !rows.columns.every((name) => known.columns.includes(name))) {
    const all = whole ? rows : await get(`api/runs/${encodeURIComponent(run.id)}/steps?columns=curves&after=0`);
    state.steps = { run: run.id, attempt: all.attempt, columns: all.columns, rows: all.rows, smooth: all.smooth, cursor: all.cursor };
    tell("steps", { fresh: all.rows, smooth: all.smooth, whole: true });
  } else if (rows.rows.length) {
    const places = known.columns.map((name) => rows.columns.indexOf(name));
    const fresh = rows.rows.map((row) => [row[0], ...places.map((place) => (place < 0 ? null : row[place + 1]))]);
    const smooth = rows.smooth.map((row) => places.map((place) => (place < 0 ? null : row[place])));
    known.rows.push(...fresh);
    known.smooth.push(...smooth);
    known.cursor = rows.cursor;
    tell("steps", { fresh, smooth, whole: false });
  }
}

function emptySteps() {
  return { run: null, attempt: 0, columns: [], rows: [], smooth: [], cursor: 0 };
}

/** The newest value of a column, raw or smoothed; null if there is none. */
export function newest(column, kind = "rows") {
  const place = state.steps.columns.indexOf(column);
  const row = state.steps[kind].at(-1);
  return place < 0 || !row ? null : kind === "rows" ? row[place + 1] : row[place];
}

export function series(column, kind = "rows") {
  const place = state.steps.columns.indexOf(column);
  if (place < 0) return [];
  return state.steps[kind].map((row) => (kind === "rows" ? row[place + 1] : row[place]));
}
