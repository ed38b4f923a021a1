// The worked example without a model: four students debate, a judge gives each a reward. Drag a ring or type a number:
// every advantage moves at once, because each is measured against the others.

import { draw as drawArithmetic, statistics } from "./arithmetic.js";
import { drawBar, makeBar } from "./axis.js";
import { el, fill, say, set, whenThere } from "./dom.js";
import { direction, fixed, signed } from "./format.js";

const STUDENTS = [
  { name: "Aisyah", did: "clear case, three sources, answers the other side", reward: 1.0 },
  { name: "Ben", did: "clear case, one source missing", reward: 0.9 },
  { name: "Chen", did: "talked about something else", reward: 0.0 },
  { name: "Devi", did: "clear case, good closing", reward: 1.0 },
];
const LOW = 0, HIGH = 1, FINE = 0.05;
const SCALE = { low: LOW, high: HIGH, at: (value) => 100 * (value - LOW) / (HIGH - LOW) };

export function mount() {
  whenThere("lab-debate", (place) => {
    const rewards = STUDENTS.map((student) => student.reward);
    const panel = el("div.arithmetic");
    const meanLabel = el("span.mean-label"), line = el("i.mean-line", { "aria-hidden": "true" });
    let chosen = 0;
    const rows = STUDENTS.map((student, i) => makeStudent(student, i, { change, choose: (n) => ((chosen = n), redraw()) }));
    fill(place, el("section.debate", { "aria-label": "Debate example" },
      el("header", {}, el("h3", {}, "Four students debate"),
        el("p", {}, "No model needed: drag a ring or type a reward. Every advantage moves, for each is measured against the others."),
        el("button.small", { type: "button", onclick: reset }, "Back to the start")),
      el("div.debate-body", {},
        el("div.students", {}, el("div.scale", {}, el("div.ends", {}, el("small.low", {}, "0"), meanLabel, el("small.high", {}, "1"))),
          el("div.body", {}, rows.map((row) => row.node), el("div.overlay", { "aria-hidden": "true" }, line))),
        panel)));
    redraw();

    function change(i, value) {
      rewards[i] = Math.min(HIGH, Math.max(LOW, value));
      chosen = i;
      redraw();
    }

    function reset() {
      STUDENTS.forEach((student, i) => (rewards[i] = student.reward));
      chosen = 0;
      redraw();
    }

    function redraw() {
      const s = statistics(rewards);
      say(meanLabel, `mean ${fixed(s.mean, 3)}`);
      set(meanLabel, { style: { "--share": SCALE.at(s.mean) } });
      set(line, { style: { left: `${SCALE.at(s.mean)}%` } });
      rows.forEach((row, i) => row.update(rewards[i], s.mean, s.advantages[i], i === chosen));
      drawArithmetic(panel, { rewards, place: chosen, name: STUDENTS[chosen].name, what: "student" });
    }
  });
}

function makeStudent(student, i, { change, choose }) {
  const axis = makeBar(), advantage = el("span.adv");
  const typed = el("input", { type: "text", inputmode: "decimal", "aria-label": `Reward of ${student.name}`, oninput: () => {
    const value = Number(typed.value.replace(",", ".").trim() || "x");
    if (Number.isFinite(value)) change(i, value);
  }, onblur: () => (typed.value = shown) });
  const handle = axis.querySelector(".ring");
  set(handle, { tabindex: 0, role: "slider", "aria-label": `Reward of ${student.name}`, "aria-valuemin": LOW, "aria-valuemax": HIGH });
  set(axis, { role: "group" });
  let shown = "";
  const at = (event) => {
    const box = axis.getBoundingClientRect();
    return Math.round((LOW + ((HIGH - LOW) * (event.clientX - box.left)) / box.width) / FINE) * FINE;
  };
  axis.addEventListener("pointerdown", (event) => {
    axis.setPointerCapture(event.pointerId);
    handle.focus({ preventScroll: true });
    change(i, at(event));
    event.preventDefault();
  });
  axis.addEventListener("pointermove", (event) => axis.hasPointerCapture(event.pointerId) && change(i, at(event)));
  handle.addEventListener("keydown", (event) => {
    const by = { ArrowRight: FINE, ArrowUp: FINE, ArrowLeft: -FINE, ArrowDown: -FINE }[event.key];
    const to = { Home: LOW, End: HIGH }[event.key] ?? (by === undefined ? undefined : value + by);
    if (to === undefined) return;
    change(i, Math.round(to * 100) / 100);
    event.preventDefault();
  });
  let value = student.reward;
  const node = el("article.student", { onfocusin: () => choose(i), onpointerenter: () => choose(i) },
    el("b.who", {}, student.name), el("span.did", {}, student.did), typed, axis, advantage);
  return { node, update(reward, mean, adv, isChosen) {
    value = reward;
    shown = Number(reward.toFixed(2)) === Number(reward.toFixed(1)) ? reward.toFixed(1) : reward.toFixed(2);
    if (document.activeElement !== typed) typed.value = shown;
    drawBar(axis, SCALE, reward, mean, adv);
    set(handle, { "aria-valuenow": shown });
    set(node, { "data-student": student.name, "data-reward": reward, "data-advantage": adv, "data-way": direction(adv) });
    node.classList.toggle("pointed", isChosen);
    fill(advantage, el(`i.tri.${direction(adv)}`), signed(adv));
  } };
}
