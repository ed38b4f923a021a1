// The owner's data sets: the list, using one for training, and how hard its prompts are for the model.

import * as api from "./api.js";
import { settings } from "./data.js";
import { el, fill, keyed, say, set, whenThere } from "./dom.js";
import { count } from "./format.js";
import * as forms from "./forms.js";
import * as poll from "./poll.js";
import * as tabs from "./tabs.js";

const GOING = ["queued", "loading", "scanning"];
const LOOK_AGAIN = 700; // milliseconds between looks at a scan that goes on
const MOST_LINES = 200;
let list = [], chosen = null, asked = null, view = null, used = null, parts = null, sort = "file", timer = null, heard = null;

export function mount() {
  whenThere("lab-data-sets", (place) => whenThere("lab-data-scan", (below) => {
    parts = { sets: el("div.sets"), scan: below, note: el("span.quiet", { role: "status" }) };
    fill(place, el("section.panel.data-sets", { "aria-label": "Your data sets" },
      el("header", {}, el("h3", {}, "Your data sets"), parts.note), parts.sets));
    refresh();
  }));
  poll.on("contact", (contact) => contact === "live" && heard !== "live" && refresh());
}

/** Fetches the list again; the Task fields of the other tabs follow. */
export async function refresh() {
  const known = await api.get("api/data").catch(() => null);
  if (!known || !parts) return;
  heard = "live";
  list = known.datasets;
  drawList();
  if (chosen && !list.some((each) => each.id === chosen)) choose(null);
  document.getElementById("data-offer")?.click();
}

export async function made(dataset) {
  await refresh();
  say(parts.note, `${dataset.name} was prepared: ${count(dataset.n_rows, "row")}, ${dataset.held_out} of them held out.`);
  choose(dataset.id);
}

/** [label, value] of every task that the Task fields offer. */
export async function choices(builtin) {
  const known = await api.get("api/data").catch(() => null);
  const gym = known?.sources.gym.installed ? known.sources.gym.tasks.map((task) => [task.name, task.name]) : [];
  return [...(known?.datasets ?? []).map((each) => [`${each.name} (${count(each.n_rows, "row")})`, each.task]), ...builtin.map((name) => [name, name]),
    ...gym];
}

/** What goes into the Train form when a data set is used: task, rewards, weights. Where the rewards stay, so do their weights. */
export function usedValues() {
  const rewards = used.rewards ?? ["accuracy"], now = forms.lastKnown("train");
  return [used.task, rewards, String(rewards) === String(now.rewards) ? now.reward_weights : ""];
}

/** The Train form may be built only now, and then takes what it held before: the data set goes in after that. */
async function use(dataset) {
  used = dataset;
  tabs.choose("train");
  await forms.values("train");
  document.getElementById("data-use")?.click();
}

function drawList() {
  if (!list.length) {
    return fill(parts.sets, el("p.note.empty", {}, "None yet. Prepare data set makes one of what the preview shows."));
  }
  parts.sets.querySelector(".empty")?.remove();
  keyed(parts.sets, list, (each) => each.id, (each) => el("div.set", { "data-dataset": each.id }), drawSet);
}

function drawSet(node, each) {
  const key = JSON.stringify([each, chosen]);
  if (node.dataset.drawn === key) return;
  node.dataset.drawn = key;
  const training = each.n_rows - each.held_out;
  const about = [count(training, "prompt"), each.held_out ? `${each.held_out} held out` : null, each.source !== each.name ? each.source : null];
  set(node, { "data-chosen": each.id === chosen });
  fill(node, el("div.what", {}, el("b", {}, each.name), el("span.quiet", {}, about.filter(Boolean).join(" · "))),
    el("span.quiet.scanned", {}, scanWords(each.scan)),
    el("div.tools-of", {},
      el("button.small", { type: "button", "aria-pressed": String(each.id === chosen), onclick: () => choose(each.id === chosen ? null : each.id) },
        "Difficulty"),
      el("button.small", { type: "button", onclick: () => use(each) }, "Train on it"),
      el("a.small", { href: `${api.root()}api/data/${each.id}/export?format=csv`, download: "" }, "CSV"),
      el("a.small", { href: `${api.root()}api/data/${each.id}/export?format=jsonl`, download: "" }, "JSONL"),
      el("button.small.delete", { type: "button", onclick: (event) => remove(each, event.currentTarget) }, "Delete")));
}

