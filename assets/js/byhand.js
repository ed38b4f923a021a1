// Scores given by hand: the completions that the run waits with, a slider for each criterion, totals and the advantages they
// would give. What was moved is kept in the browser until it is given, so that a reload loses nothing.

import * as api from "./api.js";
import { statistics } from "./arithmetic.js";
import { drawBar, makeBar } from "./axis.js";
import { el, fill, say, set, whenThere } from "./dom.js";
import { count, direction, fixed, signed } from "./format.js";
import * as poll from "./poll.js";
import * as runs from "./runs.js";
import * as tabs from "./tabs.js";
import { spans } from "./text.js";

const PLACES = { train: "lab-byhand", lab: "lab-byhand-lab" };
const WAITING = ["paused", "interrupted", "stopped", "failed"];
const FINE = 0.05;
const SCALE = { low: 0, high: 1, at: (value) => 100 * value };

let asked = null, looked = null, scores = [], sending = false, rows = [], panel = null, parts = null;

export function mount() {
  for (const id of Object.values(PLACES)) whenThere(id, settle);
  poll.on("live", look);
  poll.on("run", () => (show(null), look()));
  document.addEventListener("click", (event) => event.target.closest?.("[role=tab]") && setTimeout(settle, 0));
}

/** Asks what the run waits with, once for each time that it stopped. */
async function look() {
  const run = poll.state.run, key = run && `${run.id} ${run.attempt} ${run.updated}`;
  if (!run || run.kind === "recorded" || !WAITING.includes(run.status)) return void ((looked = null), show(null));
  if (looked === key) return;
  looked = key;
  try {
    const answer = await api.get(`api/runs/${encodeURIComponent(run.id)}/scores`);
    if (looked === key) show(answer.waiting && { ...answer.waiting, run: run.id });
  } catch (error) {
    if (error.status === undefined) throw error;
    looked = null;
  }
}

function show(waiting) {
  if (waiting?.run === asked?.run && waiting?.id === asked?.id) {
    asked = waiting;
    return void (asked && drawTotals());
  }
  asked = waiting;
  if (asked) {
    scores = kept() ?? asked.groups.map((group) => group.completions.map(() => ({})));
    build();
  }
  settle();
}

/** The panel stands in the tab that is looked at. */
function settle() {
  const place = document.getElementById(PLACES[tabs.current()] ?? PLACES.train);
  if (!asked) return void panel?.remove();
  if (place && panel.parentNode !== place) place.append(panel);
}

function build() {
  const names = Object.keys(asked.criteria);
  parts = { note: el("span.quiet"), refused: el("p.refused", { role: "alert", hidden: true }),
    give: el("button.filled", { type: "submit" }, "Give these scores") };
  rows = [];
  const groups = asked.groups.map((group, g) => el("section.byhand-group", { "aria-label": `Prompt ${g + 1}` },
    el("h4", { title: group.prompt }, group.prompt),
    group.completions.map((completion, i) => makeRow(completion, g, i, names).node)));
  panel = el("form.panel.byhand", { "aria-label": "Scores by hand", novalidate: true, autocomplete: "off",
    onsubmit: (event) => (event.preventDefault(), give()) },
  el("header", {}, el("h3", {}, `Step ${asked.step} waits for your scores`), el("span.quiet", {}, "each from 0 to 1; counts ",
    names.map((name, n) => `${n ? ", " : ""}${name} × ${asked.criteria[name]}`))),
  groups, el("footer", {}, parts.give, parts.note, parts.refused));
  rows.forEach((row) => row.draw());
  drawTotals();
}

function makeRow(completion, g, i, names) {
  const label = `completion ${i + 1}${asked.groups.length > 1 ? ` of prompt ${g + 1}` : ""}`;
  const axis = makeBar(), total = el("b.total"), advantage = el("span.adv");
  const fields = names.map((name) => makeField(name, label, scores[g][i], () => (keep(), drawTotals())));
  const node = el("article.byhand-row", { "data-completion": completion.index },
    el("span.id", {}, String(i + 1)),
    el("div.text", { tabindex: 0, "aria-label": `Text of ${label}` }, completion.finished ? null : el("span.chip.note", {}, "cut off"),
      completion.text ? spans(completion.text) : el("span.quiet", {}, "(empty)")),
    el("div.fields", {}, fields.map((field) => field.node)), total, axis, advantage);
  const row = { node, g, i, names, axis, total, advantage, draw: () => fields.forEach((field) => field.draw()) };
  rows.push(row);
  return row;
}

