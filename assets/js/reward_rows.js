// Every completion with every function, the total, both advantages and its place in its group; one line per group, opened on demand.

import { drawBar, makeBar, makeDots, scaleOf } from "./axis.js";
import { el, fill, keyed, set, whenThere } from "./dom.js";
import { count, direction, fixed, reward, signed } from "./format.js";
import { failedRows, on, state } from "./reward_state.js";
import { spans } from "./text.js";

const FIRST = 7; // groups shown before "Show all"
let place = null, parts = null, filter = "all", open = null, all = false;

export function mount() {
  whenThere("lab-reward-rows", (node) => {
    place = node;
    parts = { filters: el("div.segment", { role: "group", "aria-label": "Show" }),
      head: el("div.rw-head", { "aria-hidden": "true" }), list: el("div.rw-groups"), foot: el("footer") };
    fill(place, el("section.panel.reward-rows", { "aria-label": "Per completion" },
      el("header", {}, el("b", {}, "Per completion"), el("span.quiet"), el("span.gap"), parts.filters),
      el("div.rw-scroll", {}, parts.head, parts.list), parts.foot));
    draw();
  });
  on("result", () => ((open = null), draw()));
  on("weights", draw);
}

function draw() {
  if (!parts) return;
  set(place, { hidden: !state.result });
  if (!state.result) return;
  const groups = collected(), chosen = { all: groups, dead: groups.filter((g) => g.dead), moved: groups.filter((g) => g.moved),
    errors: groups.filter((g) => g.failed.length) };
  if (!chosen[filter].length) filter = "all";
  drawFilters(chosen);
  drawHead();
  open ??= new Set(chosen.all.length ? [chosen.all[0].index] : []);
  const shown = all ? chosen[filter] : chosen[filter].slice(0, FIRST);
  const scale = scaleOf(groups.flatMap((g) => g.completions.map((c) => c.reward)),
    state.result.functions.map((f, i) => ({ weight: state.figures.weights[i] })));
  keyed(parts.list, shown, (group) => group.index, makeGroup, (node, group) => drawGroup(node, group, scale));
  const rest = chosen[filter].length - shown.length;
  fill(parts.foot, rest > 0 ? [count(rest, "more group"), el("span.gap"),
    el("button.link", { type: "button", onclick: () => ((all = true), draw()) }, `Show all ${chosen[filter].length}`)] : null);
  set(parts.foot, { hidden: rest <= 0 });
}

/** Groups with everything a row shows. */
function collected() {
  const { result, figures } = state, failed = result.functions.map((f) => new Set(failedRows(f)));
  let row = 0;
  return result.groups.map((group, k) => {
    const completions = group.completions.map((c, i) => {
      const at = row++;
      return { ...c, index: i, row: at, values: result.functions.map((f) => f.values[at]),
        failed: result.functions.map((f, place) => failed[place].has(at)),
        was: figures.was?.values[k][i], reward: figures.totals[k][i], advantage: figures.advantages[k][i],
          apart: figures.apart[k][i], rank: figures.ranks[k][i], rankWas: figures.was?.ranks[k][i] };
    });
    const known = completions.map((c) => c.reward).filter((value) => value !== null), mean = known.length
      ? known.reduce((a, b) => a + b, 0) / known.length : null;
    const std = known.length > 1 ? Math.sqrt(known.reduce((total, value) => total + (value - mean) ** 2,
      0) / (known.length - 1)) : known.length ? 0 : null;
    return { index: k, prompt: group.prompt, answer: group.answer, completions, mean, std, dead: known.length > 0 && std <= 1e-6,
      moved: completions.filter((c) => figures.was && c.rank !== c.rankWas).length,
        failed: completions.filter((c) => c.failed.some(Boolean)) };
  });
}

function drawFilters(chosen) {
  const titles = [["all", "All"], ["dead", "No signal"], ["moved", "Rank moved"], ["errors", "Errors"]];
  fill(parts.filters, titles.map(([name, title]) => el("button",
    { type: "button", "data-filter": name, "aria-pressed": String(filter === name), "aria-disabled": String(!chosen[name].length),
    onclick: () => chosen[name].length && ((filter = name), (all = false), draw()) }, name === "all" ? title
      : `${title} ${chosen[name].length}`)));
}

function columns() {
  return state.result.functions.length + (state.figures.was ? 1 : 0);
}

