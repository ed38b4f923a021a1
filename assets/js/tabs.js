// Gradio's tabs, remembered in the address.

import * as url from "./url.js";

export function mount() {
  document.addEventListener("click", (event) => {
    const tab = event.target.closest?.("[role=tab][data-tab-id]");
    if (tab) url.write({ tab: tab.dataset.tabId });
  });
  const wanted = url.read().tab;
  if (wanted && wanted !== "lab") choose(wanted);
}

/** Opens a tab as soon as Gradio has put it there and answers to clicks. */
export function choose(name, tries = 100) {
  const button = document.querySelector(`[role=tab][data-tab-id="${CSS.escape(name)}"]`);
  if (button?.getAttribute("aria-selected") === "true") return url.write({ tab: name });
  button?.click();
  if (tries) setTimeout(choose, 100, name, tries - 1);
}

export const current = () => document.querySelector("[role=tab][data-tab-id][aria-selected=true]")?.dataset.tabId ?? "lab";
