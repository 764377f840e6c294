// Decisions: questions about a text, and a bar with the probability of each answer.

import { ask, json } from "./api.js";
import { codeOf } from "./code.js";
import { costOf } from "./cost.js";
import { amount, element } from "./elements.js";
import { exportOf } from "./export.js";
import { barOf } from "./score.js";

/** The likeliest options of a choice. The saved files have all. */
const MAX_OPTIONS = 10;

/** The view of a model that answers questions. */
export const DECISIONS = {
  noun: "question",
  labels: ["State", "Questions"],
  example: {
    query: "I was charged twice this month, and I want my money back.",
    documents: ["Which team should answer? | billing | tech | sales", "How urgent is it? < can wait < this week < today", "The customer asks for a refund."].join("\n"),
  },
  fields: ["query"],
  read: readQuestions,
  requests: ({ query, texts }) => [{ body: { input: query, questions: texts } }],
  ask: (request, signal) => ask("v1/decisions", request, signal),
  show: ({ answers: [answer], announce }) => ({
    columns: [decisionsOf(answer, announce)],
    summary: `${amount(answer.result.answers.length, "question")} answered in ${answer.cost.total} ms.`,
  }),
};

/** The questions in the field as `{texts, note}`, or `{…, problem: true}`; see `readDocuments`. */
function readQuestions(field, { limit }) {
  let texts;
  let form = ", one per line";
  if (field.trimStart().startsWith("[")) {
    form = ", understood as a JSON list";
    try {
      texts = JSON.parse(field);
    } catch (error) {
      return { texts: [], note: `This begins like a JSON list of questions, but is none: ${error.message}.`, problem: true };
    }
  } else {
    texts = field.split(/\r\n|\n|\r/).filter((line) => line.trim() !== "").map(questionOf);
  }
  if (texts.length === 0) return { texts, note: "One per line: “question | option | option”, “question < lowest level < highest level”, or a statement that is true or not. Or a JSON list, as for POST /v1/decisions." };
  if (texts.length > limit) return { texts, note: `${amount(texts.length, "question")}, but this server takes at most ${limit.toLocaleString("en")} in one request.`, problem: true };
  const count = (type) => texts.filter((question) => question?.type === type).length;
  const kinds = [amount(count("choice"), "choice"), amount(count("score"), "scale"), `${count("predicate")} yes or no`];
  return { texts, note: `${amount(texts.length, "question")}${form}: ${kinds.join(", ")}.` };
}

/** The question that a line asks. */
function questionOf(line) {
  const parts = (mark) => line.split(mark).map((part) => part.trim());
  const [choice, ...values] = parts(" | ");
  if (values.length > 0) return { type: "choice", instructions: choice, choices: values.map((value) => ({ value })) };
  const [score, ...labels] = parts(" < ");
  if (labels.length > 0) return { type: "score", instructions: score, levels: labels.map((label) => ({ label })) };
  return { type: "predicate", instructions: line.trim() };
}

function decisionsOf({ result, request, cost }, announce) {
  const asked = request.body.questions.map((question, index) => {
    const { type, name, instructions } = question;
    const text = typeof instructions === "string" ? instructions : json(instructions ?? "");
    return { type, index, name, text, answer: result.answers[index], options: optionsOf(result.answers[index]) };
  });
  const saved = () => asked.flatMap(({ index, text, options }) => options.map(([option, probability]) => ({ index, question: text, answer: option, probability })));
  return element(
    "article",
    { class: "ranking", "aria-label": "Decisions" },
    element("h2", {}, "Decisions"),
    element("p", { class: "by" }, "Probabilities are shares among the listed answers. They are not calibrated."),
    costOf(cost),
    exportOf("decisions", saved),
    element("ol", { class: "ranks", role: "list" }, ...asked.map(rowOf)),
    codeOf(request, announce),
  );
}

/** The answers to a question, each with its probability. */
function optionsOf({ type, probability, probabilities }) {
  if (type === "predicate") return [["yes", probability], ["no", 1 - probability]];
  return probabilities.map(({ label, value, probability }) => [label ?? String(value), probability]);
}

function rowOf({ type, index, name, text, answer, options }) {
  // The levels of a scale have an order of their own.
  const shown = type === "choice" ? [...options].sort(([, a], [, b]) => b - a).slice(0, MAX_OPTIONS) : options;
  const bars = shown.map(([option, probability]) => element("li", { class: "neighbour" }, element("p", { class: "text", dir: "auto" }, option), barOf(probability, false, 1)));
  const more = options.length - shown.length;
  const score = type === "score" ? `expected level ${answer.score.toFixed(2)} of 0 to ${options.length - 1}, ` : "";
  return element(
    "li",
    { class: "rank", "data-index": index },
    element("span", { class: "place" }, String(index)),
    element("p", { class: "text", dir: "auto" }, name ? `${name}: ${text}` : text),
    element("ol", { class: "neighbours", role: "list", "aria-label": `Answers to question ${index}` }, ...bars),
    more > 0 ? element("p", { class: "hint" }, `and ${amount(more, "other option")}`) : "",
    answer.confidence === undefined ? "" : element("p", { class: "about" }, `${score}confidence ${answer.confidence.toFixed(2)}`),
  );
}
