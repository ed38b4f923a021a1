// Where the run came from, and where one can go on from it: branch at a checkpoint with the form's settings, or more steps.

import * as api from "./api.js";
import { el, fill, set, whenThere } from "./dom.js";
import * as forms from "./forms.js";
import * as poll from "./poll.js";
import * as runs from "./runs.js";

const REST = 3000;
let known = null, parts = null, seen = "", looked = 0, busy = false;

export function mount() {
  whenThere("lab-lineage", (place) => {
    parts = makeParts();
    fill(place, parts.panel);
    draw();
    follow();
  });
  poll.on("run", () => ((known = null), (seen = ""), follow()));
  poll.on("live", follow);
}

function makeParts() {
  const from = el("p.from"), branches = el("p.branches");
  const step = el("select", { "aria-label": "Checkpoint to branch from" });
  const branch = el("button.small", { type: "button", onclick: () => branchHere() }, "Branch");
  const more = el("input", { type: "text", inputmode: "numeric", value: "10", "aria-label": "Number of further steps",
    onkeydown: (event) => event.key === "Enter" && goOn() });
  const goOnButton = el("button.small", { type: "button", onclick: () => goOn() }, "Do more steps");
  const branching = el("span.act", {}, "From step ", step, " with the settings at the left: ", branch);
  const further = el("span.act", {}, more, " further steps with its own settings: ", goOnButton);
  const panel = el("section.lineage.panel", { "aria-label": "Go on from this run", hidden: true }, from, branches,
    el("div.acts", {}, branching, further));
  return { panel, from, branches, step, branch, more, branching, further };
}

async function follow() {
  const run = poll.state.run;
  if (!run || !parts) return;
  const now = `${run.id} ${run.status} ${run.attempt}`;
  if (now === seen && (run.step === known?.step || Date.now() - looked < REST)) return;
  [seen, looked] = [now, Date.now()];
  const found = await api.get(`api/runs/${encodeURIComponent(run.id)}/lineage`).catch(() => null);
  if (!found || found.run !== poll.state.run?.id) return;
  known = found;
  draw();
}

function draw() {
  const own = poll.state.run && poll.state.run.kind !== "recorded", here = known && own;
  const can = here && known.checkpoints.length > 0, ended = here && !runs.isAlive();
  set(parts.panel, { hidden: !here || !(can || known.parent || known.branches.length) });
  if (!here) return;
  set(parts.from, { hidden: !known.parent });
  if (known.parent) fill(parts.from, "Branched from ", runLink(known.parent), ` at step ${known.parent.step}: steps 1 to `
    + `${known.parent.step} were done there.`);
  set(parts.branches, { hidden: !known.branches.length });
  fill(parts.branches, known.branches.length ? "Its branches: " : "", known.branches.map((branch, i) => [i ? ", " : "", runLink(branch),
    ` from step ${branch.step}`]));
  set(parts.branching, { hidden: !can });
  set(parts.further, { hidden: !can || !ended });
  const why = runs.isAlive() ? "Stop the run first, or let it finish." : null;
  set(parts.branch, { "aria-disabled": why || busy ? "true" : null, title: why });
  drawSteps();
}

function drawSteps() {
  const key = known.checkpoints.join(" ");
  if (parts.step.dataset.steps === key) return;
  const chosen = parts.step.value;
  parts.step.dataset.steps = key;
  fill(parts.step, known.checkpoints.map((step) => el("option", { value: step }, String(step))));
  if (known.checkpoints.map(String).includes(chosen)) parts.step.value = chosen;
}

function runLink({ id, name }) {
  return name === null ? el("b", {}, "a run that is gone") : el("button.link", { type: "button", onclick: () => poll.show(id) }, name);
}

/** A new run from the chosen checkpoint; the page then shows it. */
async function branchHere() {
  if (runs.isAlive()) return;
  await once(async () => {
    const config = await forms.values("train");
    const answer = await runs.send("branch", { step: Number(parts.step.value), config });
    if (answer?.result?.run) poll.show(answer.result.run);
  });
}

async function goOn() {
  const more = Number(parts.more.value.trim() || "x");
  if (!Number.isInteger(more) || more < 1) return runs.report(`${parts.more.value.trim() || "Nothing"} is no number of further steps.`);
  await once(() => runs.send("resume_run", { more }));
}

async function once(act) {
  if (busy) return;
  busy = true;
  draw();
  try {
    await act();
  } finally {
    busy = false;
    draw();
  }
}
