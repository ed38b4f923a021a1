// Under the settings: how far the losses agree with TRL's own, and what differs on purpose. Every number comes from the lab.

import * as api from "./api.js";
import { el, fill, whenThere } from "./dom.js";

export function mount() {
  whenThere("lab-parity", async (place) => {
    const found = await api.get("api/parity").catch(() => null);
    if (found) fill(place, panel(found));
  });
}

function panel(found) {
  const head = el("tr", {}, ["loss", "cases", "loss Δ", "gradient Δ"].map((title) => el("th", { scope: "col" }, title)));
  const body = found.losses.map((row) => el("tr", {}, el("th", { scope: "row" }, `${row.loss_type}, ${row.level}`),
    [row.cases, small(row.loss_diff), small(row.grad_diff)].map((value) => el("td", {}, String(value)))));
  return el("details.parity", {},
    el("summary", {}, el("b", {}, `Verified against TRL ${found.trl}`),
      el("span.quiet", {}, `${thousands(found.equal)} of ${thousands(found.cases)} combinations equal`)),
    el("p.note", {}, `Largest differences: loss ${small(found.loss_diff)}, gradients ${small(found.grad_diff)}, metrics `
      + `${small(found.metric_diff)}. Equal means at most ${small(found.tolerance)}, in fp32 with torch ${found.torch}.`),
    el("table", {}, el("caption", {}, "Largest difference per loss"), el("thead", {}, head), el("tbody", {}, body)),
    el("b", {}, "What differs on purpose"),
    el("ul", {}, found.differences.map((sentence) => el("li", {}, sentence))));
}

const small = (value) => value.toExponential(1).replace("-", "\u2212");
const thousands = (n) => n.toLocaleString("en");
