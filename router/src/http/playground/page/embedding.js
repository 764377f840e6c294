// The vectors of an embedding model: for each text its nearest texts, and the cosine of each two.

import { ask } from "./api.js";
import { codeOf } from "./code.js";
import { costOf } from "./cost.js";
import { element } from "./elements.js";
import { exportOf } from "./export.js";
import { barOf } from "./ranking.js";

const NEIGHBOURS = 3;
/** The table of more texts would be wider than a screen. */
const MAX_TABLE = 12;

const EXAMPLE = {
  documents: [
    "Which planet is red?",
    "Mars is the red planet.",
    "How is bread baked?",
    "Bread is baked from flour and water.",
    "The Seine flows through Paris.",
  ].join("\n"),
};

/** The view of a model that makes vectors, which are sparse with `isSparse`. */
export function embeddingView(isSparse) {
  const route = isSparse ? "embed_sparse" : "embed";
  return {
    noun: "text",
    example: EXAMPLE,
    fields: [],
    bodies: ({ texts }) => [{ inputs: texts }],
    ask: (body, signal) => ask(route, body, signal),
    show: ([answer], announce) => ({
      columns: [vectorsOf(answer, isSparse, announce)],
      summary: `${answer.request.body.inputs.length} vectors in ${answer.cost.total} ms.`,
    }),
  };
}

function vectorsOf(answer, isSparse, announce) {
  const { result, request } = answer;
  const texts = request.body.inputs;
  const vectors = result.map((vector) => unit(isSparse ? new Map(vector.map(({ index, value }) => [index, value])) : vector));
  const cosines = vectors.map((one) => vectors.map((other) => dot(one, other)));
  const size = isSparse ? "sparse" : `${result[0].length.toLocaleString("en")} values each`;
  const rows = texts.map((text, index) => rowOf(text, index, neighboursOf(cosines[index], index), texts));
  return element(
    "article",
    { class: "ranking", "aria-label": "Vectors" },
    element("h2", {}, "Nearest texts"),
    element("p", { class: "by" }, `Vectors: ${size}. A bar is the cosine of two vectors.`),
    costOf(answer.cost),
    exportOf("vectors", texts.map((text, index) => ({ index, text, vector: result[index] }))),
    texts.length <= MAX_TABLE ? tableOf(cosines) : "",
    element("ol", { class: "ranks", role: "list" }, ...rows),
    codeOf(request, announce),
  );
}

/** A vector of length 1 as a function of its place, and its places. */
function unit(vector) {
  const entries = [...vector.entries()];
  const length = Math.hypot(...entries.map(([, value]) => value)) || 1;
  return new Map(entries.map(([place, value]) => [place, value / length]));
}

function dot(one, other) {
  let sum = 0;
  for (const [place, value] of one) sum += value * (other.get(place) ?? 0);
  return sum;
}

function neighboursOf(cosines, index) {
  const others = [...cosines.entries()].filter(([other]) => other !== index);
  return others.sort(([, a], [, b]) => b - a).slice(0, NEIGHBOURS);
}

function rowOf(text, index, neighbours, texts) {
  const shown = neighbours.map(([other, cosine]) =>
    element(
      "li",
      { class: "neighbour", "data-index": other },
      element("p", { class: "text", dir: "auto" }, element("span", { class: "origin" }, `${other} `), texts[other]),
      barOf(cosine, false, 1),
    ),
  );
  return element(
    "li",
    { class: "rank", "data-index": index },
    element("span", { class: "place" }, String(index)),
    element("p", { class: "text", dir: "auto" }, text),
    element("ol", { class: "neighbours", role: "list", "aria-label": `Nearest to text ${index}` }, ...shown),
  );
}

function tableOf(cosines) {
  const head = element("tr", {}, element("td"), ...cosines.map((_, index) => element("th", { scope: "col" }, String(index))));
  const rows = cosines.map((row, index) =>
    element("tr", {}, element("th", { scope: "row" }, String(index)), ...row.map((cosine) => element("td", {}, cosine.toFixed(2).replace("-", "−")))),
  );
  const table = element("table", {}, element("caption", {}, "Cosines"), element("thead", {}, head), element("tbody", {}, ...rows));
  return element("div", { class: "cosines", tabindex: "0", role: "region", "aria-label": "Cosines" }, table);
}
