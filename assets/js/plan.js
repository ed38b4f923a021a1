// The plan of a run before it starts: what the Train form adds up to, and where it is.

import * as api from "./api.js";
import { el, fill, say, set, whenThere } from "./dom.js";
import { count, duration, fixed, gigabytes, shortTime } from "./format.js";
import * as poll from "./poll.js";
import * as runs from "./runs.js";

const GOAL = 0.9, PAUSE = 300; // milliseconds of no change to the form before the lab is asked

let presets = null, asking = null, asked = 0, settings = null, measured = null;

export function mount() {
  whenThere("lab-progress", (place) => {
    const now = el("b.step-now"), of = el("span"), bar = el("i"), mark = el("div.marks"), elapsed = el("span"), left = el("b"),
      name = el("span.quiet"), kind = el("span.chip.recorded", {}, "recorded"), goal = el("span.chip.goal");
    const track = el("div.track", { role: "progressbar", "aria-label": "Steps done", "aria-valuemin": 0 }, bar, mark);
    fill(place, el("section.progress.panel", {}, el("p", {}, now, " ", of), track, elapsed, left, goal, kind, name));
    const draw = () => {
      const { run, phase } = poll.state, total = run?.max_steps ?? 0,
        over = run && !["training", "loading", "queued", "paused"].includes(run.status);
      say(now, run ? `Step ${run.step}` : "No run yet");
      say(of, total ? `of ${total}` : "");
      set(track, { "aria-valuemax": total || null, "aria-valuenow": run?.step ?? 0 });
      set(bar, { style: { width: `${total ? Math.min(100, (100 * run.step) / total) : 0}%` } });
      const spent = runs.elapsed(), rest = runs.timeLeft();
      say(elapsed, spent === null ? "" : `${duration(spent)} ${over ? "in all" : "elapsed"}`);
      say(left, over || rest === null || run?.step >= total ? "" : phase === "training" ? `about ${duration(rest)} left`
        : `${duration(rest)} left when resumed`);
      const reached = goalStep();
      set(goal, { hidden: reached === null });
      say(goal, reached === null ? "" : `mean reward ${fixed(GOAL * run.most, 2)} reached at step ${reached}`);
      set(kind, { hidden: run?.kind !== "recorded" });
      say(name, run ? [run.name, run.attempt > 1 ? `attempt ${run.attempt}` : ""].filter(Boolean).join(", ")
        : "Train starts the settings at the left.");
      document.querySelector(".progress").toggleAttribute("data-recorded", run?.kind === "recorded");
    };
    ["live", "steps"].forEach((event) => poll.on(event, draw));
    draw();
  });
  whenThere("lab-plan", (place) => {
    fill(place, el("div.plan", {}, el("b", {}, "Plan"), el("p.sum"), el("p.note.steps"), el("div.cost", { "aria-live": "polite" })));
    whenThere("train-max_steps", () => setTimeout(() => settings ?? show(readForm()), 0)); // unless a kept form has spoken already
    poll.on("live", askAgain);
  });
  whenThere("lab-preset-note", () => presetNote("first-run"));

}

/** The first step at which the mean of four steps passed nine tenths of what the functions give if each gives 1. */
function goalStep() {
  const goal = GOAL * (poll.state.run?.most ?? 0);
  if (!goal) return null;
  const place = poll.series("reward", "smooth").findIndex((value, i) => value >= goal && i >= 3);
  return place < 0 ? null : poll.state.steps.rows[place][0];
}

/** The form changed: say what it adds up to, and ask what that takes on this machine. */
export function show(form) {
  const place = document.querySelector("#lab-plan .sum");
  if (!place) return;
  const { preset, ...filled } = form;
  settings = "model" in form ? filled : null; // null: as the form begins
  clearTimeout(asking);
  asking = setTimeout(ask, PAUSE);
  const [prompts, size, steps] = [form.prompts_per_step, form.num_generations, form.max_steps].map(Number),
    uses = Number(form.num_iterations ?? 1);
  if (![prompts, size, steps, uses].every((number) => Number.isInteger(number) && number >= 1)) { // what is wrong is said below
    return [place, document.querySelector("#lab-plan .steps")].forEach((node) => fill(node));
  }
  // a step is one update, as in TRL: with several uses a batch of completions serves as many steps
  fill(place, el("b", {}, `${count(prompts, "prompt")} × ${count(size, "completion")}`), ` = ${prompts * size} `,
    uses === 1 ? "per step" : `for every ${uses} steps`);
  say(document.querySelector("#lab-plan .steps"),
    `${steps.toLocaleString("en")} ${steps === 1 ? "step" : "steps"}, ${(Math.ceil(steps / uses) * prompts * size).toLocaleString("en")} completions, ` +
    (uses === 1 ? "one update each" : `each used in ${uses} updates`));
}

/** The engine has measured the machine, or a run its first steps: the plan is another one now. */
function askAgain() {
  const news = `${Boolean(poll.state.engine.info.machine)} ${poll.state.run?.info?.plan?.measured?.sentence ?? ""}`;
  if (news === measured) return;
  measured = news;
  clearTimeout(asking);
  asking = setTimeout(ask, PAUSE);
}

async function ask() {
  const number = ++asked, place = document.querySelector("#lab-plan .cost");
  if (!place) return;
  const view = await api.post("api/plan", settings ? { config: settings } : {}).catch((error) => ({ error: error.message }));
  if (number === asked) draw(place, view); // a slow answer must not replace a newer one
}

function draw(place, view) {
  if (view.error) return fill(place, el("p.note", {}, view.error));
  const plan = view.plan;
  fill(place,
    view.cautions.map((sentence) => el("p.caution", { role: "note" }, el("b", {}, "Note: "), sentence)),
    plan && el("p.need", {}, el("b", {}, `${gigabytes(plan.peak)} GB`), " at the peak",
      plan.seconds ? [", ", el("b", {}, shortTime(plan.seconds)), " a step at most"] : ""),
    plan && bar(view.parts, plan),
    plan && plan.fits === false && el("p.caution", { role: "note" }, el("b", {}, "Too large: "), plan.sentence),
    view.note && el("p.note", {}, view.note),
    plan && el("details.parts", {}, el("summary", {}, "Memory by part"),
      el("table", {}, el("tbody", {}, view.parts.map((part) => el("tr", {}, el("th", { scope: "row" }, part.title),
        el("td", {}, `${gigabytes(part.bytes)} GB`))))),
      el("p.note", {}, plan.sentence), view.format && el("p.note", {}, view.format)),
    view.beside && el("p.beside", {}, el("b", {}, `${view.beside.run}: `), view.beside.sentence, " Plans of this model go by that."));
}

/** How much of the memory there is the plan takes. */
function bar(parts, plan) {
  const share = Math.min(1, plan.peak / plan.memory);
  return el("div.memory", { role: "img", "aria-label": `${Math.round(100 * share)} % of the memory within reach` },
    el("i", { style: { width: `${100 * share}%` } }), el("span", {}, `of ${gigabytes(plan.memory)} GB within reach`));
}

/** What the form holds at the start, before Gradio has told of any change. */
function readForm() {
  const names = ["prompts_per_step", "num_generations", "max_steps", "num_iterations"];
  return Object.fromEntries(names.map((name) => [name, document.querySelector(`#train-${name} input`)?.value]));
}

export async function presetNote(name) {
  presets ??= (await api.get("api/presets").catch(() => ({ presets: [] }))).presets;
  const found = presets.find((each) => each.name === name), place = document.getElementById("lab-preset-note");
  if (found && place) fill(place, el("p.note", { title: found.source }, found.why));
}
