// Live curves: Plotly figures whose frames come from lab/charts.py; points are added from the shared poller.
// A zoom, once made, is never touched; scales grow in steps; at most 1,000 points per curve.

import * as api from "./api.js";
import { el, fill, say, set, whenThere } from "./dom.js";
import { NONE, fixed } from "./format.js";
import * as poll from "./poll.js";
import * as theme from "./theme.js";

const MOST_POINTS = 1000;
const CONFIG = { displayModeBar: false, showSendToCloud: false, doubleClick: "reset", responsive: true };
let spec = null, figures = [], ready = null, themeShown = null;

export function mount() {
  whenThere("lab-curves", (place) => {
    fill(place, el("div.curves", { "data-state": "loading" }));
    poll.on("steps", ({ fresh, smooth, whole }) => (whole ? drawAll() : extend(fresh, smooth)));
    poll.on("run", () => drawAll());
    theme.onChange(() => ready && rebuild());
    whenVisible(place, () => (ready ??= build(place.firstChild)));
  });
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
  const library = loadPlotly();
  await loadSpec();
  figures = spec.curves.map((curve) => makeFigure(curve));
  fill(box, figures.map((figure) => figure.node));
  figures.forEach(headline);
  await library;
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

function loadPlotly() {
  if (window.Plotly) return Promise.resolve();
  return new Promise((done, failed) => {
    document.head.append(Object.assign(document.createElement("script"), { src: `${api.root()}lab/vendor/plotly.min.js`, onload: done, onerror: failed }));
  });
}

function makeFigure(curve) {
  const value = el("b"), unit = el("span"), plot = el("div.plot"), note = el("p.plot-note");
  const node = el("figure", { "data-metric": curve.metric, "data-step": "", "data-value": "", tabindex: 0 },
    el("figcaption", {}, el("span.title", { title: curve.help }, curve.title), el("span.now", {}, value, " ", unit)), plot, note);
  return { curve, node, plot, value, unit, note, zoomed: false, own: false };
}

function drawAll({ keepZoom = false } = {}) {
  figures.forEach(headline);
  if (window.Plotly) figures.forEach((figure) => draw(figure, keepZoom));
}

function draw(figure, keepZoom) {
  const { curve, plot } = figure;
  const { rows, columns } = poll.state.steps;
  const parts = curve.metric === "reward" ? columns.filter((name) => name.startsWith("rewards/") && name.endsWith("/mean")) : [];
  figure.columns = [curve.metric, ...parts, curve.metric]; // what each trace draws: raw points, parts, smoothed line
  const steps = rows.map((row) => row[0]);
  const traces = figure.columns.map((column, i) => trace(figure, i, steps, poll.series(column, i === 0 ? "rows" : "smooth")));
  traces.push(endTrace(figure));
  const layout = structuredClone(curve.layout);
  const kept = keepZoom && figure.zoomed ? [plot.layout.xaxis.range, plot.layout.yaxis.range] : null;
  if (!kept) figure.zoomed = false;
  if (!keepZoom) figure.top = null;
  figure.top = topFor(figure, traces.slice(0, -1));
  Object.assign(layout.xaxis, { range: kept?.[0] ?? plannedRange() });
  Object.assign(layout.yaxis, { range: kept?.[1] ?? range(figure.top), tickformat: figure.top[1] < 0.001 ? ".0e" : "~g" });
  layout.margin.r = parts.length ? 92 : 12;
  layout.annotations = offScale(figure);
  quietly(figure, () => window.Plotly.react(plot, traces, layout, CONFIG));
  if (!figure.listening) listen(figure);
}

function trace(figure, i, x, y) {
  const { ink, raw, parts } = spec.theme, digits = figure.curve.digits, last = figure.columns.length - 1;
  const shared = { type: "scatter", x, y, cliponaxis: i === 0 };
  if (i === 0) return { ...shared, mode: "markers", marker: { color: raw, size: 4 }, hovertemplate: `%{y:.${Math.max(2, digits)}f}<extra>one step</extra>` };
  const name = i === last ? "smoothed" : partName(figure.columns[i]);
  const line = i === last ? { color: ink, width: 2.2 } : { color: parts[(i - 1) % parts.length], width: 1.6, dash: spec.dashes[(i - 1) % spec.dashes.length] };
  return { ...shared, mode: "lines", line, hovertemplate: `%{y:.${Math.max(2, digits)}f}<extra>${plain(name)}</extra>` };
}

/** The newest points, with their names where there are several lines. */
function endTrace(figure) {
  const shown = figure.columns.slice(1).map((column, i) => ({ column, last: i === figure.columns.length - 2, value: poll.newest(column, "smooth") })).filter((end) => end.value !== null);
  const step = poll.state.steps.rows.at(-1)?.[0];
  const colours = shown.map((end, i) => (end.last ? spec.theme.ink : spec.theme.parts[i % spec.theme.parts.length]));
  const named = shown.length > 1;
  const places = spread(shown.map((end) => end.value));
  return { type: "scatter", mode: named ? "markers+text" : "markers", x: shown.map(() => step), y: shown.map((end) => end.value), hoverinfo: "skip", cliponaxis: false,
    marker: { color: colours, size: 7 }, text: shown.map((end) => ` ${plain(end.last ? "reward" : partName(end.column))} ${fixed(end.value, 2)}`), textposition: places, textfont: { color: colours, size: 11 } };
}

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
  for (const figure of figures.filter((each) => each.columns)) {
    const x = fresh.map((row) => row[0]);
    const ys = figure.columns.map((name, i) => (i === 0 ? fresh.map((row) => row[place(name) + 1] ?? null) : smooth.map((row) => row[place(name)] ?? null)));
    const data = figure.plot.data;
    ys.forEach((y, i) => ((data[i].x = data[i].x.concat(x)), (data[i].y = data[i].y.concat(y))));
    quietly(figure, async () => {
      // what is drawn gets longer by these points only; axes stay as they are
      await window.Plotly.extendTraces(figure.plot, { x: ys.map(() => []), y: ys.map(() => []) }, ys.map((_, i) => i));
      const end = endTrace(figure);
      await window.Plotly.restyle(figure.plot, { x: [end.x], y: [end.y], text: [end.text], textposition: [end.textposition] }, [ys.length]);
      if (!figure.zoomed) await rescale(figure);
    });
  }
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
  const top = topFor(figure, figure.plot.data.slice(0, -1));
  const change = { annotations: offScale(figure, top) };
  if (String(top) !== String(figure.top)) change["yaxis.range"] = range((figure.top = top));
  const planned = plannedRange();
  if (String(planned) !== String(figure.plot.layout.xaxis.range)) change["xaxis.range"] = planned;
  await window.Plotly.relayout(figure.plot, change);
}

