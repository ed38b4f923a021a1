// PPO beside GRPO: what the critic of a run costs in time and memory, and how its value estimates wander. All measured.

import { el, fill, say, set, whenThere } from "./dom.js";
import { NONE, fixed, megabytes } from "./format.js";
import * as poll from "./poll.js";

let parts = null;

export function mount() {
  whenThere("lab-critic", (place) => {
    parts = { body: el("tbody"), note: el("p.note") };
    parts.panel = el("section.critic.panel", { "aria-label": "What the critic costs", hidden: true },
      el("header", {}, el("b", {}, "What the critic costs"), el("span.quiet", {}, "measured in this run, beside the same run without one")),
      el("table", {}, el("thead", {}, el("tr", {}, ["", "PPO", "GRPO", ""].map((text) => el("th", { scope: "col" }, text)))), parts.body),
      parts.note);
    fill(place, parts.panel);
    ["steps", "run"].forEach((name) => poll.on(name, draw));
    draw();
  });
}

function draw() {
  const seconds = numbers("critic/seconds");
  set(parts.panel, { hidden: !seconds.length });
  if (!seconds.length) return;
  const share = total(seconds) / total(numbers("step_time")), bytes = poll.newest("critic/bytes");
  const values = numbers("critic/value_mean"), explained = numbers("critic/explained_variance");
  const rows = [
    ["time", `${fixed(total(seconds) / seconds.length, 2)} s per step`, "0 s", `${fixed(100 * share, 0)} % of the step's time`],
    ["memory", megabytes(bytes), "0 MB", "weights, gradients and optimiser state"],
    ["its mean value", span(values, 3), "none", "before each update, in rewards"],
    ["explained", span(explained, 2), "none", "of the returns' variation: 1 is all, 0 or less is no better than a constant"],
  ];
  fill(parts.body, rows.map(([what, ppo, grpo, why]) => el("tr", {}, el("th", { scope: "row" }, what), el("td", {}, el("b", {}, ppo)),
    el("td", {}, grpo), el("td.quiet", {}, why))));
  say(parts.note, wanders(values));
}

/** The mean step-to-step move of the mean value, against what it is about: the reward's. */
function wanders(values) {
  if (values.length < 2) return "";
  const moves = values.slice(1).map((value, i) => Math.abs(value - values[i])), rewards = numbers("reward");
  const own = total(moves) / moves.length;
  return `From one step to the next its mean value moves by ${fixed(own, 3)} on average, between ${fixed(Math.min(...values), 3)} and `
    + `${fixed(Math.max(...values), 3)}; the mean reward went from ${fixed(rewards[0] ?? null, 3)} to ${fixed(rewards.at(-1) ?? null, 3)}. `
    + "GRPO takes the group's mean instead and has nothing to learn here.";
}

const numbers = (column) => poll.series(column).filter((value) => value !== null);
const total = (values) => values.reduce((sum, value) => sum + value, 0);
const span = (values, digits) => (values.length ? `${fixed(values[0], digits)} to ${fixed(values.at(-1), digits)}` : NONE);
