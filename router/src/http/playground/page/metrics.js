// How good a ranking is by the grades of its texts: nDCG@10, and the reciprocal rank of the first relevant
// text.
//
// Texts with equal scores are listed in the order of the request. If a file names its relevant texts first, a
// model that gives every text the same score would look perfect. Each value is therefore the mean over all
// orders of the texts with equal scores.

/** Places beyond this one add nothing to nDCG. */
export const DEPTH = 10;

/**
 * The measures `{ndcg, rr, relevant}` of a ranking; undefined if no text is relevant. `ranked` has a grade
 * and a score for each place, the best first; `grades` are the grades of all texts, ranked or not. A text is
 * relevant if its grade is above 0.
 */
export function measure(ranked, grades) {
  const relevant = grades.filter((grade) => grade > 0).length;
  if (relevant === 0) return undefined;
  const best = [...grades].sort((a, b) => b - a);
  const ideal = best.reduce((sum, grade, place) => sum + grade * discount(place), 0);
  const groups = groupsOf(ranked);
  return { ndcg: groups.reduce((sum, group) => sum + gainOf(group), 0) / ideal, rr: reciprocalRank(groups), relevant };
}

/** The mean of `measure`'s values over queries, without those that have no relevant text. */
export function meanOf(measures) {
  const known = measures.filter((values) => values !== undefined);
  if (known.length === 0) return undefined;
  const mean = (name) => known.reduce((sum, values) => sum + values[name], 0) / known.length;
  return { ndcg: mean("ndcg"), rr: mean("rr") };
}

function discount(place) {
  return place < DEPTH ? 1 / Math.log2(place + 2) : 0;
}

/** Runs of equal scores, each with its first place and its grades. */
function groupsOf(ranked) {
  const groups = [];
  for (const [place, { grade, score }] of ranked.entries()) {
    const last = groups.at(-1);
    if (last?.score === score) last.grades.push(grade);
    else groups.push({ score, start: place, grades: [grade] });
  }
  return groups;
}

/** Each text of a group is at each of its places equally often. */
function gainOf({ start, grades }) {
  const mean = grades.reduce((sum, grade) => sum + grade, 0) / grades.length;
  return grades.reduce((sum, _, offset) => sum + mean * discount(start + offset), 0);
}

function reciprocalRank(groups) {
  const group = groups.find(({ grades }) => grades.some((grade) => grade > 0));
  if (group === undefined) return 0;
  const count = group.grades.length;
  const relevant = group.grades.filter((grade) => grade > 0).length;
  let sum = 0;
  // The probability that the places of the group before this one have no relevant text, and this one has one.
  let none = 1;
  for (let before = 0; before <= count - relevant; before += 1) {
    const here = relevant / (count - before);
    sum += (none * here) / (group.start + before + 1);
    none *= 1 - here;
  }
  return sum;
}
