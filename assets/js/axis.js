// The drawing that carries everything: a ring at the reward, a bar from the group's mean to it, on one reward axis.

import { el, set } from "./dom.js";
import { direction, reward, signed } from "./format.js";

/** The reward axis of a group: from 0 (or the lowest reward) to what can be earned (or the highest reward). */
export function scaleOf(rewards, functions = []) {
  const known = rewards.filter((value) => value !== null);
  const possible = functions.reduce((sum, each) => sum + Math.max(0, each.weight), 0) || 1;
  const low = Math.min(0, ...known), high = Math.max(possible, ...known);
  const span = high - low || 1;
  return { low, high, at: (value) => (100 * (value - low)) / span, value: (share) => low + (span * share) / 100 };
}

/** An empty axis cell; drawBar fills it. */
export function makeBar() {
  return el("div.axis", { role: "img" }, el("i.rail-line"), el("i.bar"), el("i.mean-tick"), el("i.ring"));
}

/** Bar from the mean to the reward. Without a mean (not scored yet) only the empty axis is shown. */
export function drawBar(axis, scale, value, mean, advantage) {
  const way = direction(advantage);
  const ready = value !== null && value !== undefined && mean !== null && mean !== undefined;
  axis.className = `axis ${ready ? way : "waiting"}`;
  if (!ready) return set(axis, { "aria-label": "not scored yet" });
  const from = scale.at(mean), to = scale.at(value);
  const [, bar, tick, ring] = axis.children;
  set(bar, { style: { left: `${Math.min(from, to)}%`, width: `${Math.abs(to - from)}%` } });
  set(tick, { style: { left: `${from}%` } });
  set(ring, { style: { left: `${to}%` } });
  set(axis, { "aria-label": `reward ${reward(value)}, mean ${reward(mean)}, advantage ${signed(advantage)}` });
}

/** A group in one line: dots at the rewards, numbered where they coincide, and the mean. */
export function makeDots(group, scale) {
  const counts = new Map();
  for (const completion of group.completions) {
    if (completion.reward === null) continue;
    const key = completion.reward.toFixed(4);
    const seen = counts.get(key) ?? { value: completion.reward, n: 0, way: direction(completion.advantage) };
    seen.n += 1;
    counts.set(key, seen);
  }
  const dots = [...counts.values()].map((dot) =>
    el(`i.dot.${dot.way}${dot.n > 1 ? ".many" : ""}`, { style: { left: `${scale.at(dot.value)}%` } }, dot.n > 1 ? String(dot.n) : ""));
  const words = [...counts.values()].map((dot) => `${dot.n} with reward ${reward(dot.value)}`).join(", ");
  const mean = group.mean === null ? null : el("i.mean-tick", { style: { left: `${scale.at(group.mean)}%` } });
  return el("div.dots", { role: "img", "aria-label": `${words}; mean ${reward(group.mean)}` }, el("i.rail-line"), mean, dots);
}
