// Advantages of one group under every rule of lab/advantages.py. Plain numbers; null where a rule cannot be used, and why.

const TIED = 1e-6; // of the group's std: below it nothing is to be preferred
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

export const RULES = [
  { name: "dr_grpo", title: "Dr. GRPO, no division", of: (r) => r.map((value) => value - mean(r)) },
  { name: "rloo", title: "RLOO, others’ mean", of: (r) => r.map((value) => (r.length / (r.length - 1)) * (value - mean(r))) },
  { name: "maxrl", title: "MaxRL, divided by the mean", of: (r) => r.map((value) => (value - mean(r)) / mean(r)),
    not: (r) => (r.some((value) => value < 0) ? "MaxRL divides by the mean and needs rewards of at least 0." : null) },
  { name: "opo", title: "OPO, mean weighted by length", of: (r, lengths) => r.map((value) => value - weighted(r, lengths)),
    not: (r, lengths) => (lengths ? null : "OPO weights its baseline by completion length: there is none here.") },
  { name: "rank", title: "rank, share beaten − lost to", of: (r) => r.map((value) => wins(r, value) / (r.length - 1)) },
];

/** [{name, title, advantages: numbers or null, why}] of rewards, and of lengths in tokens where they are known. */
export function underEveryRule(rewards, lengths = null) {
  const tied = spread(rewards) <= TIED;
  return RULES.map(({ name, title, of, not }) => {
    const why = not?.(rewards, lengths) ?? null;
    return { name, title, why, advantages: why ? null : tied ? rewards.map(() => 0) : of(rewards, lengths) };
  });
}

function spread(r) {
  return r.length < 2 ? 0 : Math.sqrt(r.reduce((sum, value) => sum + (value - mean(r)) ** 2, 0) / (r.length - 1));
}

function weighted(r, lengths) {
  return r.reduce((sum, value, i) => sum + lengths[i] * value, 0) / lengths.reduce((sum, length) => sum + length, 0);
}

function wins(r, value) {
  return r.reduce((sum, other) => sum + Math.sign(value - other), 0);
}
