// Live curves: Plotly figures whose frames come from lab/charts.py; points are added from the shared poller.
// A zoom, once made, is never touched; scales grow in steps; at most 1,000 points per curve.

import * as api from "./api.js";
import * as changes from "./changes.js";
import { el, fill, say, set, whenThere } from "./dom.js";
import { NONE, fixed, megabytes } from "./format.js";
import * as marks from "./marks.js";
import * as poll from "./poll.js";
import * as theme from "./theme.js";
import * as url from "./url.js";

const MOST_POINTS = 1000;
const CONFIG = { displayModeBar: false, showSendToCloud: false, doubleClick: "reset", responsive: true };
let spec = null, figures = [], ready = null, library = null, themeShown = null;

export function mount() {
  whenThere("lab-curves", (place) => {
    fill(place, el("div.curves", { "data-state": "loading" }));
    poll.on("steps", ({ fresh, smooth, whole }) => (whole ? drawAll() : extend(fresh, smooth)));
    poll.on("run", () => drawAll());
    changes.onChange(() => drawAll({ keepZoom: true }));
    theme.onChange(() => ready && rebuild());
    whenVisible(place, () => (ready ??= build(place.firstChild)));
  });
  if (url.read().tab === "train") loadPlotly(); // wanted at once: let it come while Gradio builds the page
}

/** plotly.js is large: it is fetched when the curves are first looked at. */
function whenVisible(node, use) {
  new IntersectionObserver((entries, watch) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watch.disconnect();
    use();
  }).observe(node);
}

async function build(box) {
  const plotly = loadPlotly();
  await loadSpec();
  figures = spec.curves.map((curve) => makeFigure(curve));
  fill(box, figures.map((figure) => figure.node));
  figures.forEach(headline);
  await plotly;
  set(box, { "data-state": "ready" });
  drawAll();
}

async function loadSpec() {
  themeShown = theme.current();
  spec = await api.get(`api/curves?theme=${themeShown}`);
}

async function rebuild() {
  await ready;
  await loadSpec();
  figures.forEach((figure, i) => (figure.curve = spec.curves[i]));
  drawAll({ keepZoom: true });
}

export function loadPlotly() {
  return (library ??= new Promise((done, failed) => {
    document.head.append(Object.assign(document.createElement("script"),
      { src: `${api.root()}lab/vendor/plotly.min.js`, onload: done, onerror: failed }));
  }));
}

function makeFigure(curve) {
  const value = el("b"), unit = el("span"), plot = el("div.plot"), note = el("p.plot-note");
  const node = el("figure", { "data-metric": curve.metric, "data-step": "", "data-value": "", tabindex: 0, hidden: curve.optional },
    el("figcaption", {}, el("span.title", { title: curve.help }, curve.title), el("span.now", {}, value, " ", unit)), plot, note);
  return { curve, node, plot, value, unit, note, zoomed: false, own: false };
}

function drawAll({ keepZoom = false } = {}) {
  figures.forEach((figure) => set(figure.node, { hidden: !isShown(figure.curve) }));
  figures.forEach(headline);
  if (window.Plotly) figures.filter((figure) => isShown(figure.curve)).forEach((figure) => draw(figure, keepZoom));
}

/** A critic's curves are there only where there is a critic. */
const isShown = (curve) => !curve.optional || poll.state.steps.columns.includes(curve.metric);

function draw(figure, keepZoom) {
  const { curve, plot } = figure;
  const { rows, columns } = poll.state.steps;
  const parts = curve.metric === "reward" ? columns.filter((name) => name.startsWith("rewards/") && name.endsWith("/mean")) : [];
  figure.lines = [...parts, curve.metric]; // the smoothed lines; traces are: raw points, one per line, one per end of a line
  const steps = rows.map((row) => row[0]);
  const traces = [points(figure, steps), ...figure.lines.map((column, i) => line(figure, column, i, steps)),
    ...figure.lines.map((column, i) => end(figure, column, i))];
  const layout = structuredClone(curve.layout);
  const kept = keepZoom && figure.zoomed ? [plot.layout.xaxis.range, plot.layout.yaxis.range] : null;
  if (!kept) figure.zoomed = false;
  if (!keepZoom) figure.top = null;
  figure.top = topFor(figure, traces);
  Object.assign(layout.xaxis, { range: kept?.[0] ?? plannedRange(), dtick: wholeSteps(kept?.[0] ?? plannedRange()) });
  Object.assign(layout.yaxis, { range: kept?.[1] ?? range(figure.top), tickformat: figure.top[1] < 0.001 ? ".0e" : curve.unit === "bytes" ? "~s" : "~g" });
  layout.margin.r = parts.length ? 92 : 12;
  layout.annotations = notes(figure);
  layout.shapes = marks.shapes(spec.theme);
  figure.notes = JSON.stringify(layout.annotations);
  quietly(figure, () => window.Plotly.react(plot, traces, layout, CONFIG));
  if (!figure.listening) listen(figure);
}

