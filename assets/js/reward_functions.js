// Weights as sliders, each function's statistics, this save beside another, reward against length.

import { el, fill, keyed, say, set, whenThere } from "./dom.js";
import { MINUS, fixed, signed } from "./format.js";
import { drawHistogram, drawScatter } from "./reward_plots.js";
import { begin, on, setOthers, setWeight, state, weightOf } from "./reward_state.js";

let weights = null, table = null, versus = null, act = null;

export function mount(actions) {
  act = actions;
  whenThere("lab-reward-weights", (place) => {
    weights = { rows: el("div.weight-rows"), add: el("select", { "aria-label": "Add a function", onchange: add }) };
    fill(place, el("section.panel.reward-weights", { "aria-label": "Weights" },
      el("header", {}, el("b", {}, "Reward = weighted sum"), el("span.gap"), weights.add), weights.rows));
    drawWeights();
  });
  whenThere("lab-reward-functions", (place) => (table = place, drawTable()));
  whenThere("lab-reward-versus", (place) => {
    versus = { choose: el("select", { "aria-label": "Compare with", onchange: compare }), body: el("div"),
      plot: el("section.panel.reward-length", { "aria-label": "Reward against length" }) };
    fill(place, el("div.reward-pair", {}, el("section.panel.reward-versus", { "aria-label": "Comparison" },
      el("header", {}, el("b.title"), el("span.gap"), el("label", {}, "against ", versus.choose)), versus.body), versus.plot));
    drawVersus();
  });
  on("start", () => (drawWeights(), drawVersus()));
  on("result", () => (drawWeights(), drawTable(), drawVersus()));
  on("weights", () => (drawWeights(), drawTable(), drawVersus()));
}

const title = (written) => (written === "mine" ? (state.result?.functions[0].name ?? state.check?.name ?? "your function")
  : written);

function drawWeights() {
  if (!weights) return;
  const all = ["mine", ...state.others];
  keyed(weights.rows, all, (written) => written, makeWeight, (row, written) => {
    say(row.querySelector(".what"), title(written));
    for (const input of row.querySelectorAll("input")) {
      set(input, { "aria-label": `Weight of ${title(written)}${input.type === "range" ? ", slider" : ""}` });
      if (document.activeElement !== input) input.value = weightOf(written);
    }
  });
  const known = [...(state.start?.builtins ?? []).map((b) => b.name), ...(state.start?.versions ?? []).map((v) => v.label)];
  const key = JSON.stringify([known, state.others]);
  if (weights.add.dataset.key === key) return;
  weights.add.dataset.key = key;
  fill(weights.add, el("option", { value: "" }, "Add a function…"),
    known.filter((name) => !state.others.includes(name)).map((name) =>
    el("option", { value: name, title: state.start.builtins.find((b) => b.name === name)?.doc }, name)));
}

function makeWeight(written) {
  const change = (event) => setWeight(written, Number(event.target.value) || 0);
  return el("div.weight", {}, el("span.what", { title: written === "mine" ? "The function in the editor" : written }),
    el("input", { type: "range", min: 0, max: 1, step: 0.05, oninput: change }),
      el("input", { type: "number", step: 0.05, oninput: change }),
    written === "mine" ? el("span") : el("button.link",
      { type: "button", "aria-label": `Remove ${written}`, onclick: () => remove(written) }, "Remove"));
}

function add() {
  const name = weights.add.value;
  if (!name) return;
  setOthers([...state.others, name]);
  setWeight(name, state.weights[name] ?? 0);
  act.save();
}

function remove(written) {
  setOthers(state.others.filter((each) => each !== written));
  drawWeights();
  act.save();
}

function drawTable() {
  if (!table) return;
  const { result, figures } = state;
  if (!result) return fill(table);
  const low = Math.min(0, ...figures.each.map((s) => s.low ?? 0), figures.total.low ?? 0);
  const high = Math.max(1, ...figures.each.map((s) => s.high ?? 1), figures.total.high ?? 1);
  const heads = ["function", "weight", `values from ${fixed(low, low % 1 ? 1 : 0)} to ${fixed(high, high % 1 ? 1 : 0)}`,
    "mean", "std", "in groups", "no signal", "with length", "of variance", "time"];
  const lines = result.functions.map((f, place) => line(f.written, f, figures.each[place],
    { weight: figures.weights[place], share: figures.shares[place], values: f.values, low, high }));
  lines.push(line("total", null, figures.total, { values: figures.totals.flat(), low, high }));
  fill(table, el("section.panel.reward-functions", { "aria-label": "Functions" },
    el("header", {}, el("b", {}, "Functions"),
      el("span.quiet", {}, "in groups: mean std within a group; no signal: groups where all are equal")),
    el("div.rw-scroll", {}, el("table", {},
      el("thead", {}, el("tr", {}, heads.map((name, i) => el("th", { scope: "col", class: i > 2 ? "n" : null }, name)))),
      el("tbody", {}, lines)))));
}

