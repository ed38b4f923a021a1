// Around the editor: the function's name and versions, import, export, freeze; below it what reading or running the source showed.

import * as api from "./api.js";
import { el, fill, say, set, whenThere } from "./dom.js";
import { count, fixed } from "./format.js";
import { begin, on, state } from "./reward_state.js";
import * as tabs from "./tabs.js";

const LIMIT = { call: 2, each: 0.02 }; // seconds of computing, as lab.rewards.sandbox.Limits
let act = null, head = null, below = null, frozen = null, refused = null;

export function mount(actions) {
  act = actions;
  whenThere("lab-reward-head", (place) => {
    const file = el("input", { type: "file", accept: ".py,text/x-python", hidden: true, "aria-label": "Reward file",
      onchange: take });
    head = { name: el("b.name"), load: el("select", { "aria-label": "Start from", onchange: open }),
      freeze: el("button.small.primary", { type: "button", onclick: freeze }),
        note: el("p.note", { role: "status", hidden: true }) };
    fill(place, el("header.reward-head", {}, head.name, el("span.gap"), head.load,
      el("button.small", { type: "button", onclick: () => file.click() }, "Import"), file,
      el("button.small", { type: "button", onclick: download }, "Export"), head.freeze), head.note);
    drawHead();
  });
  whenThere("lab-reward-check", (place) => {
    below = { errors: el("div.reward-errors", { role: "alert" }), status: el("p.reward-status", { role: "status" }),
      run: el("button.small", { type: "button", title: "Ctrl+S or ⌘S", onclick: () => act.save() }, "Save and score"),
      given: el("details.given", {}, el("summary", {}, "What the function is given"), el("div")),
        printed: el("details.given", { hidden: true }), mark: el("style") };
    fill(place, below.errors, el("div.reward-run", {}, below.run, below.status), below.given, below.printed, below.mark);
    drawBelow();
  });
  on("start", () => (drawHead(), drawBelow()));
  ["source", "busy", "result"].forEach((event) => on(event, () => (drawHead(), drawBelow())));
}

const nameOf = () => state.check?.name ?? "reward";

function drawHead() {
  if (!head) return;
  say(head.name, nameOf());
  const versions = state.start?.versions ?? [], own = versions.filter((v) => v.name === nameOf());
  const next = Math.max(0, ...own.map((v) => v.version)) + 1;
  say(head.freeze, `Freeze as ${nameOf()}@${next}`);
  set(head.freeze, { "aria-disabled": String(!state.check?.ok) });
  const key = JSON.stringify([versions.map((v) => v.label), state.start?.templates.map((t) => t.name),
    Boolean(state.start?.previous)]);
  if (head.load.dataset.key === key) return;
  head.load.dataset.key = key;
  fill(head.load, el("option", { value: "" }, "Start from…"),
    el("optgroup", { label: "Templates" }, (state.start?.templates ?? []).map((t) => el("option",
      { value: `template ${t.name}` }, t.title))),
    versions.length ? el("optgroup", { label: "Frozen" },
      versions.map((v) => el("option", { value: `version ${v.label}` }, v.label))) : null,
    state.start?.previous ? el("optgroup", { label: "Before" }, el("option", { value: "previous" }, "What stood here before"))
      : null);
}

async function open() {
  const [kind, name] = head.load.value.split(" ");
  head.load.value = "";
  if (kind === "template") await act.put(state.start.templates.find((t) => t.name === name).source, true);
  else if (kind === "previous") await act.put(state.start.previous, true);
  else if (kind === "version") await act.put((await api.get(`api/rewards/versions/${encodeURIComponent(name)}`)).source, true);
  else return;
  drawHead();
  act.save();
}

async function take(event) {
  const file = event.target.files[0];
  event.target.value = "";
  if (!file) return;
  if (file.size > 100_000) return tellNote(`${file.name} has ${file.size.toLocaleString("en")} bytes; at most 100,000 are accepted.`, true);
  await act.put(await file.text(), true);
  act.save();
}

