// The look before a run: a few groups sampled, and in words whether anything can be learned from them.

import * as api from "./api.js";
import { el, fill, whenThere } from "./dom.js";
import { count, fixed } from "./format.js";
import * as poll from "./poll.js";
import { spans } from "./text.js";

const LOOK_AGAIN = 250; // milliseconds
let place = null, shownFor = null, turn = 0;

export function mount() {
  whenThere("lab-preflight", (node) => {
    place = node;
    fill(place, el("div"));
    poll.on("run", ofRun);
    poll.on("live", () => poll.state.run?.id !== shownFor && ofRun());
    ofRun();
  });
}

/** The button beside Start calls this with what the Train form holds. */
export async function check(config) {
  const mine = ++turn;
  draw({ state: "going" });
  try {
    const { command } = await api.post("api/preflight", { config });
    poll.nudge();
    for (;;) {
      const answer = await api.get(`api/commands/${command}`);
      if (mine !== turn) return;
      if (!["queued", "taken"].includes(answer.status)) return draw(stateOf(answer));
      await new Promise((done) => setTimeout(done, LOOK_AGAIN));
    }
  } catch (error) {
    if (error.status === undefined) throw error;
    if (mine === turn) draw({ state: "failed", why: error.message });
  }
}

/** What was found before the run that is shown. */
async function ofRun() {
  const run = poll.state.run;
  shownFor = run?.id ?? null;
  const mine = ++turn;
  if (!run || run.kind === "recorded") return draw(null);
  for (;;) {
    const found = await api.get(`api/runs/${encodeURIComponent(run.id)}/preflight`).catch(() => null);
    if (mine !== turn) return;
    if (!found) return draw(null);
    if (!["queued", "taken"].includes(found.status)) return draw(stateOf(found));
    draw({ state: "going" });
    await new Promise((done) => setTimeout(done, LOOK_AGAIN));
  }
}

function stateOf(answer) {
  return answer.status === "done" ? { state: "done", ...answer.result } : { state: "failed", why: answer.error ?? `The pre-flight was ${answer.status}.` };
}

function draw(found) {
  if (!place) return;
  const key = JSON.stringify(found);
  if (place.dataset.drawn === key) return;
  place.dataset.drawn = key;
  if (!found) return fill(place, el("div"));
  const verdict = found.state === "going" ? "Looking at a few groups…" : found.state === "failed" ? found.why
    : found.can_learn ? found.warnings.length ? "Something can be learned, with care" : "Something can be learned" : "Nothing can be learned as it is";
  const open = found.state === "done" && (!found.can_learn || found.warnings.length > 0);
  const head = [el("b", {}, "Pre-flight"), el("span.verdict", { role: "status" }, verdict), found.summary ? el("span.quiet", {}, found.summary) : null];
  if (found.state !== "done") return fill(place, el("section.panel.preflight", { "data-state": found.state, "aria-label": "Pre-flight" }, el("header", {}, head)));
  fill(place, el("details.panel.preflight", { open, "data-state": found.can_learn ? (found.warnings.length ? "care" : "good") : "stop", "aria-label": "Pre-flight" },
    el("summary", {}, head), [...found.stop, ...found.warnings].map((sentence) => el("p.says", {}, sentence)),
    el("div.functions", {}, found.rewards.map(functionCard))));
}

function functionCard(seen) {
  const range = seen.mean === null ? "applied to nothing" : seen.lowest === seen.highest ? `always ${fixed(seen.mean, 2)}`
    : `${fixed(seen.lowest, 2)} to ${fixed(seen.highest, 2)}, mean ${fixed(seen.mean, 3)}`;
  const example = (word, each) => each && el("div.example", {}, el("span.quiet", {}, `${word} ${fixed(each.value, 2)}`),
    el("span.text", { title: each.text }, spans(each.text, { oneLine: true })));
  return el("article", { "data-reward-function": seen.name }, el("h4", {}, seen.name, el("span.quiet", {}, ` ${range} · ${count(seen.applied, "completion")}`)),
    example("best", seen.best), example("worst", seen.worst));
}
