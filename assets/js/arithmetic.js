// The arithmetic of one completion's advantage, with the group's own numbers: mean, sample std, (reward − mean) / (std + 0.0001).
// As many decimals are printed as it takes for the printed numbers to give the printed results.

import { el, fill } from "./dom.js";
import { MINUS, NONE, direction, signed } from "./format.js";
import { underEveryRule } from "./rules.js";

const SMALL = 1e-4; // the term beside the std
const MOST_TERMS = 10;

/** Group statistics of plain numbers: mean, sample std (n − 1), and each advantage. */
export function statistics(rewards) {
  const n = rewards.length;
  const mean = rewards.reduce((sum, r) => sum + r, 0) / n;
  const squares = rewards.reduce((sum, r) => sum + (r - mean) ** 2, 0);
  const std = n > 1 ? Math.sqrt(squares / (n - 1)) : 0;
  return { n, mean, squares, std, advantages: rewards.map((r) => (r - mean) / (std + SMALL)) };
}

/** The printed form of one advantage. Digits grow until mean, std and advantage follow from what is printed. */
export function explain(rewards, place) {
  const s = statistics(rewards);
  for (let more = 0; more <= 5; more++) {
    const printed = print(rewards, place, s, more);
    if (printed.consistent || more === 5) return { ...printed, ...s, advantage: s.advantages[place] };
  }
}

function print(rewards, place, s, more) {
  const digits = { reward: rewardDigits(rewards, more), mean: 3 + more, std: 4 + more };
  const shown = rewards.map((r) => round(r, digits.reward));
  const sum = round(shown.reduce((total, r) => total + r, 0), digits.reward);
  const mean = round(s.mean, digits.mean), std = round(s.std, digits.std);
  digits.squares = squaresDigits(s, std, digits);
  const squares = round(s.squares, digits.squares);
  const above = round(shown[place] - mean, digits.mean), below = round(std + SMALL, digits.std);
  const consistent = round(sum / s.n, digits.mean) === mean && round(above / below, 3) === round(s.advantages[place], 3);
  return { digits, shown, sum, printedMean: mean, printedSquares: squares, printedStd: std, above, below, consistent };
}

/** The decimals the sum of squares needs for its root to be the printed std. */
function squaresDigits(s, std, digits) {
  for (let squares = digits.mean; squares < digits.std + 4; squares++) {
    if (round(Math.sqrt(round(s.squares, squares) / (s.n - 1)), digits.std) === std) return squares;
  }
  return digits.std + 4;
}

/** The decimals the rewards need: one, unless some reward has more. */
function rewardDigits(rewards, more) {
  for (let digits = 1; digits < 6; digits++) {
    if (rewards.every((r) => Math.abs(r - round(r, digits)) < 1e-9)) return digits;
  }
  return 3 + more;
}

function round(value, digits) {
  return Number(value.toFixed(digits)) + 0;
}

function text(value, digits) {
  return (value < 0 ? MINUS : "") + Math.abs(value).toFixed(digits);
}

/** Draws the panel into `node`. `lengths` are those of all completions, in tokens; null rewards have been left out before. */
export function draw(node, { rewards, place, name, tokens = null, lengths = null, trained = false, onClose = null,
  what = "completion", children = null }) {
  const e = explain(rewards, place), d = e.digits, way = direction(e.advantage);
  const dead = e.std < 1e-6;
  fill(node,
    el("header", {}, el("b", {}, "The arithmetic"), el("span", {},
      `for ${what === "completion" ? "the completion under the pointer" : "the chosen student"}: `, el("b", {}, name)),
      onClose ? el("button.link", { type: "button", onclick: onClose }, "Close") : null),
    el("div.cells", {},
      el("div.cell", {}, el("h4", {}, `mean of the ${e.n} rewards`), fraction(terms(e, d), String(e.n)),
        result(text(e.printedMean, d.mean)),
        el("p", {}, what === "completion" ? "The baseline: what this prompt earns on average now."
          : "The baseline: what this group earned on average.")),
      el("div.cell", {}, el("h4", {}, `sample std, ${e.n} ${MINUS} 1 in the divisor`),
        el("div.maths", {}, "√( ", fraction(text(e.printedSquares, d.squares), String(e.n - 1)), " )"),
        result(text(e.printedStd, d.std)), el("p", {}, dead ? "All rewards are equal." : `How far the ${e.n} lie apart.`)),
      el(`div.cell.last.${way}`, {}, el("h4", {}, `advantage of ${name} = (reward ${MINUS} mean) / (std + 0.0001)`),
        el("div.maths", {}, fraction(`${text(e.shown[place], d.reward)} ${MINUS} ${text(e.printedMean, d.mean)}`,
          `${text(e.printedStd, d.std)} + 0.0001`), " = ",
          fraction(text(e.above, d.mean), text(e.below, d.std))),
        el("div.result", {}, "= ", el("b", {}, signed(e.advantage)), " ",
          el("span.way", {}, el(`i.tri.${way}`), dead ? "no signal" : way === "none" ? "no signal" : `pushed ${way}`)),
        el("p", {}, meaning(e, way, dead, tokens, trained, what)))),
    el("footer", {}, el("span", {}, "The same ", what, " under another rule:"), 
      underEveryRule(rewards, lengths).filter((rule) => rule.name !== "opo" || lengths).map((rule) => drawRule(rule, place, dead)),
      children));
}

function terms(e, d) {
  if (e.n > MOST_TERMS) return `sum of ${e.n} rewards ${text(e.sum, d.reward)}`;
  return e.shown.map((r, i) => (i === 0 ? text(r, d.reward) : `${r < 0 ? MINUS : "+"} ${text(Math.abs(r), d.reward)}`)).join(" ");
}

function meaning(e, way, dead, tokens, trained, what) {
  if (dead) return "Equal rewards leave nothing to prefer: this group teaches nothing.";
  const size = Math.abs(e.advantage).toFixed(3);
  if (way === "none") return `Exactly at the baseline: the update leaves this ${what} alone.`;
  const where = way === "up" ? "above" : "below";
  if (what !== "completion") return `${size} spreads ${where} the baseline.`;
  const each = tokens ? `each of its ${tokens} tokens` : "its tokens";
  return `${size} spreads ${where} the baseline: the update ${trained ? "pushed" : "pushes"} ${each} ${way}.`;
}

function drawRule({ name, title, advantages, why }, place, dead) {
  return el("span.rule", { "data-rule": name, title: why }, `${title} `, el("b", {}, why ? NONE : dead ? "0" : signed(advantages[place])));
}

function result(value) {
  return el("div.result", {}, "= ", el("b", {}, value));
}

function fraction(above, below) {
  return el("span.fraction", { role: "img", "aria-label": `${above} over ${below}` }, el("span", {}, above), el("span", {}, below));
}
