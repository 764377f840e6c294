// The labels of a classifier: how often each is the best one, and a bar for each label of each text.

import { ask } from "./api.js";
import { codeOf } from "./code.js";
import { costOf } from "./cost.js";
import { amount, element } from "./elements.js";
import { exportOf } from "./export.js";
import { barOf, scaleOf } from "./score.js";

/** The best labels of a text. The saved files have all. */
const MAX_LABELS = 5;

/** The view of a classifier. */
export const CLASSIFIER = {
  noun: "text",
  example: {
    documents: ["I love this film.", "The service was slow and rude.", "The parcel arrives on Tuesday."].join("\n"),
  },
  fields: ["raw"],
  requests: ({ texts, raw }) => [{ body: { inputs: texts.map((text) => [text]), ...(raw ? { raw_scores: true } : {}) } }],
  ask: (request, signal) => ask("predict", request, signal),
  show: ({ answers: [answer], grades, announce }) => ({
    columns: [labelsOf(answer, grades ?? new Map(), announce)],
    summary: `${amount(answer.result.length, "text")} labelled in ${answer.cost.total} ms.`,
  }),
};

/** `expected` has the labels that texts should get, where a file says so. */
function labelsOf(answer, expected, announce) {
  const { result, request } = answer;
  const texts = request.body.inputs.map(([text]) => text);
  const raw = request.body.raw_scores === true;
  const scale = scaleOf(result.flat(), raw);
  const bar = (score) => barOf(score, raw, scale);
  const rows = texts.map((text, index) => rowOf({ text, index, labels: result[index], wanted: expected.get(text), bar }));
  const list = element("ol", { class: "ranks", role: "list" });
  const saved = () => texts.flatMap((text, index) => result[index].map(({ label, score }) => ({ index, text, label, score })));
  const known = rows.filter(({ wanted }) => wanted !== undefined);
  const right = known.filter(({ best, wanted }) => best === wanted).length;
  const accuracy = known.length === 0 ? [] : [["Accuracy", `${(right / known.length).toFixed(3)} (${right} of ${known.length})`]];
  return element(
    "article",
    { class: "ranking", "aria-label": "Labels" },
    element("h2", {}, "Labels"),
    costOf(answer.cost, ...accuracy),
    exportOf("labels", saved),
    choiceOf(rows, list),
    list,
    codeOf(request, announce),
  );
}

/** Fields that choose which rows `list` shows, and in which order. */
function choiceOf(rows, list) {
  const counts = new Map();
  for (const { best } of rows) counts.set(best, (counts.get(best) ?? 0) + 1);
  const labels = [...counts].sort(([, a], [, b]) => b - a);
  const options = labels.map(([label, count]) => element("option", { value: label }, `${label}: ${amount(count, "text")}`));
  const label = element("select", { "aria-label": "Best label", autocomplete: "off" }, element("option", { value: "" }, "All labels"), ...options);
  const unsure = element("input", { type: "checkbox", autocomplete: "off" });
  const arrange = () => {
    const shown = rows.filter(({ best }) => label.selectedIndex === 0 || best === label.value);
    if (unsure.checked) shown.sort((a, b) => a.margin - b.margin);
    list.replaceChildren(...shown.map(({ row }) => row));
  };
  for (const field of [label, unsure]) field.addEventListener("change", arrange);
  arrange();
  return element("div", { class: "row choice" }, label, element("label", { class: "check" }, unsure, " Least certain first"));
}

/** A text's row, its best label, and by how much that is better than the second. */
function rowOf({ text, index, labels, wanted, bar }) {
  const sorted = [...labels].sort((a, b) => b.score - a.score);
  const best = sorted.slice(0, MAX_LABELS);
  const shown = best.map(({ label, score }) => element("li", { class: "neighbour" }, element("p", { class: "text" }, label), bar(score)));
  const more = labels.length - best.length;
  const row = element(
    "li",
    { class: "rank", "data-index": index },
    element("span", { class: "place" }, String(index)),
    element("p", { class: "text", dir: "auto" }, text),
    wanted === undefined || wanted === best[0].label ? "" : element("p", { class: "move down" }, `should be ${wanted}`),
    element("ol", { class: "neighbours", role: "list", "aria-label": `Labels of text ${index}` }, ...shown),
    more > 0 ? element("p", { class: "hint" }, `and ${amount(more, "other label")}`) : "",
  );
  return { row, wanted, best: best[0].label, margin: best.length > 1 ? best[0].score - best[1].score : Math.abs(best[0].score - 0.5) };
}