function points(figure, steps) {
  return { type: "scatter", mode: "markers", x: steps, y: poll.series(figure.curve.metric), marker: { color: spec.theme.raw, size: 4 },
    hovertemplate: `${hoverNumber(figure)}<extra>one step</extra>` };
}

function line(figure, column, i, steps) {
  const style = isMain(figure, i) ? { color: spec.theme.ink, width: 2.2 }
    : { color: colour(figure, i), width: 1.6, dash: spec.dashes[i % spec.dashes.length] };
  return { type: "scatter", mode: "lines", x: steps, y: poll.series(column, "smooth"), line: style, cliponaxis: false,
    hovertemplate: `${hoverNumber(figure)}<extra>${isMain(figure, i) ? "smoothed" : plain(partName(column))}</extra>` };
}

/** The newest point of a line; with its name and value where there are several lines. */
function end(figure, column, i) {
  const value = poll.newest(column, "smooth"), step = poll.state.steps.rows.at(-1)?.[0];
  const known = value !== null && step !== undefined, name = isMain(figure, i) ? "reward" : plain(partName(column));
  return { type: "scatter", mode: figure.lines.length > 1 ? "markers+text" : "markers", x: known ? [step] : [],
    y: known ? [value] : [], hoverinfo: "skip",
    cliponaxis: false, marker: { color: colour(figure, i), size: 7 }, texttemplate: ` ${name} %{y:.2f}`, textposition: endPlaces(figure)[i],
    textfont: { color: colour(figure, i), size: 11 } };
}

const isMain = (figure, i) => i === figure.lines.length - 1;
const colour = (figure, i) => (isMain(figure, i) ? spec.theme.ink : spec.theme.parts[i % spec.theme.parts.length]);
const hoverNumber = (figure) => `%{y:.${Math.max(2, figure.curve.digits)}f}`;
const endPlaces = (figure) => spread(figure.lines.map((column) => poll.newest(column, "smooth") ?? 0));

/** Labels of close ends go above, beside and below. */
function spread(values) {
  const order = values.map((value, i) => [value, i]).sort((a, b) => b[0] - a[0]);
  const places = Array(values.length).fill("middle right");
  order.forEach(([value, i], rank) => {
    const above = order[rank - 1]?.[0], below = order[rank + 1]?.[0];
    if (above !== undefined && above - value < 0.08) places[i] = rank === order.length - 1 ? "bottom right" : "middle right";
    if (below !== undefined && value - below < 0.08 && rank === 0) places[i] = "top right";
  });
  return places;
}

function extend(fresh, smooth) {
  const { columns, rows } = poll.state.steps;
  if (rows.length > 1.2 * MOST_POINTS) return thin();
  const place = (name) => columns.indexOf(name);
  figures.forEach(headline);
  for (const figure of figures.filter((each) => each.lines)) {
    const x = fresh.map((row) => row[0]), lines = figure.lines.map((name) => smooth.map((row) => row[place(name)] ?? null));
    const y = [fresh.map((row) => row[place(figure.curve.metric) + 1] ?? null), ...lines, ...lines];
    const room = [-1, ...lines.map(() => -1), ...lines.map(() => 1)]; // an end keeps its newest point only
    quietly(figure, async () => {
      await window.Plotly.extendTraces(figure.plot, { x: y.map(() => x), y }, y.map((_, i) => i), { x: room, y: room });
      await placeEnds(figure);
      if (!figure.zoomed) await rescale(figure);
    });
  }
}

async function placeEnds(figure) {
  const count = figure.lines.length, places = endPlaces(figure), before = figure.plot.data.slice(-count).map((trace) => trace.textposition);
  if (count > 1 && String(places) !== String(before)) await window.Plotly.restyle(figure.plot, { textposition: places },
    places.map((_, i) => count + 1 + i));
}

/** Over a long run every second stored point goes: a screen cannot show more. */
function thin() {
  const steps = poll.state.steps;
  const keep = (_, i, all) => i % 2 === 0 || i === all.length - 1;
  steps.rows = steps.rows.filter(keep);
  steps.smooth = steps.smooth.filter(keep);
  drawAll({ keepZoom: true });
}

async function rescale(figure) {
  const top = topFor(figure, figure.plot.data), planned = plannedRange(), said = notes(figure, top), change = {};
  if (String(top) !== String(figure.top)) change["yaxis.range"] = range((figure.top = top));
  if (String(planned) !== String(figure.plot.layout.xaxis.range)) Object.assign(change, { "xaxis.range": planned, "xaxis.dtick": wholeSteps(planned) });
  if (JSON.stringify(said) !== figure.notes) {
    change.annotations = said;
    figure.notes = JSON.stringify(said);
  }
  if (Object.keys(change).length) await window.Plotly.relayout(figure.plot, change);
}

