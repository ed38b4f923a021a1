// The same group under two ways of making advantages, side by side: rule, scale, and how several rewards are joined. A scale or
// a sum over the batch takes in all groups of the step where they are known; of a sample the group is the whole batch.

import * as api from "./api.js";
import { el, fill, say } from "./dom.js";
import { NONE, direction, reward, signed } from "./format.js";
import { WAYS, underWay } from "./rules.js";

const LABELS = { advantage_rule: "Rule", scale_rewards: "Scale", multi_objective_aggregation: "Several" };
const FIRST = { advantage_rule: "grpo", scale_rewards: "group", multi_objective_aggregation: "sum_then_normalize" };
const SECOND = { ...FIRST, scale_rewards: "none" };

/** {node, show(view, order)}. */
export function makeCompare() {
  const ways = [{ ...FIRST }, { ...SECOND }], heads = ways.map((way, i) => makeHead(way, i, () => ((touched = true), draw())));
  const body = el("tbody"), note = el("p.note");
  const table = el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "completion"), el("th", { scope: "col" }, "reward"),
    heads.map((head) => el("th", { scope: "col" }, head.node)))), body);
  const node = el("details.compare", { ontoggle: () => node.open && draw() }, el("summary", {}, el("b", {}, "Compare rules"),
    el("span.quiet", {}, "the same group under two of them")), el("div.box", {}, table), note);
  let meanings = null, now = null, order = [], touched = false;

  async function draw() {
    if (!now || !node.open) return;
    const view = now, { groups, weights, place } = asNumbers(view);
    const found = ways.map((way) => underWay(way, groups, weights, place));
    const by = new Map(view.completions.map((c, i) => [c.index, i]));
    fill(body, order.filter((index) => by.has(index)).map((index) => drawRow(view.completions[by.get(index)], by.get(index), found)));
    say(note, groups.length > 1 ? `The batch is all ${groups.length} groups of the step.` : "The batch is this group alone.");
    meanings ??= (await api.get("api/choices").catch(() => ({ choices: {} }))).choices;
    heads.forEach((head, i) => head.explain(meanings, found[i].why));
  }

  /** The first column begins with the way the run itself has; a critic's has no place here. */
  return { node, show(view, sorted, own) {
    [now, order] = [view, sorted];
    if (own && own.algorithm !== "ppo" && !touched) heads[0].choose(own);
    draw();
  } };
}

function makeHead(way, i, changed) {
  const name = i === 0 ? "first" : "second", words = el("p", { role: "status" });
  const selects = Object.entries(WAYS).map(([setting, choices]) => [el("span", {}, LABELS[setting]),
    el("select", { "aria-label": `${LABELS[setting]}, ${name} column`, "data-way": `${i}.${setting}`, onchange: (event) => {
      way[setting] = event.target.value;
      changed();
    } }, choices.map((choice) => el("option", { value: choice, selected: choice === way[setting] }, choice)))]);
  const node = el("div.way", {}, selects, words);
  return { node, choose(own) {
    for (const select of node.querySelectorAll("select")) {
      const setting = select.dataset.way.slice(2);
      if (own[setting]) select.value = way[setting] = own[setting];
    }
  }, explain(meanings, why) {
    const last = way.multi_objective_aggregation === "normalize_then_sum" ? "multi_objective_aggregation" : "advantage_rule";
    const shown = last === "advantage_rule" && way.advantage_rule === "grpo" ? "scale_rewards" : last;
    say(words, why ?? meanings[shown]?.[way[shown]] ?? "");
  } };
}

function drawRow(c, place, found) {
  return el("tr", { "data-completion": c.index }, el("th", { scope: "row" }, `#${c.index + 1}`), el("td", {}, reward(c.reward)),
    found.map(({ advantages }, i) => {
      const value = advantages?.[place] ?? null;
      return el(`td.${direction(value)}-text`, { "data-column": i, "data-advantage": value ?? "" }, value === null ? NONE : signed(value));
    }));
}

function asNumbers(view) {
  const groups = view.batch ?? [view], functions = view.functions;
  return { place: Math.max(0, groups.findIndex((group) => group.index === view.index)), weights: functions.map((f) => f.weight),
    groups: groups.map(({ completions }) => ({ totals: completions.map((c) => c.reward), lengths: completions.map((c) => c.tokens),
      parts: functions.map((f) => completions.map((c) => c.rewards?.[f.name] ?? null)) })) };
}
