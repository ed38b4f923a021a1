// Names Gradio's fields by their label alone; the help becomes their description. Gradio puts both into the name.

import { set } from "./dom.js";

export function mount() {
  const name = () => document.querySelectorAll(".rail .block label:not([data-named])").forEach(nameField);
  new MutationObserver(() => (name(), nameRemovals(), keepListsOut())).observe(document.documentElement, { childList: true, subtree: true });
  name();
}

/** A list of choices is gone as soon as its field is left: as a tab stop of the browser's it would take the focus with it. */
function keepListsOut() {
  document.querySelectorAll("ul.option-list:not([tabindex])").forEach((list) => set(list, { tabindex: -1 }));
}

/** Gradio calls the crosses of a list "Remove 0", "Remove 1"; here they say what they remove. */
function nameRemovals() {
  for (const cross of document.querySelectorAll(".rail .token-remove")) {
    const what = cross.closest(".token")?.textContent.trim();
    set(cross, { "aria-label": what ? `Remove ${what}` : "Remove all", title: what ? `Remove ${what}` : "Remove all" });
  }
}

function nameField(label) {
  const title = label.querySelector("[data-testid=block-info]"), field = label.querySelector("input, textarea"),
    help = label.querySelector(".info-text");
  if (!title || !field) return;
  label.dataset.named = "";
  set(field, { "aria-label": title.textContent.trim(), "aria-description": help?.textContent.trim() ?? null });
}
