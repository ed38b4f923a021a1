// Advantages of one group under every rule of lab/rules/advantages.py, scale and way of joining several rewards. Plain numbers;
// null where a rule cannot be used, and why.

const SMALL = 1e-4; // beside every std
const TIED = 1e-6; // up to here a group's std, or the distance of two rewards, is rounding: nothing is to be preferred
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

/** What can be chosen, as RunConfig names it. */
export const WAYS = {
  advantage_rule: ["grpo", "rloo", "maxrl", "opo", "rank"],
  scale_rewards: ["group", "batch", "none"],
  multi_objective_aggregation: ["sum_then_normalize", "normalize_then_sum"],
};

/**
 * {advantages: one per completion of groups[place] (null without a reward) or null, why}. Groups are those of the whole step:
 * {totals, lengths, parts: one list per function}; weights are one per function.
 */
export function underWay({ advantage_rule: rule, scale_rewards: scale, multi_objective_aggregation: several }, groups, weights, place) {
  const { totals, lengths } = groups[place], kept = totals.flatMap((value, i) => (value === null ? [] : [i]));
  if (several === "normalize_then_sum") return rule === "grpo" && scale === "group"
    ? { why: null, advantages: eachByItself(groups, weights)[place] }
    : { advantages: null, why: "Each reward by itself has its own rule and scale: choose the rule grpo and the scale group." };
  const rewards = kept.map((i) => totals[i]), known = kept.map((i) => lengths[i]);
  const chosen = rule === "grpo" ? { of: (r) => r.map((value) => (value - mean(r)) / divisor(scale, r, groups)) }
    : RULES.find((each) => each.name === rule);
  const why = rewards.length ? chosen.not?.(rewards, known) ?? null : "No completion has a reward.";
  const found = why ? [] : spread(rewards) <= TIED ? rewards.map(() => 0) : chosen.of(rewards, known);
  return { why, advantages: why ? null : totals.map((value, i) => (value === null ? null : found[kept.indexOf(i)])) };
}

function divisor(scale, rewards, groups) {
  if (scale === "none") return 1;
  return SMALL + spread(scale === "group" ? rewards : groups.flatMap((group) => group.totals.filter((value) => value !== null)));
}

/** GDPO: every reward is compared within its group, the weighted scores are summed, and the batch is scaled once more. */
function eachByItself(groups, weights) {
  const all = weights.reduce((sum, weight) => sum + Math.abs(weight), 0);
  const summed = groups.map(({ totals, parts }) => {
    const there = weights.map((weight, f) => (parts[f].some((value) => value !== null) ? Math.abs(weight) : 0));
    const left = all / there.reduce((sum, weight) => sum + weight, 0);
    const scores = parts.map(compared);
    return totals.map((_, i) => (weights.some((weight, f) => weight !== 0 && parts[f][i] !== null)
      ? left * weights.reduce((sum, weight, f) => sum + weight * scores[f][i], 0) : null));
  });
  const known = summed.flat().filter((value) => value !== null), middle = mean(known), std = spread(known) + SMALL;
  return summed.map((values, g) => {
    const alive = groups[g].parts.some((part, f) => weights[f] !== 0 && spread(part.filter((value) => value !== null)) > TIED);
    return values.map((value) => (value === null ? null : alive ? (value - middle) / std : 0));
  });
}

/** One function's rewards within a group: 0 for a tied group, and where the function does not apply. */
function compared(values) {
  const known = values.filter((value) => value !== null), std = spread(known);
  return values.map((value) => (value === null || std <= TIED ? 0 : (value - mean(known)) / (std + SMALL)));
}

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
  return r.reduce((sum, other) => sum + (Math.abs(value - other) > TIED ? Math.sign(value - other) : 0), 0);
}