function scanWords(scan) {
  if (!scan) return "not scanned";
  if (GOING.includes(scan.status)) return `${scan.status} ${scan.done} of ${scan.of || "…"}`;
  if (!scan.done) return scan.status === "failed" ? "scan failed" : `scan ${scan.status}`;
  return `signal in ${signalCount(scan.summary)} of ${scan.summary.judged}`;
}

const signalCount = (summary) => Math.round(summary.share_with_signal * summary.judged);

/** Asks once more on the button itself before anything is gone. */
async function remove(each, button) {
  if (button.dataset.sure !== "yes") {
    button.dataset.sure = "yes";
    say(button, "Delete for good");
    return;
  }
  try {
    await api.post(`api/data/${each.id}/delete`);
    say(parts.note, `${each.name} was deleted.`);
    await refresh();
  } catch (error) {
    say(parts.note, api.said(error));
  }
}

function choose(id) {
  chosen = id;
  view = null;
  drawList();
  fill(parts.scan);
  if (id) look();
}

async function look() {
  clearTimeout(timer);
  const mine = chosen;
  const found = await api.get(`api/data/${mine}`).catch((error) => (error.status === 404 ? { gone: true } : null));
  if (mine !== chosen || found?.gone) return;
  if (found) {
    const ended = GOING.includes(view?.scan?.status) && !GOING.includes(found.scan?.status);
    view = found;
    list = list.map((each) => (each.id === found.id ? { ...each, scan: found.scan } : each));
    drawList();
    drawScan();
    if (ended) refresh();
  }
  if (!found || GOING.includes(found.scan?.status)) timer = setTimeout(look, LOOK_AGAIN);
}

function drawScan() {
  if (!parts.scan.querySelector(`section[data-of="${view.id}"]`)) fill(parts.scan, makeScan());
  const scan = view.scan, going = GOING.includes(scan?.status), node = parts.scan.firstChild;
  const at = (name) => node.querySelector(`.${name}`);
  set(at("begin"), { hidden: going });
  set(at("end"), { hidden: !going });
  set(at("bar"), { hidden: !going });
  at("bar").firstChild.style.width = `${scan?.of ? (100 * scan.done) / scan.of : 0}%`;
  say(at("scan-state"), going ? (scan.status === "scanning" ? `${scan.done} of ${scan.of} prompts` : `${scan.status}…`)
    : scan?.error ?? (scan ? `${count(scan.done, "prompt")}, ${count(scan.samples, "sample")} each, by the base of ${scan.settings.model}` +
      `${scan.status === "done" ? "" : ` · ${scan.status}`}` : ""));
  const any = view.prompts.length > 0;
  set(at("found"), { hidden: !any });
  if (!any) return;
  drawFigures(at("figures"), scan);
  drawHistogram(at("passes"));
  drawPrompts(at("hard"));
}

function makeScan() {
  const number = (label, value, id) => el("label.number", {}, el("span", {}, label), el("input", { type: "text", inputmode: "decimal", value, id }));
  const head = el("header", {}, el("h3", {}, `How hard is ${view.name}?`), el("span.quiet.scan-state", { role: "status" }));
  const form = el("form.row", { onsubmit: (event) => (event.preventDefault(), begin()) }, number("Samples of each prompt", "8", "scan-samples"),
    number("Prompts at most", "64", "scan-prompts"), number("Max tokens", view.scan?.settings?.max_completion_length ?? "48", "scan-tokens"),
    number("Reward that says what is right", (view.rewards ?? ["accuracy"])[0], "scan-reward"),
    el("button.small.begin", { type: "submit" }, "Scan"), el("button.small.end", { type: "button", hidden: true, onclick: cancel }, "Cancel scan"));
  const keep = el("form.row.keep", { onsubmit: (event) => (event.preventDefault(), keepSome()) }, number("Keep prompts with p from", "0.1", "keep-low"),
    number("to", "0.9", "keep-high"), el("button.small", { type: "submit" }, "Keep as a new data set"), el("span.quiet", { role: "alert" }));
  const order = el("label.number", {}, el("span", {}, "Order"), el("select", { id: "scan-order", onchange: (event) => ((sort = event.target.value), drawScan()) },
    [["file", "as in the file"], ["hardest", "hardest first"], ["easiest", "easiest first"]].map(([value, label]) => el("option", { value }, label))));
  sort = "file";
  return el("section.panel.data-scan", { "data-of": view.id, "aria-label": "Difficulty" }, head,
    el("p.note", {}, "The base model answers each prompt several times. Where all answers are right, or all wrong, a group has nothing to compare."),
    form, el("div.bar", { hidden: true }, el("i")), el("div.found", { hidden: true }, el("div.figures"), el("div.passes"),
      el("div.row.between", {}, keep, order), el("div.hard")));
}

