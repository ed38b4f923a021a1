// The Data tab's first half: the source in the rail, its preview, and making a data set of it.

import * as api from "./api.js";
import { el, fill, say, set, whenThere } from "./dom.js";
import { count } from "./format.js";
import * as sets from "./datasets.js";

const ROLES = [["prompt", "prompt"], ["answer", "answer"], ["choices", "choice"], ["system", "system message"], ["keep", "kept for rewards"],
  ["", "left out"]];
const WAIT = 350; // milliseconds after the last key until the preview is asked for
let form = null, kept = { file: null, hub: null }, refused = { file: null, hub: null }, mapping = null, shown = null, timer = null, asked = 0, parts = null;

export function mount() {
  whenThere("lab-data-preview", (place) => {
    parts = { problem: el("p.problem", { role: "alert", hidden: true }), title: el("h3"), summary: el("span.quiet"), table: el("div.data-table"),
      prompts: el("div.data-prompts") };
    fill(place, el("section.panel.data-preview", { "aria-label": "Preview" },
      el("header", {}, parts.title, parts.summary), parts.problem, parts.table, parts.prompts));
    say(parts.title, "Preview");
    whenThere("data-tell", (button) => setTimeout(() => button.click(), 0)); // what the fields hold before anybody changes one
  });
  whenThere("lab-data-file", drawFile);
  whenThere("lab-data-fetch", (place) => fill(place, el("button.small", { type: "button", onclick: fetchFromHub }, "Fetch rows"),
    el("p.note", { role: "status" })));
}

/** Gradio tells what its fields hold, after each change. */
export function told(names, values) {
  const before = form;
  form = Object.fromEntries(names.map((name, i) => [name, values[i]]));
  document.querySelector(".data-rail")?.setAttribute("data-source", form.source);
  const same = before && JSON.stringify(source(before)) === JSON.stringify(source(form));
  if (!same) mapping = null;
  clearTimeout(timer);
  timer = setTimeout(preview, before ? WAIT : 0);
}

/** The Prepare button calls this. */
export async function prepare(names, values) {
  form = Object.fromEntries(names.map((name, i) => [name, values[i]]));
  const from = source(form);
  if (!from) return problem(missing());
  try {
    const made = await api.post("api/data", { source: from, ...(mapping && { mapping }), name: form.name ?? "",
      held_out_share: form.held_out_share === "" ? 0 : form.held_out_share });
    problem(null);
    await sets.made(made);
  } catch (error) {
    problem(api.said(error));
  }
}

export const settings = () => ({ model: form?.model ?? "tiny", system_prompt: form?.system_prompt ?? "" });

function source(values) {
  if (values.source === "typed") return { kind: "typed", text: values.text ?? "" };
  if (values.source === "task") return { kind: "task", task: values.task, rows: values.rows };
  if (values.source === "gym") return { kind: "task", task: values.gym, rows: values.rows };
  return kept[values.source] ? { kind: "kept", token: kept[values.source].token } : null;
}

const missing = () => (form.source === "file" ? "Choose a file first." : "Name a data set and press Fetch rows.");

async function preview() {
  const from = source(form), turn = ++asked;
  if (!from) {
    shown = null;
    problem(refused[form.source] ?? null);
    say(parts.title, "Preview");
    say(parts.summary, missing());
    return fill(parts.table), fill(parts.prompts);
  }
  if (form.source === "gym") say(parts.summary, "drawing problems…");
  try {
    const found = await api.post("api/data/preview", { source: from, ...(mapping && { mapping }), ...settings() });
    if (turn !== asked) return;
    problem(found.problem);
    draw(found);
  } catch (error) {
    if (error.status === undefined) throw error;
    if (turn !== asked) return;
    problem(error.message);
    shown = null;
    say(parts.summary, "");
    fill(parts.table);
    fill(parts.prompts);
  }
}

function problem(sentence) {
  set(parts.problem, { hidden: !sentence });
  say(parts.problem, sentence ?? "");
}

