// Under each setting with names to choose from: what the chosen one does. Advanced settings are built when they are opened.

import * as api from "./api.js";
import { el, say, whenThere } from "./dom.js";
import * as forms from "./forms.js";

const notes = new Map();
let meanings = {};

export function mount() {
  forms.onChange((side) => side === "train" && notes.forEach(draw));
  whenThere("train-tell", async () => {
    meanings = (await api.get("api/choices").catch(() => ({ choices: {} }))).choices;
    for (const name of Object.keys(meanings)) whenThere(`train-${name}`, (field) => {
      notes.set(name, field.appendChild(el("p.meaning")));
      draw(notes.get(name), name);
    });
  });
}

function draw(note, name) {
  say(note, meanings[name][forms.lastKnown("train")[name]] ?? "");
}
