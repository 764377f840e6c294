// Rankings: the texts best first, each with its score, its index in the request, whether it is relevant and,
// on request, its prompt.

import { ask, prompt } from "./api.js";
import { codeOf } from "./code.js";
import { costOf } from "./cost.js";
import { markCut } from "./cut.js";
import { amount, element } from "./elements.js";
import { exportOf } from "./export.js";
import { judgedLine } from "./judged.js";
import { measure } from "./metrics.js";
import { promptOf } from "./prompt.js";
import { barOf, formatted, scaleOf } from "./score.js";

/** With more documents, each row is one line. */
const MAX_TALL_ROWS = 50;

/** The view of a model that ranks. */
export const RANKING = {
  noun: "document",
  example: {
    query: "What is the capital of France?",
    documents: [
      "The Seine flows through Paris.",
      "Lyon is a large city in France.",
      "Berlin is the capital of Germany.",
      "Paris is the capital of France.",
      "French cheese is famous all over the world.",
    ].join("\n"),
    marks: [[3, 1]],
  },
  fields: ["query", "instruction", "raw"],
  /** A request for each variant: its instruction, and the properties of its model. */
  requests: ({ query, texts, variants, raw }) =>
    variants.map(({ instruction, ...model }) => {
      const body = { query, texts };
      if (instruction.trim() !== "") body.instruction = instruction;
      if (raw) body.raw_scores = true;
      return { body, ...model };
    }),
  ask: askRanking,
  show: ({ answers, judgements, announce }) => ({ columns: rankingsOf({ answers, judgements, announce }), summary: summaryOf(answers) }),
};

/** Asks for a ranking. Scores that look the same get their raw scores, which a second request asks for. */
async function askRanking(request, signal) {
  const answer = await ask("rerank", request, signal);
  const ranks = answer.result;
  const looksTied = ranks.some(({ score }, place) => place > 0 && formatted(score) === formatted(ranks[place - 1].score));
  if (looksTied && !request.body.raw_scores) {
    const raw = await ask("rerank", { ...request, body: { ...request.body, raw_scores: true } }, signal);
    const byIndex = new Map(raw.result.map(({ index, score }) => [index, score]));
    for (const rank of ranks) rank.raw = byIndex.get(rank.index);
  }
  return answer;
}

/** An element for each of one or two answers to the same query. */
export function rankingsOf({ answers, judgements, announce }) {
  const titles = answers.length === 1 ? ["Ranking"] : ["Ranking A", "Ranking B"];
  return answers.map((answer, index) => rankingOf({ title: titles[index], answer, base: index === 0 ? undefined : answers[0], compares: answers.length > 1, judgements, announce }));
}

/** The measures of an answer; undefined without a relevant text. */
export function measureOf({ result, request }, judgements) {
  const { texts } = request.body;
  const ranked = result.map(({ index, score, raw }) => ({ grade: judgements.grade(texts[index]), score: raw ?? score }));
  return measure(ranked, texts.map((text) => judgements.grade(text)));
}

function summaryOf([first, second]) {
  const { result: ranks, cost } = first;
  if (ranks.length === 0) return "The server’s lowest score leaves no document.";
  if (!second) return `${amount(ranks.length, "document")} ranked in ${cost.total} ms. Best: document ${ranks[0].index}.`;
  const what = first.request.name === second.request.name ? "instruction" : "model";
  const count = moved(ranks, second.result);
  if (count === 0) return `Both ${what}s rank the ${amount(ranks.length, "document")} alike.`;
  return `${what === "model" ? "Model" : "Instruction"} B moves ${count} of ${amount(ranks.length, "document")}.`;
}

/**
 * An element that shows a ranking. `answer` is the result of `ask`; `base` is the answer that this one is
 * compared with; `announce` passes a text to screen readers.
 */
