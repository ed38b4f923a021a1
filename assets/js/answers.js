// What base and tuned answered to the prompts of one evaluation: a line per prompt, and on request every sampled completion.

import * as api from "./api.js";
import { el, fill, say, set } from "./dom.js";
import { spans } from "./text.js";

const FIRST = 50; // lines before more are asked for
const KINDS = { all: "All", gained: "Gained", lost: "Lost", wrong: "Still wrong" };

/** {node, show(run, step), hide()}: empty until an evaluation is opened. */
export function makeAnswers() {
  const title = el("b"), filters = el("div.segment", { role: "group", "aria-label": "Prompts shown" });
  const list = el("div.answer-lines"), more = el("button.small", { type: "button", hidden: true, onclick: () => ((most = Infinity), draw()) });
  const node = el("section.answers", { "aria-label": "Answers", hidden: true }, el("header", {}, title, filters), list, more);
  let known = null, kind = "all", most = FIRST;

  async function show(run, step) {
    const found = await api.get(`api/runs/${encodeURIComponent(run)}/evaluations/${step}`).catch(() => null);
    if (!found) return;
    [known, kind, most] = [found, "all", FIRST];
    set(node, { hidden: false });
    draw();
  }

  function chosen(name) {
    const of = { all: () => true, gained: (p) => known.gained.includes(p.index), lost: (p) => known.lost.includes(p.index),
      wrong: (p) => p.tuned?.right === false && !known.lost.includes(p.index) }[name];
    return known.prompts.filter(of);
  }

  function draw() {
    const base = known.base_step === null ? "" : known.base_step === known.step ? "" : `, base of step ${known.base_step}`;
    say(title, `Step ${known.step}${base}`);
    fill(filters, Object.entries(KINDS).map(([name, label]) => el("button", { type: "button", "data-kind": name,
      "aria-pressed": String(name === kind), onclick: () => ((kind = name), draw()) }, `${label} ${chosen(name).length}`)));
    const prompts = chosen(kind);
    fill(list, prompts.length ? prompts.slice(0, most).map((prompt) => makeLine(prompt)) : el("p.note", {}, "None."));
    set(more, { hidden: prompts.length <= most });
    say(more, `Show all ${prompts.length}`);
  }

  function makeLine(prompt) {
    const samples = el("div.samples", { hidden: true });
    const button = el("button.link", { type: "button", "aria-expanded": "false", onclick: async () => {
      samples.hidden = !samples.hidden;
      set(button, { "aria-expanded": String(!samples.hidden) });
      if (!samples.childElementCount) fill(samples, await sampled(prompt.index));
    } }, "Samples", el("span.spoken", {}, ` of ${prompt.prompt}`));
    return el("article.answer", { "data-prompt": prompt.index },
      el("div.asked", {}, el("b", { title: prompt.prompt }, prompt.prompt),
        prompt.answer === null || prompt.answer === undefined ? null : el("span.quiet", {}, `answer ${prompt.answer}`)),
      side("base", prompt.base), side("tuned", prompt.tuned),
      prompt.base?.sampled || prompt.tuned?.sampled ? button : el("span"), samples);
  }

  async function sampled(index) {
    try {
      const found = await api.get(`api/runs/${encodeURIComponent(known.run)}/evaluations/${known.step}/prompts/${index}`);
      return ["base", "tuned"].filter((name) => found[name]).map((name) => el("div", {}, el("b", {}, name),
        found[name].map((c) => el("p.sampled", { "data-right": String(c.right) }, verdict(c.right), written(c)))));
    } catch (error) {
      return el("p.note", {}, api.said(error));
    }
  }

  return { node, show, hide: () => set(node, { hidden: true }) };
}

function side(name, answer) {
  if (!answer) return el("div.side", {}, el("small", {}, name), el("span.quiet", {}, "not evaluated"));
  const often = answer.sampled ? `${answer.sampled_right} of ${answer.sampled}` : "";
  return el("div.side", { "data-side": name, "data-right": String(answer.right) }, el("small", {}, name), verdict(answer.right), written(answer),
    el("small", { title: often && "samples that are right" }, often));
}

function written(c) {
  return el("span.written", { title: c.text }, c.finished ? null : el("span.chip.note", {}, "cut off"), spans(c.text, { oneLine: true }));
}

function verdict(right) {
  return el(`span.verdict.${right === null ? "none" : right ? "right" : "wrong"}`, {}, right === null ? "not judged" : right ? "right" : "wrong");
}
