// The curves' numbers as a table, for reading with a screen reader and for copying. Open on request only.

import { el, fill, set, whenThere } from "./dom.js";
import { fixed } from "./format.js";
import * as poll from "./poll.js";

const MOST_ROWS = 200;
const NAMES = { "groups/live": "groups with signal", "completions/mean_length": "length", grad_norm: "gradient norm",
  step_time: "seconds" };
const HIDDEN = ["groups/total"];
let place = null, button = null;

export function mount() {
  whenThere("lab-table", (node) => {
    place = node;
    button = el("button.link", { type: "button", "aria-expanded": "false", onclick: toggle }, "Show the numbers as a table");
    fill(place, button);
    poll.on("steps", () => isOpen() && draw());
    poll.on("run", () => isOpen() && draw());
  });
}

const isOpen = () => button.getAttribute("aria-expanded") === "true";

function toggle() {
  set(button, { "aria-expanded": String(!isOpen()) });
  button.textContent = isOpen() ? "Hide the table" : "Show the numbers as a table";
  isOpen() ? draw() : fill(place, button);
}

function draw() {
  const { columns, rows } = poll.state.steps;
  const shown = columns.filter((name) => !HIDDEN.includes(name));
  const head = el("tr", {}, el("th", { scope: "col" }, "step"), shown.map((name) => el("th", { scope: "col", title: name }, label(name))));
  const body = rows.slice(-MOST_ROWS).reverse().map((row) =>
    el("tr", {}, el("th", { scope: "row" }, String(row[0])),
      shown.map((name) => el("td", {}, cell(name, row[columns.indexOf(name) + 1])))));
  const caption = rows.length > MOST_ROWS ? `The newest ${MOST_ROWS} of ${rows.length} rows` : "Every step, newest first";
  const table = el("table", {}, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, body));
  fill(place, button, el("div.table-box.panel", { tabindex: 0, role: "region", "aria-label": "Numbers of the curves" }, table));
}

function label(name) {
  return NAMES[name] ?? name.replace(/^rewards\/(.*)\/mean$/, "$1").replaceAll("_", " ");
}

function cell(name, value) {
  if (name === "learning_rate") return value === null ? "–" : value.toExponential(1);
  return fixed(value, name === "loss" ? 6 : name === "groups/live" ? 0 : 3);
}