/** A slider and a number for one criterion; untouched they hold nothing, not the middle. */
function makeField(name, label, values, changed) {
  const slider = el("input", { type: "range", min: 0, max: 1, step: FINE, "aria-label": `${name} of ${label}`,
    oninput: () => take(Number(slider.value)), onclick: () => values[name] === undefined && take(Number(slider.value)) });
  const typed = el("input", { type: "text", inputmode: "decimal", placeholder: "–", "aria-label": `${name} of ${label}, as a number`,
    oninput: () => {
      const text = typed.value.replace(",", ".").trim(), value = Number(text);
      const fits = text !== "" && Number.isFinite(value) && value >= 0 && value <= 1;
      set(typed, { "aria-invalid": text !== "" && !fits ? "true" : null });
      if (fits) values[name] = value;
      else delete values[name];
      draw(typed);
      changed();
    } });
  function take(value) {
    values[name] = value;
    draw(slider);
    changed();
  }
  function draw(source) {
    const value = values[name];
    if (source !== slider) slider.value = value ?? 0.5;
    if (source !== typed) typed.value = value === undefined ? "" : String(value);
    if (source !== typed) set(typed, { "aria-invalid": null });
    set(slider, { "aria-valuetext": value === undefined ? "not scored" : String(value), "data-unset": value === undefined ? "" : null });
  }
  return { node: el("label.field", {}, el("span", {}, name), slider, typed), draw };
}

const isWhole = (row) => row.names.every((name) => scores[row.g][row.i][name] !== undefined);
const isBegun = (row) => Object.keys(scores[row.g][row.i]).length > 0;

function totalOf(row) {
  const given = scores[row.g][row.i];
  const weights = row.names.reduce((sum, name) => sum + asked.criteria[name], 0);
  return isWhole(row) ? row.names.reduce((sum, name) => sum + asked.criteria[name] * given[name], 0) / weights : null;
}

function drawTotals() {
  asked.groups.forEach((_, g) => {
    const own = rows.filter((row) => row.g === g), whole = own.filter(isWhole);
    const s = whole.length > 1 ? statistics(whole.map(totalOf)) : null;
    own.forEach((row) => {
      const total = totalOf(row), adv = s && total !== null ? (s.std < 1e-6 ? 0 : s.advantages[whole.indexOf(row)]) : null;
      say(row.total, fixed(total, 2));
      drawBar(row.axis, SCALE, total, s?.mean ?? null, adv);
      fill(row.advantage, adv === null ? "" : [el(`i.tri.${direction(adv)}`), signed(adv)]);
      set(row.node, { "data-reward": total ?? "", "data-advantage": adv ?? "" });
    });
  });
  const whole = rows.filter(isWhole).length, half = rows.find((row) => isBegun(row) && !isWhole(row));
  const why = sending ? "Giving the scores…" : !asked.going ? `The run is ${poll.state.run?.status}: resume it, then give the scores.`
    : half ? `Completion ${half.i + 1} has no ${half.names.find((name) => scores[half.g][half.i][name] === undefined)} yet.`
      : !whole ? "Score at least one completion; two or more make advantages."
        : whole < rows.length ? `${whole} of ${rows.length} scored. The others are left out of the group.`
          : `${count(whole, "completion")} scored. Advantages are those of these scores alone.`;
  say(parts.note, why);
  set(parts.give, { "aria-disabled": sending || !asked.going || half || !whole ? "true" : null });
}

async function give() {
  if (parts.give.getAttribute("aria-disabled")) return;
  const { run, id } = asked;
  sending = true;
  set(parts.refused, { hidden: true });
  drawTotals();
  try {
    const body = { id, scores: scores.map((group) => group.map((given) => (Object.keys(given).length ? given : null))) };
    const { command } = await api.post(`api/runs/${encodeURIComponent(run)}/scores`, body);
    poll.nudge();
    await runs.answered(command);
    localStorage.removeItem(keyOf(run, id));
    looked = null;
    show(null);
    poll.nudge();
  } catch (error) {
    say(parts.refused, api.said(error));
    set(parts.refused, { hidden: false });
  } finally {
    sending = false;
    if (asked) drawTotals();
  }
}

// -- kept in the browser

const keyOf = (run, id) => `lab-scores ${run} ${id}`;

function keep() {
  localStorage.setItem(keyOf(asked.run, asked.id), JSON.stringify(scores));
}

function kept() {
  try {
    const found = JSON.parse(localStorage.getItem(keyOf(asked.run, asked.id)));
    const fits = asked.groups.every((group, g) => found[g].length === group.completions.length);
    return fits ? found : null;
  } catch {
    return null;
  }
}
