// Small drawings of the Reward tab: a histogram in a table cell, reward against length. Numbers only; words are set as text.

import { el } from "./dom.js";
import { count, fixed } from "./format.js";
import { histogram } from "./reward_weigh.js";

const SVG = "http://www.w3.org/2000/svg";
const BINS = 12;

function draw(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Bars of how often each value occurs, from low to high. */
export function drawHistogram(values, low, high) {
  const known = values.filter((value) => value !== null), counts = histogram(known, low, high, BINS),
    most = Math.max(1, ...counts);
  const words = counts.map((n, i) => (n ? `${n} about ${fixed(low + ((i + 0.5) * (high - low)) / BINS, 2)}`
    : "")).filter(Boolean).join(", ");
  const bars = counts.map((n, i) => draw("rect",
    { x: 8 * i + 1, width: 6, y: 22 - (n ? Math.max(2, (20 * n) / most) : 0), height: n ? Math.max(2, (20 * n) / most) : 0 }));
  return draw("svg", { class: "histogram", viewBox: `0 0 ${8 * BINS} 23`, role: "img", "aria-label": words || "no values" },
    draw("path", { d: `M0 22.5H${8 * BINS}` }), ...bars);
}

/** One dot per completion; those that were cut off are marked. */
export function drawScatter(figures, result) {
  const points = figures.totals.flatMap((group,
    k) => group.map((total, i) => ({ total, length: figures.lengths[k][i], cut: !result.groups[k].completions[i].finished })))
    .filter((point) => point.total !== null);
  if (!points.length) return el("p.note", {}, "No completion has a total.");
  const longest = Math.max(1, ...points.map((p) => p.length)), low = Math.min(0, ...points.map((p) => p.total)),
    high = Math.max(1, ...points.map((p) => p.total));
  const x = (length) => 34 + (236 * length) / longest, y = (total) => 128 - (112 * (total - low)) / (high - low);
  // equal points lie beside each other rather than on top: a fixed, small shift by their number
  const dots = points.map((p, n) => draw("circle",
    { cx: x(p.length) + ((n * 7) % 5) - 2, cy: y(p.total) + ((n * 3) % 5) - 2, r: 2.6, class: p.cut ? "cut" : "" }));
  const label = (text, at) => draw("text", at, text);
  const cutOff = points.filter((p) => p.cut).length;
  const words = `${count(points.length, "completion")}, lengths up to ${longest}, rewards from ${fixed(low, 1)} to ${fixed(high, 1)}`;
  return el("div.scatter-box", {}, draw("svg", { class: "scatter", viewBox: "0 0 280 152", role: "img", "aria-label": words },
    ...[low, (low + high) / 2, high].flatMap((at) => [draw("path", { d: `M34 ${y(at)}H272` }),
      label(fixed(at, at % 1 ? 1 : 0), { x: 28, y: y(at) + 4, "text-anchor": "end" })]),
    label("0", { x: 34, y: 146, "text-anchor": "middle" }), label(`${longest}`, { x: 270, y: 146, "text-anchor": "end" }),
      label("length", { x: 150, y: 146, "text-anchor": "middle" }), ...dots),
    cutOff ? el("p.note", {}, `${count(cutOff, "completion")} cut off (hollow).`) : null);
}
