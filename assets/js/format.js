// Numbers and durations as the lab writes them: true minus sign, signs on every advantage, units with a space.

export const MINUS = "\u2212";
export const NONE = "–"; // not applicable; never 0

export function fixed(value, digits) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  const text = Math.abs(value).toFixed(digits);
  return value < 0 && Number(text) !== 0 ? MINUS + text : text;
}

export function signed(value, digits = 3) {
  if (value === null || value === undefined) return NONE;
  const text = Math.abs(value).toFixed(digits);
  if (Number(text) === 0) return text;
  return (value > 0 ? "+" : MINUS) + text;
}

/** A reward with one decimal where that is exact, else two. */
export function reward(value) {
  if (value === null || value === undefined) return NONE;
  return fixed(value, Math.abs(value * 10 - Math.round(value * 10)) < 1e-6 ? 1 : 2);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

/** A duration of which also tenths count. */
export function shortTime(seconds) {
  return seconds < 9.5 ? `${Number(seconds.toPrecision(2))} s` : duration(seconds);
}

export function gigabytes(bytes) {
  return bytes ? (bytes / 1e9).toFixed(bytes < 1e10 ? 2 : 1) : NONE;
}

export function megabytes(bytes) {
  return bytes === null || bytes === undefined ? NONE : `${(bytes / 1e6).toFixed(bytes < 1e7 ? 2 : 0)} MB`;
}

export function count(n, one, many = one + "s") {
  return `${n} ${n === 1 ? one : many}`;
}

export function params(n) {
  if (!n) return "";
  return n >= 1e9 ? `${(n / 1e9).toFixed(1)} B` : n >= 1e8 ? `${Math.round(n / 1e6)} M` : `${(n / 1e6).toFixed(1)} M`;
}

/** Which use of its groups a step is, where a batch serves several steps; otherwise null. */
export function useOf({ step, use, uses }) {
  if (!(uses > 1)) return null;
  return use === 1 ? `use 1 of ${uses}: sampled for this step` : `use ${use} of ${uses}: the same groups as step ${step - use + 1}`;
}

/** "up", "down" or "none": which way an advantage pushes. */
export function direction(advantage) {
  if (advantage === null || advantage === undefined || Math.abs(advantage) < 5e-7) return "none";
  return advantage > 0 ? "up" : "down";
}
