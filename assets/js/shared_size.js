// The group size is one setting of both forms: what it makes of a training step, said where it is set in the Lab form.

import * as api from "./api.js";
import { el, fill, say, set, whenThere } from "./dom.js";
import { gigabytes, shortTime } from "./format.js";
import * as forms from "./forms.js";
import * as poll from "./poll.js";

const PAUSE = 300; // milliseconds of no change before the lab is asked
const FIRST = "first-run"; // what the Train form begins with

let note = null, timer = null, asked = 0, key = "", presets = null, measured = false;

const isMeasured = () => Boolean(poll.state.engine.info?.machine);

export function mount() {
  whenThere("lab-shared-size", (place) => {
    fill(place, (note = el("p.note", { role: "status", hidden: true })));
    forms.onChange(later);
    poll.on("live", () => isMeasured() !== measured && later());
    later();
  });
}

function later() {
  clearTimeout(timer);
  timer = setTimeout(look, PAUSE);
}

/** Asks for the plan of a step as it is set and with the preset's group size, all else alike. */
async function look() {
  presets ??= (await api.get("api/presets").catch(() => null))?.presets ?? null;
  const { preset: name, ...train } = { preset: FIRST, ...forms.lastKnown("train") };
  const chosen = presets?.find((each) => each.name === name), usual = Number(chosen?.form.num_generations);
  const config = { ...chosen?.form, ...train }, size = Number(config.num_generations);
  const now = JSON.stringify([config, usual, (measured = isMeasured())]);
  if (now === key) return;
  key = now;
  if (!(usual >= 2 && size >= 2) || size === usual) return set(note, { hidden: true });
  const number = ++asked;
  const plans = await Promise.all([size, usual].map((each) =>
    api.post("api/plan", { config: { ...config, num_generations: each } }).then((view) => view.plan, () => null)));
  if (number !== asked) return; // a slow answer must not replace a newer one
  say(note, `Train uses ${size} too: ${difference(size, usual, Number(config.prompts_per_step), ...plans)}`);
  set(note, { hidden: false });
}

function difference(size, usual, prompts, own, other) {
  if (own?.fits === false) return own.sentence;
  if (!own?.seconds || !other?.seconds) return `${size * prompts} completions in a step; with ${usual}, the preset's, it is ${usual * prompts}.`;
  const memory = own.peak > 1.1 * other.peak ? ` and ${gigabytes(own.peak)} GB` : "";
  return `a step takes at most ${shortTime(own.seconds)}${memory}; with ${usual}, the preset's, `
    + `${shortTime(other.seconds)}${memory && ` and ${gigabytes(other.peak)} GB`}.`;
}
