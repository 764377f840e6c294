// The labels of a classifier: a bar for each label of each text, best first.

import { ask } from "./api.js";
import { codeOf } from "./code.js";
import { costOf } from "./cost.js";
import { amount, element } from "./elements.js";
import { exportOf } from "./export.js";
import { barOf, scaleOf } from "./ranking.js";

/** The best labels of a text. The saved files have all. */
const MAX_LABELS = 5;

/** The view of a classifier. */
export const CLASSIFIER = {
  noun: "text",
  example: {
    documents: ["I love this film.", "The service was slow and rude.", "The parcel arrives on Tuesday."].join("\n"),
  },
  fields: ["raw"],
  bodies: ({ texts, raw }) => [{ inputs: texts.map((text) => [text]), ...(raw ? { raw_scores: true } : {}) }],
  ask: (body, signal) => ask("predict", body, signal),
  show: ([answer], announce) => ({
    columns: [labelsOf(answer, announce)],
    summary: `${amount(answer.result.length, "text")} labelled in ${answer.cost.total} ms.`,
  }),
};

function labelsOf(answer, announce) {
  const { result, request } = answer;
  const texts = request.body.inputs.map(([text]) => text);
  const raw = request.body.raw_scores === true;
  const scale = scaleOf(result.flat(), raw);
  const rows = texts.map((text, index) => rowOf(text, index, result[index], (score) => barOf(score, raw, scale)));
  const saved = texts.flatMap((text, index) => result[index].map(({ label, score }) => ({ index, text, label, score })));
  return element(
    "article",
    { class: "ranking", "aria-label": "Labels" },
    element("h2", {}, "Labels"),
    costOf(answer.cost),
    exportOf("labels", saved),
    element("ol", { class: "ranks", role: "list" }, ...rows),
    codeOf(request, announce),
  );
}

function rowOf(text, index, labels, bar) {
  const best = [...labels].sort((a, b) => b.score - a.score).slice(0, MAX_LABELS);
  const shown = best.map(({ label, score }) => element("li", { class: "neighbour" }, element("p", { class: "text" }, label), bar(score)));
  const more = labels.length - best.length;
  return element(
    "li",
    { class: "rank", "data-index": index },
    element("span", { class: "place" }, String(index)),
    element("p", { class: "text", dir: "auto" }, text),
    element("ol", { class: "neighbours", role: "list", "aria-label": `Labels of text ${index}` }, ...shown),
    more > 0 ? element("p", { class: "hint" }, `and ${amount(more, "other label")}`) : "",
  );
}