function drawFigures(place, scan) {
  const { summary } = scan;
  const figure = (value, label) => el("div", {}, el("b", {}, value), el("span.quiet", {}, label));
  fill(place, figure(`${signalCount(summary)} of ${summary.judged}`, "prompts with signal (0 < p < 1)"),
    figure(String(summary.all_wrong), "never right"), figure(String(summary.all_right), "always right"),
    Object.entries(summary.live).map(([size, share]) => figure(`${Math.round(100 * share)} %`, `live groups at G ${size}`)));
}

/** How many prompts have which pass rate: one bar for each count of right samples. */
function drawHistogram(place) {
  const most = Math.max(...view.prompts.map((prompt) => prompt.samples)), bins = Array(most + 1).fill(0);
  view.prompts.filter((prompt) => prompt.samples).forEach((prompt) => bins[Math.round((most * prompt.passed) / prompt.samples)]++);
  const top = Math.max(...bins, 1);
  const words = bins.map((n, passed) => `${n} with ${passed} of ${most} right`).join(", ");
  fill(place, el("div.pass-bars", { role: "img", "aria-label": `Prompts by pass rate: ${words}` }, bins.map((n, passed) =>
    el("div.pass", { title: `${count(n, "prompt")}: ${passed} of ${most} right`, "data-live": passed > 0 && passed < most }, el("span", {}, n || ""),
      el("i", { style: { height: `${(48 * n) / top}px` } }), el("small", {}, String(passed))))),
  el("small", {}, `right of ${most}`));
}

function drawPrompts(place) {
  const rate = (prompt) => (prompt.samples ? prompt.passed / prompt.samples : -1);
  const order = { file: (a, b) => a.row - b.row, hardest: (a, b) => rate(a) - rate(b) || a.row - b.row, easiest: (a, b) => rate(b) - rate(a) || a.row - b.row };
  const sorted = [...view.prompts].sort(order[sort]), shown = sorted.slice(0, MOST_LINES);
  const line = (prompt) => el("tr", { "data-p": prompt.samples ? rate(prompt) : "" }, el("td.rate", {}, el("span.meter", { "aria-hidden": "true" },
    el("i", { style: { width: `${100 * Math.max(0, rate(prompt))}%` } }))), el("td.n", {}, prompt.samples ? `${prompt.passed} of ${prompt.samples}` : "not judged"),
  el("td.prompt", { title: prompt.prompt }, prompt.prompt), el("td.quiet", {}, prompt.cut_off ? `${prompt.cut_off} cut off` : ""));
  fill(place, el("div.scroll", { tabindex: 0, role: "region", "aria-label": "Pass rate of each prompt" }, el("table", {},
    el("caption.spoken", {}, "Pass rate of each prompt"), el("tbody", {}, shown.map(line)))),
  sorted.length > shown.length ? el("p.note", {}, `The first ${MOST_LINES} of ${sorted.length}`) : null);
}

const typed = (id) => document.getElementById(id).value.trim();

async function begin() {
  const done = await order(async () => (asked = await api.post(`api/data/${chosen}/scan`, { samples: typed("scan-samples"),
    prompts: typed("scan-prompts"), config: { ...settings(), rewards: [typed("scan-reward")], max_completion_length: typed("scan-tokens") } })));
  poll.nudge();
  if (done) look();
}

async function cancel() {
  await order(() => api.post(`api/commands/${view.scan.command ?? asked.command}/cancel`));
  look();
}

async function keepSome() {
  const alert = parts.scan.querySelector(".keep [role=alert]");
  say(alert, "");
  try {
    await made(await api.post(`api/data/${chosen}/keep`, { low: typed("keep-low"), high: typed("keep-high") }));
  } catch (error) {
    say(alert, api.said(error));
  }
}

/** Does it; true, or the sentence where the scan's state stands. */
async function order(act) {
  try {
    await act();
    return true;
  } catch (error) {
    say(parts.scan.querySelector(".scan-state"), api.said(error));
  }
}