function drawHead() {
  const { result, figures } = state;
  place.style.setProperty("--parts", columns());
  const part = (name, small) => el("span.n", { title: name }, el("span", {}, name), el("small", {}, small));
  fill(parts.head, el("span"), el("span", {}, "completion"),
    result.functions.map((f, i) => [part(f.name, `× ${fixed(figures.weights[i], 2)}`),
    i === 0 && figures.was ? part("was", result.against.title === "the save before" ? "before" : result.against.title) : null]),
  part("reward", ""), el("span"), part("advantage", "sum, then normalise"), part("advantage", "normalise, then sum"),
    part("rank", figures.was ? "was" : ""));
}

function makeGroup(group) {
  const head = el("button.rw-group", { type: "button", onclick: () => (open.has(group.index) ? open.delete(group.index)
    : open.add(group.index), draw()) });
  return el("section", {}, head, el("div.rw-rows"));
}

function drawGroup(node, group, scale) {
  const [head, rows] = node.children, isOpen = open.has(group.index);
  const ups = group.completions.filter((c) => direction(c.advantage) === "up").length,
    downs = group.completions.filter((c) => direction(c.advantage) === "down").length;
  set(head, { "aria-expanded": String(isOpen), "data-group": group.index });
  fill(head, el("i.caret"), el("span.prompt", { title: group.prompt }, group.prompt || "(no prompt)"), makeDots(group, scale),
    el("span", {}, "mean ", el("b", {}, fixed(group.mean, 3))),
    el("span", {}, "std ", el("b", {}, fixed(group.std, 4))),
      el("span.say", {}, group.failed.length ? el("span.chip.bad", {}, `${group.failed.length} unscored`)
      : null,
      group.dead ? el("span", {}, deadWords(group)) : null), group.dead || group.mean === null
        ? el("span.verdict", {}, el("i.tri.none"), group.mean === null ? "not scored" : "no signal")
      : el("span.verdict", {}, el("span.up-text", {}, el("i.tri.up"), String(ups)), " ",
        el("span.down-text", {}, el("i.tri.down"), String(downs))));
  set(rows, { hidden: !isOpen });
  if (!isOpen) return;
  const sorted = [...group.completions].sort((a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity) || a.index - b.index);
  keyed(rows, sorted, (c) => c.index, makeRow, (row, c) => drawRow(row, c, group, scale));
}

function deadWords(group) {
  const { total } = state.figures;
  if (total.high - total.low <= 1e-6) return "all equal, as everywhere";
  return group.mean - total.low <= 1e-6 ? "all at the lowest" : total.high - group.mean <= 1e-6 ? "all at the highest"
    : "all equal";
}

function makeRow() {
  return el("article.rw-row", { tabindex: 0, onkeydown: walk });
}

function drawRow(row, c, group, scale) {
  const axis = makeBar(), way = direction(c.advantage), { functions } = state.result;
  drawBar(axis, scale, c.reward, group.mean, c.advantage);
  const value = (i) => (c.failed[i] ? el("span.n.failed", { "data-part": functions[i].written, "data-name": functions[i].name }, "no score")
    : el("span.n", { "data-part": functions[i].written, "data-name": functions[i].name }, reward(c.values[i])));
  const changed = state.figures.was && !c.failed[0] && c.was !== c.values[0];
  const moved = state.figures.was ? (c.rank === c.rankWas ? "same" : `was ${c.rankWas ?? "–"}`) : "";
  set(row, { "data-completion": c.row, "data-reward": c.reward ?? "", "data-advantage": c.advantage,
    "data-advantage-apart": c.apart, "data-way": way,
    "aria-label": `Row ${c.row}, reward ${reward(c.reward)}, advantage ${signed(c.advantage)}` });
  fill(row, el("span.id", {}, String(c.row)),
    el("div.text", { title: c.text }, c.finished ? null : el("span.chip.note", {}, "cut off"), spans(c.text, { oneLine: true })),
    functions.map((f, i) => [i === 0 ? marked(value(0), changed) : value(i), i === 0 && state.figures.was
      ? el("span.n.quiet", { "data-name": "before" }, reward(c.was)) : null]),
    el("b.n.whole", { "data-name": "reward" }, c.reward === null ? "–" : reward(c.reward)), axis,
    el(`b.n.adv.${way}-text`, {}, signed(c.advantage, 2)),
    el(`span.n.apart.${direction(c.apart)}-text`, { "data-name": "normalise, then sum" }, signed(c.apart, 2)),
    el("span.n.rank", { "data-name": "rank" }, c.rank === null ? "–" : String(c.rank), moved ? el("small", {}, ` ${moved}`) : null));
}

function marked(node, changed) {
  node.classList.toggle("changed", Boolean(changed));
  return node;
}

function walk(event) {
  const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  if (!next || event.target !== event.currentTarget) return;
  event.currentTarget[next]?.focus();
  event.preventDefault();
}