function rankingOf({ title, answer, base, compares, judgements, announce }) {
  const { result: ranks, request, cost } = answer;
  const { body } = request;
  const raw = body.raw_scores === true;
  const scale = scaleOf(ranks, raw);
  const places = base && placesOf(base.result);
  const ties = tiesOf(ranks);
  const rows = ranks.map((rank, place) =>
    rowOf({ rank, place, request, judgements, bar: barOf(rank.score, raw, scale), notes: [ties[place], places && moveOf(place, places.get(rank.index))] }),
  );
  const list = element("span", {});
  const cut = cost.truncated > 0 ? [["Cut", amount(cost.truncated, "document"), list]] : [];
  // The list is not shown yet, and the search ends when it is no longer shown.
  if (cut.length > 0) {
    const byIndex = new Map(ranks.map((rank, place) => [rank.index, rows[place]]));
    setTimeout(() => markCut({ request, count: cost.truncated, rows: byIndex, list }));
  }
  const size = ranks.length > MAX_TALL_ROWS ? "ranks compact" : "ranks";
  const saved = () => ranks.map(({ index, score, raw: odds }) => ({ index, score, ...(odds === undefined ? {} : { raw_score: odds }), relevance: judgements.grade(body.texts[index]), text: body.texts[index] }));
  const judged = () => judgedLine({ query: body.query, texts: body.texts, judgements });
  return element(
    "article",
    { class: "ranking", "aria-label": title },
    element("h2", {}, title),
    compares ? element("p", { class: "by", dir: "auto" }, variantOf(request)) : "",
    costOf(cost, ...cut),
    measuresOf(answer, base, judgements),
    exportOf("ranking", saved, { judgements: () => [judged()] }),
    element("ol", { class: size, role: "list" }, ...rows),
    codeOf(request, announce),
  );
}

/** The model, if there are two, and the instruction. */
export function variantOf({ body, name, takesInstruction }) {
  const instruction = body.instruction ?? (takesInstruction ? "The server’s own instruction" : "No instruction");
  return name ? `${name} · ${instruction}` : instruction;
}

/** The measures, which follow the marks. */
function measuresOf(answer, base, judgements) {
  const line = element("p", { class: "measures", "aria-live": "polite" });
  judgements.follow(line, () => {
    const now = measureOf(answer, judgements);
    if (now === undefined) return line.replaceChildren(element("span", { class: "hint" }, "Mark relevant documents to see nDCG and MRR."));
    const before = base && measureOf(base, judgements);
    const value = (name, key) => element("span", { class: "measure" }, `${name} `, element("strong", {}, now[key].toFixed(3)), before ? " " : "", before ? changeOf(now[key] - before[key]) : "");
    line.replaceChildren(value("nDCG@10", "ndcg"), value("MRR", "rr"), element("span", { class: "hint" }, `${now.relevant} relevant`));
  });
  return line;
}

/** A difference, green if it is a gain. */
export function changeOf(by) {
  const shown = Math.abs(by).toFixed(3);
  if (Number(shown) === 0) return element("span", { class: "move" }, "±0");
  return element("span", { class: by > 0 ? "move up" : "move down" }, `${by > 0 ? "+" : "−"}${shown}`);
}

/** Places by index. */
function placesOf(ranks) {
  return new Map(ranks.map((rank, place) => [rank.index, place]));
}

/** The number of documents that have another place in the second ranking. */
function moved(first, second) {
  const places = placesOf(first);
  return second.filter((rank, place) => places.get(rank.index) !== place).length;
}

/** For each row: its raw score if its score looks like a neighbour's, and whether the two are the same. */
function tiesOf(ranks) {
  const exact = ({ raw, score }) => raw ?? score;
  const isTied = (place) => [place - 1, place + 1].some((other) => ranks[other] && exact(ranks[other]) === exact(ranks[place]));
  const digits = [3, 4, 5, 6].find((count) => ranks.every((rank, place) => place === 0 || isTied(place) || exact(rank).toFixed(count) !== exact(ranks[place - 1]).toFixed(count))) ?? 7;
  return ranks.map((rank, place) => {
    const raw = rank.raw === undefined ? "" : `raw ${rank.raw.toFixed(digits).replace("-", "−")}`;
    const tied = isTied(place) ? "same score as its neighbour" : "";
    return raw || tied ? element("span", { class: "raw-score" }, [raw, tied].filter(Boolean).join(", ")) : "";
  });
}

