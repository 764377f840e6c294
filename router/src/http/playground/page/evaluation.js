// Several judged queries: the measures of each under one or two variants, and the rankings of one of them.

import { amount, element } from "./elements.js";
import { exportOf } from "./export.js";
import { judgedLine } from "./judged.js";
import { meanOf } from "./metrics.js";
import { changeOf, measureOf, rankingsOf, variantOf } from "./ranking.js";

/** The measures and their names. */
const MEASURES = [
  ["ndcg", "nDCG@10"],
  ["rr", "MRR"],
];

/**
 * Elements for `queries`, each `{query, texts, judgements}`, and their `answers`, one or two for each query.
 * `columns` is the element that holds them: a click on a query shows its rankings there.
 */
export function evaluationOf({ queries, answers, columns, announce }) {
  const table = element("tbody", {});
  const order = element("select", { "aria-label": "Order of the queries", autocomplete: "off" }, element("option", {}, "As in the file"), element("option", {}, "Worst first"));
  const mean = element("dl", { class: "cost means", "aria-live": "polite" });
  const values = () => queries.map(({ judgements }, place) => answers[place].map((answer) => measureOf(answer, judgements)));
  const open = (place) => {
    const { query, judgements } = queries[place];
    for (const [other, row] of rows.entries()) row.setAttribute("aria-current", String(other === place));
    const rankings = rankingsOf({ answers: answers[place], judgements, announce });
    for (const ranking of rankings) ranking.querySelector("h2").append(element("span", { class: "by", dir: "auto" }, ` ${query}`));
    // The table stays where it is, and its button keeps the focus.
    while (columns.children.length > 1) columns.lastChild.remove();
    columns.append(...rankings);
    columns.classList.toggle("pair", rankings.length === 2);
  };
  const rows = queries.map((query, place) => element("tr", {}, element("th", { scope: "row" }, element("button", { type: "button", class: "quiet", dir: "auto", onclick: () => open(place) }, query.query))));
  const refresh = () => {
    const all = values();
    for (const [place, row] of rows.entries()) row.replaceChildren(row.firstChild, ...cellsOf(all[place]));
    mean.replaceChildren(...meansOf(all));
  };
  const arrange = () => {
    const all = values();
    const places = [...rows.keys()];
    if (order.value === "Worst first") places.sort((a, b) => badness(all[b]) - badness(all[a]));
    table.replaceChildren(...places.map((place) => rows[place]));
  };
  order.addEventListener("change", arrange);
  for (const { judgements } of queries) judgements.follow(table, refresh);
  arrange();
  const saved = () => values().map((measures, place) => ({ query: queries[place].query, relevant: measures[0]?.relevant ?? 0, ...named(measures) }));
  const pair = answers[0].length === 2;
  const article = element(
    "article",
    { class: "ranking wide", "aria-label": "Evaluation" },
    element("h2", {}, "Evaluation"),
    element("p", { class: "by" }, describe(answers[0])),
    mean,
    element("div", { class: "row" }, exportOf("evaluation", saved, { judgements: () => queries.map(judgedLine) }), element("span", { class: "spring" }), queries.length > 1 ? order : ""),
    element("div", { class: "scores", tabindex: "0", role: "region", "aria-label": "Measures of each query" }, element("table", {}, headOf(pair), table)),
  );
  columns.replaceChildren(article);
  open(0);
  return summaryOf(values());
}

function describe([first, second]) {
  return second ? `A: ${variantOf(first.request)}. B: ${variantOf(second.request)}.` : "Each query’s documents, ranked. A click on a query shows its ranking.";
}

function headOf(pair) {
  const names = MEASURES.flatMap(([, name]) => (pair ? [`${name} A`, "B", "B − A"] : [name]));
  return element("thead", {}, element("tr", {}, ...["Query", "Relevant", ...names].map((name) => element("th", { scope: "col" }, name))));
}

function cellsOf(measures) {
  const cell = (...content) => element("td", {}, ...content);
  const [first, second] = measures;
  const numbers = MEASURES.flatMap(([key]) => {
    const values = measures.map((one) => cell(one ? one[key].toFixed(3) : "–"));
    return measures.length === 1 ? values : [...values, cell(first ? changeOf(second[key] - first[key]) : "")];
  });
  return [cell(String(first?.relevant ?? 0)), ...numbers];
}

/** The means of each variant over the queries. */
function variantMeans(all) {
  return all[0].map((_, variant) => meanOf(all.map((measures) => measures[variant])));
}

function meansOf(all) {
  const entry = (name, ...value) => element("div", {}, element("dt", {}, name), element("dd", {}, ...value));
  const skipped = all.filter(([first]) => first === undefined).length;
  const [first, second] = variantMeans(all);
  if (first === undefined) return [entry("No query has a relevant document", "Mark some in the rankings below.")];
  const means = MEASURES.map(([key, name]) => entry(`Mean ${name}`, ...(second ? [`A ${first[key].toFixed(3)}, B ${second[key].toFixed(3)} `, changeOf(second[key] - first[key])] : [first[key].toFixed(3)])));
  const counts = [entry("Queries", skipped === 0 ? String(all.length) : `${all.length - skipped} of ${all.length}: the others have no relevant document`)];
  if (second) counts.push(entry("B is better, worse", [1, -1].map((sign) => all.filter(([a, b]) => a && sign * (b.ndcg - a.ndcg) > 0).length).join(", ")));
  return [...means, ...counts];
}

/** The loss of B against A, or of A against a perfect ranking. */
function badness([first, second]) {
  if (first === undefined) return -Infinity;
  return second ? first.ndcg - second.ndcg : 1 - first.ndcg;
}

/** The measures as fields of a saved row. */
function named(measures) {
  const fields = {};
  for (const [variant, values] of measures.entries()) {
    const suffix = measures.length === 1 ? "" : `_${"ab"[variant]}`;
    for (const [key] of MEASURES) fields[`${key}${suffix}`] = values?.[key] ?? null;
  }
  return fields;
}

function summaryOf(all) {
  const [first, second] = variantMeans(all);
  const asked = amount(all.length, "query", "queries");
  if (first === undefined) return `${asked} ranked.`;
  const means = second ? `nDCG@10 is ${first.ndcg.toFixed(3)} with A and ${second.ndcg.toFixed(3)} with B.` : `nDCG@10 is ${first.ndcg.toFixed(3)}.`;
  return `${asked} ranked. ${means}`;
}