/** The value axis reaches a round number above the smoothed lines, and not down with every point. */
function topFor(figure, traces) {
  const smooth = traces.slice(1).flatMap((each) => each.y).filter((y) => y !== null);
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

function plannedRange() {
  const end = Math.max(poll.state.run?.max_steps ?? 0, poll.state.steps.cursor, 2);
  return [1 - 0.01 * end, end * 1.01];
}

/** Points above the scale are named at its top instead of squashing the rest. */
function offScale(figure, top = figure.top) {
  if (!figure.curve.smoothing.startsWith("median") || !top) return [];
  const place = poll.state.steps.columns.indexOf(figure.curve.metric) + 1;
  const over = poll.state.steps.rows.filter((row) => place && row[place] > top[1]);
  if (!over.length) return [];
  const last = over.at(-1), more = over.length > 1 ? `, ${over.length - 1} more` : "";
  return [{ x: last[0], y: top[1], text: `▲ ${fixed(last[place], 2)} off the scale${more}`, showarrow: false, yanchor: "top", xanchor: last[0] > poll.state.run.max_steps / 2 ? "right" : "left",
    font: { size: 10, color: spec.theme.ink_3 } }];
}

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

function reset(figure) {
  figure.zoomed = false;
  quietly(figure, () => rescale(figure));
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
  const isGroups = curve.metric === "groups/live";
  say(figure.value, isGroups && raw !== null ? `${fixed(raw, 0)} of ${fixed(total, 0)}` : curve.metric === "loss" ? small(raw, curve.digits) : fixed(smooth, curve.digits));
  say(figure.unit, isGroups ? "" : curve.unit);
  set(node, { "data-step": step ?? "", "data-value": (curve.metric === "reward" ? smooth : raw) ?? "", "data-raw": raw ?? "", "aria-label": `${curve.title}: ${figure.value.textContent} ${curve.unit} at step ${step ?? NONE}` });
  say(figure.note, step === undefined ? "No step yet" : "");
}

/** A small number with two digits that say something. */
function small(value, digits) {
  return fixed(value, value ? Math.min(8, Math.max(digits, 1 - Math.floor(Math.log10(Math.abs(value))))) : digits);
}

const partName = (column) => column.slice("rewards/".length, -"/mean".length);
const plain = (name) => name.replace(/[<>&]/g, " "); // Plotly reads a little markup in names