function rowOf({ rank, place, request, judgements, bar, notes }) {
  const { body, model, hasPrompt } = request;
  const text = body.texts[rank.index];
  const shown = [
    panelOf("Sentences", rank.index, async () => sentencesOf(await ask("rerank", { ...request, body: { ...body, texts: [text], highlight: true } }), text)),
    hasPrompt ? panelOf("Prompt", rank.index, async () => promptOf(await prompt({ query: body.query, text, instruction: body.instruction }, model))) : undefined,
  ].filter(Boolean);
  const stage = rank.stage ? `, scored by model ${rank.stage}` : "";
  return element(
    "li",
    { class: "rank", "data-index": rank.index },
    element("span", { class: "place" }, String(place + 1)),
    element("p", { class: "text", dir: "auto" }, text),
    bar,
    element("div", { class: "about" }, element("span", { class: "origin" }, `document ${rank.index}${stage}`), ...notes, element("span", { class: "buttons" }, markOf(rank.index, text, judgements), ...shown.map(({ button }) => button))),
    ...shown.map(({ panel }) => panel),
  );
}

/** A button that marks a document as relevant. */
function markOf(index, text, judgements) {
  const button = element("button", { type: "button", class: "quiet relevant", "aria-label": `Document ${index} is relevant`, onclick: () => judgements.toggle(text) });
  judgements.follow(button, () => {
    const grade = judgements.grade(text);
    button.setAttribute("aria-pressed", String(grade > 0));
    button.textContent = grade > 0 ? `★ Relevant${grade === 1 ? "" : ` ${grade}`}` : "☆ Relevant";
  });
  return button;
}

function moveOf(place, before) {
  if (before === undefined) return element("span", { class: "move up" }, "↑ new");
  const by = before - place;
  if (by === 0) return element("span", { class: "move" }, "= same place");
  const [arrow, word] = by > 0 ? ["↑", "up"] : ["↓", "down"];
  return element("span", { class: `move ${word}` }, `${arrow} ${word} ${Math.abs(by)}, was ${before + 1}`);
}

/** A button that opens and closes a panel, whose `content` is fetched once, and again after a failure. */
function panelOf(name, index, content) {
  const panel = element("div", { class: "panel", id: nextId(), hidden: true });
  const button = element("button", { type: "button", class: "quiet", "aria-expanded": "false", "aria-controls": panel.id, "aria-label": `${name} of document ${index}` }, name);
  button.addEventListener("click", async () => {
    panel.hidden = !panel.hidden;
    button.setAttribute("aria-expanded", String(!panel.hidden));
    if (panel.hidden || panel.dataset.state) return;
    panel.dataset.state = "asked";
    panel.replaceChildren(element("p", { class: "hint" }, "Asking the server …"));
    try {
      panel.replaceChildren(await content());
    } catch (error) {
      panel.replaceChildren(element("p", { class: "problem", role: "alert" }, error.message));
      delete panel.dataset.state;
    }
  });
  return { button, panel };
}

/** The sentences of a text with their own scores. Places count characters, not the parts of a string. */
function sentencesOf({ result, request }, text) {
  const sentences = result[0]?.highlights ?? [];
  const raw = request.body.raw_scores === true;
  const scale = scaleOf(sentences, raw);
  const characters = [...text];
  const rows = sentences.map(({ start, end, score }) => element("li", { class: "neighbour" }, element("p", { class: "text", dir: "auto" }, characters.slice(start, end).join("")), barOf(score, raw, scale)));
  if (rows.length === 0) return element("p", { class: "hint" }, "The server gives no sentences for this document.");
  return element("ol", { class: "neighbours sentences", role: "list", "aria-label": "Sentences" }, ...rows);
}

let ids = 0;

function nextId() {
  ids += 1;
  return `panel-${ids}`;
}