/** The value axis reaches a round number above the smoothed lines, and not down with every point. */
function topFor(figure, traces) {
  const smooth = traces.slice(1, 1 + figure.lines.length).flatMap((each) => each.y).filter((y) => y !== null);
  const raw = (traces[0]?.y ?? []).filter((y) => y !== null);
  const spiky = figure.curve.smoothing.startsWith("median");
  const seen = spiky ? smooth.map((y) => 1.6 * y) : [...smooth, ...raw];
  const high = Math.max(figure.curve.top, ...seen, 0), low = Math.min(0, ...seen);
  const before = figure.top?.[1];
  const top = before >= high && before < 4 * high ? before : roundUp(high || 0.1);
  return [low < 0 ? -roundUp(-low) : 0, top];
}

function range([low, high]) {
  return [low, high + 0.05 * (high - low)];
}

function roundUp(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 6, 8, 10].map((step) => step * unit).find((step) => step >= value * 0.999) ?? 10 * unit;
}

/** A short run's axis would else write each whole step several times. */
const wholeSteps = ([first, last]) => (last - first < 7 ? 1 : null);

function plannedRange() {
  const end = Math.max(poll.state.run?.max_steps ?? 0, poll.state.steps.cursor, 2);
  return [1 - 0.01 * end, end * 1.01];
}

/** What is written on a curve: live changes, and points off its scale. */
function notes(figure, top = figure.top) {
  return [...offScale(figure, top), ...marks.annotations(figure.curve.metric, spec.theme, plannedRange()[1])];
}

/** Points above the scale are named at its top instead of squashing the rest. */
function offScale(figure, top = figure.top) {
  if (!figure.curve.smoothing.startsWith("median") || !top) return [];
  const place = poll.state.steps.columns.indexOf(figure.curve.metric) + 1;
  const over = poll.state.steps.rows.filter((row) => place && row[place] > top[1]);
  if (!over.length) return [];
  const last = over.at(-1), more = over.length > 1 ? `<br>${over.length - 1} more` : "";
  return [{ x: last[0], y: top[1], text: `▲ ${small(last[place], 2)} off the scale${more}`, showarrow: false, yanchor: "top",
    xanchor: sideWithRoom(last[0] / poll.state.run.max_steps), font: { size: 10, color: spec.theme.ink_3 } }];
}

/** What is written at a point so far along a narrow figure would be cut off on the other side. */
const sideWithRoom = (share) => (share < 0.35 ? "left" : share > 0.65 ? "right" : "center");

function listen(figure) {
  figure.listening = true;
  figure.plot.on("plotly_relayout", (change) => {
    if (figure.own) return;
    const keys = Object.keys(change);
    if (keys.some((key) => key.includes("autorange") && change[key])) return reset(figure);
    if (keys.some((key) => key.startsWith("xaxis.range") || key.startsWith("yaxis.range"))) figure.zoomed = true;
  });
  figure.plot.on("plotly_doubleclick", () => reset(figure));
}

/** Back to the whole run. */
function reset(figure) {
  figure.zoomed = false;
  quietly(figure, () => window.Plotly.relayout(figure.plot, { "xaxis.range": plannedRange(), "yaxis.range": range(figure.top) }));
  return false;
}

/** Changes of ours are no zoom of the person's. */
async function quietly(figure, change) {
  figure.own = true;
  try {
    await change();
  } finally {
    figure.own = false;
  }
}

function headline(figure) {
  const { curve, node } = figure;
  const raw = poll.newest(curve.metric), smooth = poll.newest(curve.metric, "smooth"), step = poll.state.steps.rows.at(-1)?.[0];
  const total = poll.newest("groups/total");
  const isGroups = curve.metric === "groups/live", isBytes = curve.unit === "bytes";
  say(figure.value, isGroups && raw !== null ? `${fixed(raw, 0)} of ${fixed(total, 0)}` : curve.metric === "loss"
    ? small(raw, curve.digits) : isBytes ? megabytes(raw) : fixed(smooth, curve.digits));
  say(figure.unit, isGroups || isBytes ? "" : curve.unit);
  set(node, { "data-step": step ?? "", "data-value": (curve.metric === "reward" ? smooth : raw) ?? "", "data-raw": raw ?? "",
    "aria-label": `${curve.title}: ${figure.value.textContent} ${curve.unit} at step ${step ?? NONE}` });
  say(figure.note, step === undefined ? "No step yet" : "");
}

/** A small number with two digits that say something. */
function small(value, digits) {
  return fixed(value, value ? Math.min(8, Math.max(digits, 1 - Math.floor(Math.log10(Math.abs(value))))) : digits);
}

const partName = (column) => column.slice("rewards/".length, -"/mean".length);
const plain = (name) => name.replace(/[<>&]/g, " "); // Plotly reads a little markup in names
