// The vectors of an embedding model: the cosine of each two texts as a matrix, and the nearest texts of each.

import { ask } from "./api.js";
import { codeOf } from "./code.js";
import { costOf } from "./cost.js";
import { amount, element } from "./elements.js";
import { exportOf } from "./export.js";
import { barOf } from "./score.js";

const NEIGHBOURS = 3;
/** The matrix of more texts would have cells too small to read. */
const MAX_MATRIX = 40;
/** The shades of the matrix, from the least cosine to the greatest. */
const SHADES = 6;

const EXAMPLE = {
  documents: [
    "Which planet is red?",
    "How is bread baked?",
    "The Seine flows through Paris.",
    "Mars is the red planet.",
    "Paris is the capital of France.",
    "Bread is baked from flour and water.",
  ].join("\n"),
};

/** The view of a model that makes vectors, which are sparse with `isSparse`. */
export function embeddingView(isSparse) {
  const route = isSparse ? "embed_sparse" : "embed";
  return {
    noun: "text",
    example: EXAMPLE,
    fields: [],
    requests: ({ texts }) => [{ body: { inputs: texts } }],
    ask: (request, signal) => ask(route, request, signal),
    show: ({ answers: [answer], announce }) => ({
      columns: [vectorsOf(answer, isSparse, announce)],
      summary: `${amount(answer.request.body.inputs.length, "vector")} in ${answer.cost.total} ms.`,
    }),
  };
}

function vectorsOf(answer, isSparse, announce) {
  const { result, request } = answer;
  const texts = request.body.inputs;
  const vectors = result.map((vector) => unit(isSparse ? new Map(vector.map(({ index, value }) => [index, value])) : vector));
  const cosines = vectors.map((one) => vectors.map((other) => dot(one, other)));
  const size = isSparse ? "sparse" : amount(result[0].length, "value") + " each";
  const pairs = texts.flatMap((_, row) => cosines[row].slice(0, row).map((cosine, column) => ({ row: column, column: row, cosine })));
  const rows = texts.map((text, index) => rowOf(text, index, neighboursOf(cosines[index], index), texts));
  return element(
    "article",
    { class: "ranking", "aria-label": "Vectors" },
    element("h2", {}, "Likeness of the texts"),
    element("p", { class: "by" }, `Vectors: ${size}. A number is the cosine of two vectors.`),
    costOf(answer.cost, ...extremesOf(pairs)),
    exportOf("vectors", () => texts.map((text, index) => ({ index, text, vector: result[index] })), {
      pairs: () => pairs.map(({ row, column, cosine }) => ({ cosine, first: texts[row], second: texts[column] })),
    }),
    texts.length > 1 && texts.length <= MAX_MATRIX ? matrixOf(cosines, texts) : "",
    element("h2", {}, "Nearest texts"),
    element("ol", { class: "ranks", role: "list" }, ...rows),
    codeOf(request, announce),
  );
}

/** The most and the least alike texts, as entries of `costOf`. */
function extremesOf(pairs) {
  if (pairs.length < 2) return [];
  const sorted = [...pairs].sort((a, b) => b.cosine - a.cosine);
  const entry = (name, { row, column, cosine }) => [name, `${row} and ${column}: ${shown(cosine, 3)}`];
  return [entry("Most alike", sorted[0]), entry("Least alike", sorted.at(-1))];
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

function shown(cosine, digits) {
  return cosine.toFixed(digits).replace("-", "−");
}

function neighboursOf(cosines, index) {
  const others = [...cosines.entries()].filter(([other]) => other !== index);
  return others.sort(([, a], [, b]) => b - a).slice(0, NEIGHBOURS);
}

function rowOf(text, index, neighbours, texts) {
  const near = neighbours.map(([other, cosine]) =>
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
    element("ol", { class: "neighbours", role: "list", "aria-label": `Nearest to text ${index}` }, ...near),
  );
}

function matrixOf(cosines, texts) {
  const region = element("div", { class: "cosines", tabindex: "0", role: "region", "aria-label": "Cosines" });
  const draw = (order) => region.replaceChildren(tableOf(cosines, texts, order));
  const sorted = element("input", { type: "checkbox", autocomplete: "off", onchange: () => draw(sorted.checked ? chainOf(cosines) : [...texts.keys()]) });
  draw([...texts.keys()]);
  return element("div", {}, element("label", { class: "check" }, sorted, " Put alike texts next to each other"), region);
}

/** The texts in an order in which each is followed by the nearest one that is left. */
function chainOf(cosines) {
  const left = new Set(cosines.keys());
  const order = [];
  // The text with the greatest sum of cosines is in the middle of a group, where a chain should not begin.
  const sum = (index) => cosines[index].reduce((total, cosine) => total + cosine, 0);
  let next = [...left].sort((a, b) => sum(a) - sum(b))[0];
  while (next !== undefined) {
    order.push(next);
    left.delete(next);
    const last = cosines[next];
    next = [...left].sort((a, b) => last[b] - last[a])[0];
  }
  return order;
}

function tableOf(cosines, texts, order) {
  const others = order.flatMap((row) => order.filter((column) => column !== row).map((column) => cosines[row][column]));
  const [least, most] = [Math.min(...others), Math.max(...others)];
  const shade = (cosine) => Math.round(((Math.min(cosine, most) - least) / (most - least || 1)) * (SHADES - 1));
  const head = element("tr", {}, element("td"), ...order.map((index) => element("th", { scope: "col", title: texts[index] }, String(index))));
  const rows = order.map((row) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, element("span", { class: "origin" }, `${row} `), element("span", { class: "start", dir: "auto" }, texts[row])),
      ...order.map((column) => element("td", { class: row === column ? "same" : `shade-${shade(cosines[row][column])}` }, shown(cosines[row][column], 2))),
    ),
  );
  return element("table", {}, element("caption", { class: "offscreen" }, "Cosines"), element("thead", {}, head), element("tbody", {}, ...rows));
}
