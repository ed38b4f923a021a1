// The header strip: what runs on what, how far it is, and the run buttons. The same on every tab.

import { el, fill, icon, say, set, whenThere } from "./dom.js";
import { count, duration, fixed, gigabytes, params } from "./format.js";
import * as poll from "./poll.js";
import * as runs from "./runs.js";
import * as sample from "./sample.js";
import { toggle as themeToggle } from "./theme.js";

const WORDS = { idle: "Idle", loading: "Loading", sampling: "Sampling", training: "Training", paused: "Paused",
  finished: "Finished", failed: "Failed" };

export function mount() {
  whenThere("lab-strip", (place) => {
    const cells = makeCells();
    const buttons = makeButtons();
    const strip = el("header.strip", { "data-state": "idle", "data-contact": "connecting" },
      el("span.brand", {}, "GRPO Lab"),
      el("dl.cells", {}, Object.values(cells).map((cell) => cell.box)),
      buttons.box,
      el("p.spoken", { role: "status" }),
    );
    fill(place, strip);
    placeTools();
    const draw = () => redraw(strip, cells, buttons);
    ["live", "contact", "steps"].forEach((name) => poll.on(name, draw));
    draw();
  });
}

function makeCells() {
  const cell = (name, label) => {
    const value = el("dd");
    return { label: el("dt", {}, label), value, box: null, name };
  };
  const cells = { model: cell("model", "model"), device: cell("device", "device"), memory: cell("memory", "memory"),
    phase: cell("phase", "phase"),
    step: cell("step", "step"), reward: cell("reward", "reward, 4-step mean"), kl: cell("kl", "KL, smoothed"),
      time: cell("time", "time left") };
  for (const each of Object.values(cells)) each.box = el(`div.cell.${each.name}`, {}, each.label, each.value);
  cells.model.value.append((cells.model.name = el("span")), (cells.model.path = el("span.chip.note", { hidden: true }, "plain path")));
  cells.phase.value.append(el("i.dot", { "aria-hidden": "true" }), (cells.phase.word = el("b")));
  cells.step.value.append((cells.step.now = el("b")), (cells.step.of = el("span")));
  cells.reward.value.append((cells.reward.now = el("b")), (cells.reward.spark = spark()));
  return cells;
}

function makeButtons() {
  const button = (name, label, picture, act) =>
    el(`button.run-${name}`, { type: "button", "data-run": name, onclick: () => act() }, icon(picture), el("span", {}, label));
  const made = {
    train: button("train", "Train", "play", runs.train),
    pause: button("pause", "Pause", "pause", () => runs.command("pause")),
    step: button("step", "Step", "step", () => runs.steps(1)),
    more: button("more", "10 more", "none", () => runs.steps(10)),
    stop: button("stop", "Stop", "stop", () => runs.command("stop")),
  };
  const onPhone = el("button.only-narrow.run-sample", { type: "button", onclick: () => sample.press() }, "Sample");
  return { ...made, box: el("div.runs", { role: "group", "aria-label": "Run" }, onPhone, Object.values(made)) };
}

function redraw(strip, cells, buttons) {
  const { phase, engine, run, contact } = poll.state;
  const info = engine.info ?? {};
  set(strip, { "data-state": phase, "data-contact": contact, "data-kind": run?.kind ?? null, "data-run": run?.id ?? null,
    "data-step": run?.step ?? null });
  say(cells.model.name, [info.model ?? run?.model ?? "–", params(info.params)].filter(Boolean).join(" · "));
  set(cells.model.path, { hidden: !info.path?.startsWith("Plain path") });
  set(cells.model.box, { title: info.path ?? null });
  say(cells.device.value, info.device ? [deviceName(info.device),
    info.threads ? count(info.threads, "thread") : ""].filter(Boolean).join(" · ") : "–");
  say(cells.memory.value, info.rss ? `${gigabytes(info.rss)} of ${gigabytes(info.memory_total)} GB` : "–");
  say(cells.phase.word, phaseWord());
  say(cells.phase.label, waits() ?? "phase");
  set(cells.phase.box, { title: waits() });
  say(cells.step.now, run ? String(run.step) : "–");
  say(cells.step.of, run?.max_steps ? ` of ${run.max_steps}` : "");
  say(cells.reward.now, fixed(poll.newest("reward", "smooth"), 2));
  drawSpark(cells.reward.spark, poll.series("reward", "smooth"));
  say(cells.kl.value, fixed(poll.newest("kl", "smooth"), 3));
  drawTime(cells.time);
  drawButtons(buttons);
  say(strip.querySelector(".spoken"), spokenState());
}