function line(written, f, s, { weight = null, share = null, values, low, high }) {
  const failed = f?.failures.reduce((total, each) => total + (each.rows ? each.rows.length : f.values.length), 0) ?? 0;
  const number = (text, title = null) => el("td.n", { title }, text);
  return el("tr", { "data-function": written, "data-dead": s.dead, "data-mean": s.mean ?? "" },
    el("th", { scope: "row" }, written === "total" ? "total" : title(written),
    failed ? el("span.chip.bad", {}, `${failed} failed`) : null),
    number(weight === null ? "" : `× ${fixed(weight, 2)}`), el("td", {}, drawHistogram(values, low, high)),
      number(fixed(s.mean, 3)), number(fixed(s.std, 3)), number(fixed(s.within, 3)),
    number(`${s.dead} of ${s.groups}`, `${s.deadLow} at the lowest value seen, ${s.deadHigh} at the highest`),
      number(signed(s.length, 2)),
    number(share === null ? "" : percent(share)), number(f ? `${fixed(1000 * f.seconds, f.seconds < 0.01 ? 1 : 0)} ms` : ""));
}

export const percent = (share) => `${share < 0 ? MINUS : ""}${Math.abs(Math.round(100 * share))} %`;

function compare() {
  state.against = versus.choose.value;
  act.save();
}

function drawVersus() {
  if (!versus) return;
  const { result, figures } = state, versions = state.start?.versions ?? [];
  const key = JSON.stringify(versions.map((v) => v.label));
  if (versus.choose.dataset.key !== key) {
    versus.choose.dataset.key = key;
    fill(versus.choose, el("option", { value: "previous" }, "the save before"),
      versions.map((v) => el("option", { value: v.label }, v.label)));
    versus.choose.value = state.against;
  }
  if (!result) return void (fill(versus.body), fill(versus.plot));
  const was = figures.was ?? null;
  fill(versus.body.parentElement.querySelector(".title"), was ? `This save against ${result.against.title}` : "This save");
  const moved = was ? figures.ranks.flat().filter((rank, row) => rank !== was.ranks.flat()[row]).length : null;
  const groups = was ? figures.ranks.filter((group, k) => group.some((rank, i) => rank !== was.ranks[k][i])).length : 0;
  const a = figures.total, b = was?.total, mine = figures.each[0], theirs = was?.each[0];
  const lines = [
    compared("groups with signal", a.groups - a.dead, b && b.groups - b.dead, 0, `of ${a.groups}`),
    compared("no signal, all at the lowest", a.deadLow, b?.deadLow, 0, "easier prompts, or a finer reward"),
    compared("no signal, all at the highest", a.deadHigh, b?.deadHigh, 0, "solved prompts"),
    compared("mean reward", a.mean, b?.mean, 3, ""),
    compared("mean std within groups", a.within, b?.within, 3, "what there is to learn from"),
    compared(`mean of ${title("mine")} alone`, mine.mean, theirs?.mean, 3, ""),
    compared("hostile texts that earn", earning(figures.hostile), was && earning(was.hostile), 0, "see the hostile set"),
    was ? el("tr", { "data-measure": "rank changed" }, el("th", { scope: "row" }, "rank changed"),
      el("td.n", {}, el("b", {}, String(moved))), el("td"), el("td"),
      el("td.why", {}, moved ? `in ${groups} of ${a.groups} groups` : "same order everywhere")) : null,
  ];
  fill(versus.body, el("table", {}, el("thead", {}, el("tr", {}, ["", "now", was ? "before" : "", was ? "change" : "",
    ""].map((name, i) => el("th", { scope: "col", class: i && i < 4 ? "n" : null }, name)))), el("tbody", {}, lines)));
  fill(versus.plot, el("header", {}, el("b", {}, "Reward against length"), el("span.gap"),
    el("span", {}, "correlation ", el("b", {}, signed(a.length, 2)))), drawScatter(figures, result));
}

/** How many of the hostile texts get more than the least that any of them gets; the honest answer is not one of them. */
export function earning(totals) {
  const texts = state.result.hostile.map((text, i) => [text, totals[i]]).filter(([text, total]) => text.kind !== "right answer"
    && total !== null);
  const floor = Math.min(...totals.filter((total) => total !== null));
  return texts.filter(([, total]) => total > floor + 1e-6).length;
}

function compared(name, now, before, digits, why) {
  const change = before === undefined || before === null || now === null ? null : now - before;
  return el("tr", { "data-measure": name }, el("th", { scope: "row" }, name), el("td.n", {}, el("b", {}, fixed(now, digits))),
    el("td.n", {}, before === undefined || before === null ? "" : fixed(before, digits)),
    el("td.n", {}, change === null ? "" : Math.abs(change) < 0.5 * 10 ** -digits ? "±0" : signed(change, digits)),
      el("td.why", {}, why));
}