function draw(found) {
  shown = found;
  say(parts.title, found.title);
  const answers = found.with_answer ? `${found.with_answer === found.n_rows ? "all" : found.with_answer} with an answer` : "no answers";
  say(parts.summary, [count(found.n_rows, "row"), found.problem ? null : answers, ...found.notes].filter(Boolean).join(" · "));
  const columns = found.columns;
  const head = el("tr", {}, columns.map((column) => el("th", { scope: "col" }, el("span", {}, column), found.mapped ? roleOf(column, found) : null)));
  const body = found.head.map((row) => el("tr", {}, row.map((cell) => el("td", { title: cell ?? "" }, cell ?? "–"))));
  const focused = document.activeElement?.dataset?.column;
  fill(parts.table, el("div.scroll", { tabindex: 0, role: "region", "aria-label": "First rows" },
    el("table", {}, el("caption.spoken", {}, "First rows as they came"), el("thead", {}, head), el("tbody", {}, body))));
  if (focused) parts.table.querySelector(`select[data-column="${CSS.escape(focused)}"]`)?.focus();
  fill(parts.prompts, found.prompts.length ? [el("h4", {}, "As the model sees it"), found.prompts.map(promptCard)] : null);
}

function promptCard(prompt) {
  const text = prompt.rendered ?? (prompt.messages ?? [{ role: "user", content: prompt.prompt }])
    .map((message) => `${message.role}: ${message.content}`).join("\n\n");
  return el("article.seen", {}, el("pre", {}, text),
    el("p.quiet", {}, prompt.answer === null || prompt.answer === undefined ? "no answer" : ["answer ", el("b", {}, String(prompt.answer))],
      prompt.why_not ? el("span", {}, ` · ${prompt.why_not}`) : null));
}

/** What a column is used for; choosing another use asks for the preview again. */
function roleOf(column, found) {
  const now = found.mapping, role = !now ? "keep" : now.prompt === column ? "prompt" : now.answer === column ? "answer"
    : now.choices.includes(column) ? "choices" : now.system === column ? "system" : now.keep === null || now.keep.includes(column) ? "keep" : "";
  return el("select", { "aria-label": `Use of column ${column}`, "data-column": column, onchange: (event) => use(column, event.target.value) },
    ROLES.map(([value, label]) => el("option", { value, selected: value === role }, label)));
}

function use(column, role) {
  const old = shown.mapping ?? { prompt: null, answer: null, choices: [], system: null, keep: null };
  const keep = (old.keep ?? shown.columns).filter((name) => name !== column);
  mapping = { prompt: old.prompt === column ? null : old.prompt, answer: old.answer === column ? null : old.answer,
    system: old.system === column ? null : old.system, choices: old.choices.filter((name) => name !== column), keep };
  if (role === "choices") mapping.choices = shown.columns.filter((name) => name === column || mapping.choices.includes(name));
  else if (role === "keep") mapping.keep = [...keep, column];
  else if (role) {
    if (mapping[role]) mapping.keep = [...mapping.keep, mapping[role]];
    mapping[role] = column;
  }
  preview();
}

function drawFile(place) {
  const status = el("p.note", { role: "status" }, "JSONL, JSON, CSV or Parquet with a row for each prompt, up to 20 MB and 100,000 rows.");
  const input = el("input", { type: "file", id: "data-file", accept: ".jsonl,.json,.csv,.tsv,.parquet",
    onchange: () => input.files[0] && upload(input.files[0], status) });
  const drop = el("label.drop", { for: "data-file", ondragover: (event) => event.preventDefault(), ondrop: (event) => {
    event.preventDefault();
    if (event.dataTransfer.files[0]) upload(event.dataTransfer.files[0], status);
  } }, el("b", {}, "Choose a file"), el("span.quiet", {}, "or drop it here"), input);
  fill(place, drop, status);
}

async function upload(file, status) {
  kept.file = refused.file = mapping = null;
  say(status, `Reading ${file.name}…`);
  try {
    kept.file = await api.send(`api/data/upload?name=${encodeURIComponent(file.name)}`, file);
    say(status, `${kept.file.title}: ${count(kept.file.rows, "row")}, ${count(kept.file.columns.length, "column")}`);
    preview();
  } catch (error) {
    if (error.status === undefined) throw error;
    say(status, "Nothing of it was taken.");
    refused.file = error.message;
    preview();
  }
}

async function fetchFromHub() {
  const status = document.querySelector("#lab-data-fetch .note");
  kept.hub = refused.hub = mapping = null;
  say(status, `Asking the Hub for ${form.hub_id || "nothing"}…`);
  try {
    kept.hub = await api.post("api/data/fetch", { id: form.hub_id ?? "", config: form.hub_config ?? "", split: form.hub_split ?? "",
      rows: form.hub_rows ?? "" });
    say(status, `${count(kept.hub.rows, "row")} were taken.`);
    preview();
  } catch (error) {
    if (error.status === undefined) throw error;
    say(status, "");
    refused.hub = error.message;
    preview();
  }
}
