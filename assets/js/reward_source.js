// On which completions the reward is tried: the last group, a stored run's, or typed ones.

import { el, fill, say, set, whenThere } from "./dom.js";
import { count } from "./format.js";
import { on, ownRun, state } from "./reward_state.js";

const KINDS = [["last", "Last group"], ["run", "Stored run"], ["typed", "Typed text"]];
let parts = null, act = null;

export function mount(actions) {
  act = actions;
  whenThere("lab-reward-source", (place) => {
    parts = { label: el("b"), segment: el("div.segment", { role: "group", "aria-label": "Completions" },
      KINDS.map(([kind, title]) => el("button", { type: "button", "data-kind": kind, onclick: () => choose(kind) }, title))),
    run: el("select", { "aria-label": "Run", onchange: () => choose("run") }),
    step: el("input", { type: "number", min: 1, placeholder: "newest", "aria-label": "Step", onchange: () => choose("run") }),
    stored: el("span.stored"), typed: makeTyped() };
    fill(parts.stored, el("label", {}, "of ", parts.run), el("label", {}, "step ", parts.step));
    fill(place, el("section.panel.reward-source", { "aria-label": "Completions to score" },
      el("header", {}, parts.label, el("span.gap"), parts.stored, parts.segment), parts.typed));
    draw();
  });
  ["start", "result", "busy"].forEach((event) => on(event, draw));
}

function makeTyped() {
  const field = (name, label, node) => el("label", {}, label, bound(node, name));
  return el("div.typed", { hidden: true }, field("prompt", "Prompt", el("input", { type: "text" })),
    field("answer", "Right answer (if there is one)", el("input", { type: "text" })),
    field("text", "Completions, with a line of --- between two", el("textarea", { rows: 5 })),
    el("button.small", { type: "button", onclick: () => act.save() }, "Score typed text"));
}

function bound(node, name) {
  node.value = state.typed[name];
  node.addEventListener("input", () => (state.typed[name] = node.value));
  return node;
}

function choose(kind) {
  state.on = kind === "run" ? { kind, run: parts.run.value || null, step: Number(parts.step.value) || null } : { kind };
  draw();
  if (kind !== "typed" || state.typed.text.trim()) act.save();
  if (kind === "typed") parts.typed.querySelector("textarea").focus();
}

function draw() {
  if (!parts) return;
  const { result } = state;
  for (const button of parts.segment.children) set(button, { "aria-pressed": String(button.dataset.kind === state.on.kind) });
  const runs = state.start?.runs ?? [], wanted = state.on.run ?? ownRun() ?? runs[0]?.id;
  const key = JSON.stringify(runs.map((run) => [run.id, run.step]));
  if (parts.run.dataset.key !== key) {
    parts.run.dataset.key = key;
    fill(parts.run, runs.map((run) => el("option", { value: run.id },
      `${run.name}, ${count(run.step, "step")}${run.kind === "recorded" ? ", recorded" : ""}`)));
    parts.run.value = wanted ?? "";
  }
  set(parts.step, { placeholder: state.on.kind === "run" && result?.on.step ? result.on.step : "newest" });
  set(parts.stored, { hidden: state.on.kind !== "run" });
  set(parts.typed, { hidden: state.on.kind !== "typed" });
  const rows = result?.functions[0].values.length ?? 0;
  say(parts.label, result ? `${result.on.label}: ${rows} in ${count(result.groups.length, "group")}` : "nothing yet");
}
