// Rewards seen from their group: totals, advantages, spread, dead groups, ranks, shares. The same rules as lab/rewards/relative.py
// and lab/rewards/scoring.py, so that a weight moves every number at once; a test compares both. null: not applicable, never 0.

export const TIED = 1e-6; // of a group's std
const SMALL = 1e-4; // the term beside the std
const given = (values) => values.filter((value) => value !== null);
const sum = (values) => values.reduce((total, value) => total + value, 0);
export const mean = (values) => (values.length ? sum(values) / values.length : 0);
const column = (rows, place) => rows.map((row) => row[place]);

export function sampleStd(values) {
  if (values.length < 2) return 0;
  const centre = mean(values);
  return Math.sqrt(sum(values.map((value) => (value - centre) ** 2)) / (values.length - 1));
}

/** What one function's weight grows by in a group where others apply to nobody, or 0. */
function leftFor(rows, weights) {
  const available = sum(weights.map((weight, place) => (given(column(rows, place)).length ? Math.abs(weight) : 0)));
  return available ? sum(weights.map(Math.abs)) / available : 0;
}

const isScored = (row, weights) => row.some((value, place) => weights[place] && value !== null);

/** One group's parts of the totals, one row each: weight × reward, a missing reward filled with the group's mean of it. */
function parts(rows, weights) {
  const left = leftFor(rows, weights), means = weights.map((_, place) => {
    const known = given(column(rows, place));
    return known.length ? mean(known) : 0;
  });
  return rows.map((row) => row.map((value, place) => left * weights[place] * (value ?? means[place])));
}

/** Totals of each group: groups[k][i] are the rewards of completion i, one per function. */
export function totalsOf(groups, weights) {
  return groups.map((rows) => {
    const made = leftFor(rows, weights) ? parts(rows, weights) : null;
    return rows.map((row, i) => (made && isScored(row, weights) ? sum(made[i]) : null));
  });
}

export function sumThenNormalize(totals, scale = "group") {
  const overAll = sampleStd(given(totals.flat()));
  return totals.map((group) => {
    const known = given(group), std = sampleStd(known), centre = mean(known);
    const divisor = { group: std + SMALL, batch: overAll + SMALL, none: 1 }[scale];
    return group.map((total) => (std <= TIED || total === null ? 0 : (total - centre) / divisor));
  });
}

export function normalizeThenSum(groups, weights) {
  const signal = [];
  const summed = groups.map((rows) => {
    const left = leftFor(rows, weights), columns = weights.map((_, place) => column(rows, place));
    const scores = columns.map((values) => sumThenNormalize([values])[0]);
    signal.push(columns.some((values, place) => weights[place] && sampleStd(given(values)) > TIED));
    return rows.map((row, i) => (isScored(row, weights) ? left * sum(weights.map((w, place) => w * scores[place][i])) : null));
  });
  const known = given(summed.flat()), centre = mean(known), std = sampleStd(known);
  return summed.map((group, k) => group.map((value) => (value === null || !signal[k] ? 0 : (value - centre) / (std + SMALL))));
}

/** Place of each completion in its group, 1 for the best. */
export function ranks(totals) {
  return totals.map((group) => group.map((total) =>
    total === null ? null : 1 + given(group).filter((other) => other > total + TIED).length));
}

/** Statistics of one function's values, or of the totals. */
export function describe(values, lengths) {
  const known = given(values.flat());
  const low = known.length ? Math.min(...known) : null, high = known.length ? Math.max(...known) : null;
  const scored = values.map(given).filter((group) => group.length);
  const dead = scored.filter((group) => sampleStd(group) <= TIED).map(mean), differ = known.length > 0 && high - low > TIED;
  const spread = scored.filter((group) => group.length > 1).map(sampleStd);
  const pairs = values.flatMap((group, k) => group.map((value, i) => [lengths[k][i], value])).filter(([,
    value]) => value !== null);
  return { scored: known.length, mean: known.length ? mean(known) : null, std: known.length ? sampleStd(known) : null, low, high,
    groups: scored.length, within: spread.length ? mean(spread) : null, dead: dead.length,
    deadLow: dead.filter((at) => differ && at - low <= TIED).length,
      deadHigh: dead.filter((at) => differ && high - at <= TIED).length,
    length: correlation(pairs) };
}

/** Each function's share of the variance of the total within groups; the shares add up to 1. */
export function varianceShares(groups, weights) {
  const shares = weights.map(() => 0);
  let whole = 0;
  for (const rows of groups) {
    const made = parts(rows, weights).filter((_, i) => isScored(rows[i], weights));
    if (made.length < 2) continue;
    const centres = weights.map((_, place) => mean(column(made, place)));
    for (const row of made) {
      const centred = row.map((value, place) => value - centres[place]), total = sum(centred);
      whole += total * total;
      centred.forEach((value, place) => (shares[place] += value * total));
    }
  }
  return shares.map((share) => (whole > TIED ** 2 ? share / whole : null));
}

export function correlation(pairs) {
  const xs = pairs.map(([x]) => x), ys = pairs.map(([, y]) => y);
  const xStd = sampleStd(xs), yStd = sampleStd(ys), xMean = mean(xs), yMean = mean(ys);
  if (pairs.length < 2 || xStd <= TIED || yStd <= TIED) return null;
  return sum(pairs.map(([x, y]) => (x - xMean) * (y - yMean))) / (pairs.length - 1) / (xStd * yStd);
}

/** Counts in `bins` equal parts from low to high. */
export function histogram(values, low, high, bins = 12) {
  const counts = Array(bins).fill(0);
  for (const value of values) counts[Math.min(bins - 1,
    Math.max(0, Math.floor(((value - low) / (high - low || 1)) * bins)))] += 1;
  return counts;
}
