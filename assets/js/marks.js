// Live changes on the curves: a dotted line at the step from which they hold; words on the reward's, a small triangle on the rest.

import { marks } from "./changes.js";

const WORDED = "reward";
const LEVELS = 4, LEVEL = 14; // neighbours' words stand at different heights, in pixels

export function shapes(theme) {
  return marks().map(({ step }) => ({ type: "line", x0: step, x1: step, yref: "paper", y0: 0, y1: 1, layer: "below",
    line: { color: theme.ink_3, width: 1.2, dash: "dot" } }));
}

/** `end` is the last step of the axis: in its second half the words stand at the left of their line. */
export function annotations(metric, theme, end) {
  return marks().map(({ step, words }, i) => metric === WORDED
    ? { x: step, yref: "paper", y: 0, yanchor: "bottom", yshift: 4 + LEVEL * (i % LEVELS), xanchor: step > end / 2 ? "right" : "left",
      text: plain(words), showarrow: false, bgcolor: theme.surface, borderpad: 1, font: { size: 11, color: theme.ink_2 } }
    : { x: step, yref: "paper", y: 1, yanchor: "top", text: "▼", showarrow: false, hovertext: plain(`Step ${step}: ${words}`),
      font: { size: 9, color: theme.ink_2 } });
}

const plain = (text) => text.replace(/[<>&]/g, " "); // Plotly reads a little markup in texts
