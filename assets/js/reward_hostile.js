// The hostile set: texts that should earn nothing, what each gets under the weights, and who pays for it.

import { el, fill, whenThere } from "./dom.js";
import { reward } from "./format.js";
import { on, state } from "./reward_state.js";
import { earning } from "./reward_functions.js";

let place = null;

export function mount() {
  whenThere("lab-reward-hostile", (node) => ((place = node), draw()));
  ["result", "weights"].forEach((event) => on(event, draw));
}

function draw() {
  if (!place || !state.result) return;
  const { result, figures } = state, totals = figures.hostile;
  if (!totals.length) return fill(place, panel("not scored", false, el("p.note", {},
    "The hostile set is scored as soon as the function runs.")));
  const floor = Math.min(...totals.filter((total) => total !== null)),
    least = result.functions.map((f) => Math.min(...(f.hostile ?? []).filter((value) => value !== null)));
  const honest = result.hostile.findIndex((text) => text.kind === "right answer");
  const texts = result.hostile.map((text,
    i) => ({ ...text, i, total: totals[i], earns: totals[i] !== null
    && totals[i] > floor + 1e-6 })).filter((text) => text.i !== honest)
    .sort((a, b) => b.earns - a.earns || (b.total === null) - (a.total === null) || (b.earns ? b.total - a.total : 0)
      || a.i - b.i);
  const earn = earning(totals), words = texts.every((text) => text.total === null) ? "not scored" : `${earn} of ${texts.length} earn`;
  const payers = (i) => result.functions.filter((f, place) => figures.weights[place] && f.hostile?.[i] != null
    && figures.weights[place] * (f.hostile[i] - least[place]) > 1e-6).map((f) => f.name);
  const lines = texts.map((text) => el("tr",
    { "data-kind": text.kind, "data-earns": String(text.earns), "data-reward": text.total ?? "", title: text.why },
    el("th", { scope: "row" }, text.kind), el("td.text", {}, text.text.replace(/\s+/g, " ").trim() || "(nothing)"),
    el("td.n", {}, el("b", {}, text.total === null ? "no score" : reward(text.total))),
      el("td.by", {}, text.total === null ? broken(text.i) : text.earns ? payers(text.i).join(", ") || "–" : "none")));
  fill(place, panel(words, earn > 0, el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "kind"), el("th",
    { scope: "col" }, "text"), el("th.n", { scope: "col" }, "reward"), el("th", { scope: "col" }, "paid by"))),
    el("tbody", {}, lines)),
    honest < 0 ? el("p.note", {}, "The prompt has no known answer, so the attempts around an answer are left out.")
      : el("p.note", {}, "For comparison, the right answer in its place gets ", el("b", {}, reward(totals[honest])),
        `: “${result.hostile[honest].text}”`)));
}

function panel(words, bad, ...children) {
  return el("section.panel.reward-hostile", { "aria-label": "Hostile set" },
    el("header", {}, el("b", {}, "Hostile set"), el("span.quiet", {}, "texts that should earn nothing"), el("span.gap"),
    el(`span.chip${bad ? ".bad" : ""}`, {}, words)), el("div.rw-scroll", {}, ...children));
}

/** Why a text has no total: the line on which it broke the function. In a training that would stop the run. */
function broken(i) {
  const failure = state.result.functions.flatMap((f) => f.hostile_failures.map((each) => ({ ...each,
    name: f.name }))).find((each) => each.rows === null || each.rows.includes(i));
  if (failure) return el("span", { title: failure.message }, failure.line ? `breaks line ${failure.line}` : `breaks ${failure.name}`);
  const dead = state.result.functions.find((f) => !f.hostile && f.failures.some((each) => each.rows === null));
  return dead ? el("span", { title: `${dead.name}: ${dead.failures[0].message}` }, "does not run") : "no function applies";
}
