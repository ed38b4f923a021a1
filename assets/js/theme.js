// Light or dark: the system's choice until the person chooses; the choice stays in this browser.

import { el, set } from "./dom.js";

const listeners = [];

export function current() {
  return document.documentElement.dataset.theme === "dark" ? "dark" : "light";
}

export function onChange(listener) {
  listeners.push(listener);
}

export function toggle() {
  const buttons = ["light", "dark"].map((theme) => el("button",
    { type: "button", "data-theme-choice": theme, onclick: () => choose(theme) }, theme === "light" ? "Light" : "Dark"));
  const box = el("div.segment", { role: "group", "aria-label": "Theme" }, buttons);
  const mark = () => buttons.forEach((button) => set(button, { "aria-pressed": String(button.dataset.themeChoice === current()) }));
  onChange(mark);
  mark();
  return box;
}

function choose(theme) {
  localStorage.setItem("lab-theme", theme);
  document.documentElement.dataset.theme = theme;
  document.body.classList.toggle("dark", theme === "dark");
  listeners.forEach((listener) => listener(theme));
}
