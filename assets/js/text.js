// A completion's text, set as text: tags quiet, the answer bold. Nothing in it is ever read as markup.

import { el } from "./dom.js";

const TAG = /(<\/?(?:think|answer)>)/;

/** Spans for the text. `oneLine` shows line breaks as ↵, so that a row stays a row. */
export function spans(text, { oneLine = false } = {}) {
  let inAnswer = false;
  return text.split(TAG).filter(Boolean).map((piece) => {
    if (TAG.test(piece)) {
      inAnswer = piece === "<answer>";
      return el("span.tag", {}, piece);
    }
    const shown = oneLine ? piece.replace(/\s*\n\s*/g, " ↵ ") : piece;
    return inAnswer ? el("b", {}, shown) : el("span", {}, shown);
  });
}