function phaseWord() {
  const { phase, run, contact, engine } = poll.state;
  if (contact === "lost") return "No contact";
  if (phase === "loading" && engine.state === "starting") return "Starting";
  if (run?.kind === "recorded" && phase === "idle") return "Recorded";
  if (run?.status === "interrupted" && phase === "failed") return "Interrupted";
  if (run?.status === "stopped" && phase === "finished") return "Stopped";
  return runs.wished() ?? WORDS[phase] ?? phase;
}

function spokenState() {
  const { run, contact, engine } = poll.state;
  if (contact === "lost") return "No answer from the lab. Trying again.";
  if (engine.state === "dead") return engine.sentence;
  return [phaseWord(), run?.error ?? waits()].filter(Boolean).join(": ");
}

/** What keeps the scores away, where they come from elsewhere. */
function waits() {
  const { phase, engine, contact } = poll.state, on = engine.info?.awaits;
  return on && contact === "live" && ["training", "sampling"].includes(phase) ? `waits for ${on}` : null;
}

function drawTime(cell) {
  const { run, phase } = poll.state;
  const over = run && ["finished", "stopped"].includes(run.status);
  say(cell.label, over || run?.kind === "recorded" ? "took" : "time left");
  if (!run || !poll.state.steps.rows.length) return say(cell.value, "–");
  if (over || run.kind === "recorded") return say(cell.value, duration(runs.elapsed()));
  const left = runs.timeLeft();
  say(cell.value, left === null ? "–" : phase === "training" ? `about ${duration(left)}` : `${duration(left)} if resumed`);
}

function drawButtons(buttons) {
  const can = runs.possible();
  for (const [name, why] of Object.entries(can)) {
    const node = buttons[name];
    set(node, { "aria-disabled": why === true ? null : "true", title: why !== true ? why : name === "train" ? runs.trainHint() : name === "more" ? runs.moreHint() : null,
      "data-state": why === true ? "ready" : "off" });
  }
  set(buttons.pause, { "data-filled": poll.state.phase === "training" ? true : null });
}

function deviceName(device) {
  return { cpu: "CPU", mps: "MPS" }[device] ?? device.replace("cuda", "GPU");
}

/** The tab bar's right end: a promise, and the theme. */
function placeTools() {
  const tools = el("div.tools", {}, el("span.promise", {}, "Safe to close this tab: the run goes on"), railToggle(), themeToggle());
  document.getElementById("lab-strip").append(tools);
}

/** On a narrow screen the form is folded away until it is wanted. */
function railToggle() {
  const button = el("button.small.only-narrow", { type: "button", "aria-expanded": "false", onclick: () => {
    const open = document.body.toggleAttribute("data-rail");
    set(button, { "aria-expanded": String(open) });
  } }, "Settings");
  return button;
}

function spark() {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries({ viewBox: "0 0 60 16", width: 60, height: 16, role: "img",
    "aria-label": "Course of the reward" })) svg.setAttribute(name, value);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  svg.append(line);
  return svg;
}

function drawSpark(svg, values) {
  const known = values.map((value, i) => [i, value]).filter(([, value]) => value !== null);
  const last = Math.max(1, values.length - 1);
  const every = Math.ceil(known.length / 60) || 1;
  const high = Math.max(1, ...known.map(([, value]) => value)), low = Math.min(0, ...known.map(([, value]) => value));
  const points = known.filter((_, i) => i % every === 0 || i === known.length - 1)
    .map(([i, value]) => `${(1 + (58 * i) / last).toFixed(1)},${(15 - (14 * (value - low)) / (high - low)).toFixed(1)}`);
  svg.firstChild.setAttribute("points", points.join(" "));
}