function download() {
  const link = el("a", { href: URL.createObjectURL(new Blob([state.source], { type: "text/x-python" })),
    download: `${nameOf()}.py` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function freeze() {
  if (head.freeze.getAttribute("aria-disabled") === "true") return;
  try {
    frozen = await api.post("api/rewards/versions", { source: state.source });
    await begin();
    document.getElementById("reward-offer")?.click();
    tellNote(null);
    fill(head.note, el("b", {}, frozen.label), " is frozen: it never changes, and every run that uses it keeps a copy. ",
      el("button.link", { type: "button", onclick: train }, `Train with ${frozen.label}`));
    set(head.note, { hidden: false });
  } catch (error) {
    tellNote(error.message, true);
  }
}

function train() {
  document.getElementById("reward-use").click();
  tabs.choose("train");
}

/** For the Train form: the frozen reward beside the functions that have a weight here. */
export function chosen() {
  const others = state.others.filter((written) => state.weights[written]);
  return [[frozen.label, ...others], [state.weights.mine ?? 1, ...others.map((written) => state.weights[written])].join(", ")];
}

/** For every field that asks for rewards: built-in and frozen ones. */
export async function choices() {
  const known = state.start ?? (await api.get("api/rewards").catch(() => null));
  return known && [...known.all, ...known.versions.map((v) => v.label)].map((name) => [name, name]);
}

function tellNote(sentence, bad = false) {
  refused = bad ? sentence : null;
  set(head.note, { hidden: !sentence, "data-bad": bad });
  if (sentence) say(head.note, sentence);
}

function drawBelow() {
  if (!below) return;
  const failures = fresh() ? state.result.functions[0].failures : [];
  const problems = state.check?.problems ?? [], errors = problems.filter((p) => p.severity === "error");
  const notes = problems.filter((p) => p.severity === "note");
  // what running it showed says more than what reading it did
  const lines = failures.length ? failures.map((f) => [f.line, f, f.message]) : errors.map((p) => [p.line, null, p.message]);
  const key = JSON.stringify([lines.map(([line, f, text]) => [line, text, f?.rows]), notes, state.problem]);
  if (below.errors.dataset.key !== key) {
    below.errors.dataset.key = key;
    fill(below.errors, state.problem ? el("p.reward-error", {}, state.problem) : null,
      lines.map(([line, failure, text]) => drawError(line, failure, text)), notes.map((note) => el("p.note", {}, note.message)));
  }
  markLines(lines.map(([line]) => line).filter(Boolean));
  set(below.run, { "aria-disabled": String(state.busy) });
  say(below.status, statusLine(failures));
  set(below.status, { "data-busy": state.busy });
  drawGiven();
}

const fresh = () => state.result && state.saved === state.source && state.result.check?.name === state.check?.name;

function drawError(line, failure, text) {
  const rows = failure?.rows, where = [line ? `Line ${line}` : null, rows ? `row${rows.length > 1 ? "s" : ""} ${listed(rows)}`
    : null].filter(Boolean).join(", ");
  const rest = rows ? state.result.functions[0].values.length - rows.length : 0;
  return el("div.reward-error", { "data-line": line ?? "" }, el("p", {}, where ? el("b", {}, `${where}. `) : null, text),
    rows ? el("p", {}, `${rows.length === 1 ? "That completion has" : "Those completions have"} no score; the other ${rest} are scored.`) : null,
    failure?.traceback ? el("details", {}, el("summary", {}, "Details"), el("pre", {}, failure.traceback)) : null);
}

const listed = (rows) => rows.slice(0, 6).join(", ") + (rows.length > 6 ? ` and ${rows.length - 6} more` : "");

/** Tints lines of the editor. Only numbers reach the style. */
function markLines(lines) {
  const rules = [...new Set(lines.map(Number))].filter(Number.isInteger).map((line) =>
    `#reward-code .cm-content > .cm-line:nth-child(${line}) { background: var(--bad-tint) !important; box-shadow: inset 3px 0 var(--bad); }`);
  if (below.mark.textContent !== rules.join("\n")) below.mark.textContent = rules.join("\n");
}

function statusLine(failures) {
  const rows = state.result?.functions[0].values.length ?? 128, limit = LIMIT.call + LIMIT.each * rows;
  if (state.busy) return `Scoring… a call may compute for ${fixed(limit, 1)} s; the page and the run go on meanwhile.`;
  if (!state.result) return "";
  if (state.saved !== state.source
    || state.result.source !== state.source) return `${state.saved === state.source ? "Draft kept. " : ""}Changed since it was scored: save to score it again.`;
  const failed = failures.reduce((total, f) => total + (f.rows ? f.rows.length : rows), 0);
  const ms = 1000 * state.result.functions[0].seconds;
  return [failed ? `${failed} of ${rows} failed` : `${rows} scored`, `${fixed(ms, ms < 10 ? 1 : 0)} ms for ${rows}`,
    `${fixed(state.took, 2)} s from save to result`,
    `limit ${fixed(limit, 1)} s per call`].join(" · ");
}

function drawGiven() {
  const columns = state.result?.on.columns ?? state.start?.columns ?? [], printed = state.result?.functions[0].printed ?? "";
  const key = JSON.stringify([columns, state.start?.sandbox.sentence]);
  if (below.given.dataset.key !== key) {
    below.given.dataset.key = key;
    fill(below.given.lastChild,
      el("dl", {}, row("prompts", "the chat of each completion, as messages"),
        row("completions", 'messages: completion[0]["content"] is the text. With completions: list[str] they arrive as text'),
        columns.map((name) => row(name, "column of the task's rows, one value per completion")),
          row("completion_ids", "token ids of each completion"),
        row("trainer_state", "global_step, max_steps, epoch"), row("log_extra(column, values)", "a further column of the table"),
        row("log_metric(name, value)", "a curve of your own")),
      el("p", {}, "Return one number or None (not applicable) per completion. Everything is passed by name; ",
        el("code", {}, "**kwargs"), " takes what you do not name."),
      el("p", {}, "In the editor Tab moves on and Ctrl+] indents."));
    const words = state.start?.sandbox.sentence;
    document.querySelector(".reward-lock")?.remove();
    if (words) below.given.after(el("p.reward-lock.note", { "data-level": state.start.sandbox.level }, words));
  }
  set(below.printed, { hidden: !printed });
  if (printed) fill(below.printed, el("summary", {}, `Printed, ${count(printed.trimEnd().split("\n").length, "line")}`),
    el("pre", {}, printed));
}

const row = (name, text) => [el("dt", {}, el("code", {}, name)), el("dd", {}, text)];
