// Talks to the lab's own routes, wherever the page is mounted.

export class LabError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status; // 0: no answer at all
  }
}

export const get = (path) => ask(path, {});
export const post = (path, body = {}) =>
  ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
/** Sends a file as it is. */
export const send = (path, file) => ask(path, { method: "POST", headers: { "content-type": "application/octet-stream" }, body: file });

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(root() + path, { credentials: "same-origin", ...options });
  } catch {
    throw new LabError("The lab does not answer.", 0);
  }
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new LabError(content.error ?? `The lab answered with status ${answer.status}.`, answer.status);
  return content;
}

/** What the lab said against it. An error that is no answer of the lab's is a fault of the page's own, and goes on its way. */
export function said(error) {
  if (error.status === undefined) throw error;
  return error.message;
}

export function root() {
  const base = window.gradio_config?.root ?? location.origin;
  return base.endsWith("/") ? base : base + "/";
}
