// How likely a group is tied and teaches nothing: p^G + (1 − p)^G for a reward of right or wrong. As in lab/dead_groups.py.

import { el, fill, say } from "./dom.js";
import { count, fixed } from "./format.js";

const SIZES = [2, 4, 8, 16, 32];

export function tiedProbability(p, size) {
  return p ** size + (1 - p) ** size;
}

/** A calculator: `show(completions)` puts the group's own share of right ones into it; another p can be typed. */
export function makeTied() {
  const typed = el("input", { type: "text", inputmode: "decimal", "aria-label": "Probability p that a completion is right",
    oninput: () => calculate() });
  const source = el("span.quiet"), results = el("span.sizes", { role: "status" });
  const node = el("section.tied", { "aria-label": "Tied groups" },
    el("span", {}, el("b", {}, "Tied groups"), " p", el("sup", {}, "G"), " + (1 − p)", el("sup", {}, "G")),
    el("label", {}, "p = ", typed), source, results);
  let size = 0, measured = null, key = "";

  function calculate() {
    const p = Number(typed.value.replace(",", ".").trim() || "x");
    const isOwn = measured !== null && typed.value === fixed(measured, 3);
    say(source, isOwn ? `${Math.round(measured * size)} of ${size} right here` : "as typed");
    if (!(p >= 0 && p <= 1)) return fill(results, "A probability lies between 0 and 1.");
    const sizes = [...new Set([...SIZES, size])].filter((each) => each > 1).sort((a, b) => a - b);
    fill(results, sizes.map((each) => el(`span${each === size ? ".own" : ""}`, { "data-size": each,
      title: each === size ? `This group has ${count(each, "completion")}` : null },
    `G ${each} `, el("b", {}, percent(tiedProbability(isOwn ? measured : p, each))))));
  }

  return { node, show(completions) {
    const judged = completions.map((c) => c.rewards?.accuracy ?? null).filter((value) => value !== null);
    const now = JSON.stringify(judged);
    if (now === key) return;
    key = now;
    size = completions.length;
    measured = judged.length ? judged.filter((value) => value === 1).length / judged.length : null;
    if (measured !== null || !typed.value) typed.value = fixed(measured ?? 0.5, 3);
    calculate();
  } };
}

function percent(share) {
  return share > 0 && share < 0.0005 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`;
}
