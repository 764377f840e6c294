// A ranking: the texts best first, each with its score, its index in the request and, on request, its prompt.

import { ask, prompt } from "./api.js";
import { codeOf } from "./code.js";
import { costOf } from "./cost.js";
import { markCut } from "./cut.js";
import { amount, element } from "./elements.js";
import { exportOf } from "./export.js";
import { promptOf } from "./prompt.js";

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
  },
  fields: ["query", "instruction", "raw"],
  /** A body for each instruction. */
  bodies: ({ query, texts, instructions, raw }) =>
    instructions.map((instruction) => {
      const body = { query, texts };
      if (instruction.trim() !== "") body.instruction = instruction;
      if (raw) body.raw_scores = true;
      return body;
    }),
  ask: (body, signal) => ask("rerank", body, signal),
  show: (answers, announce) => ({ columns: columnsOf(answers, announce), summary: summaryOf(answers) }),
};

function columnsOf(answers, announce) {
  const titles = answers.length === 1 ? ["Ranking"] : ["Ranking A", "Ranking B"];
  const places = placesOf(answers[0].result);
  return answers.map((answer, index) =>
    rankingOf({ title: titles[index], answer, places: index === 0 ? undefined : places, compares: answers.length > 1, announce }),
  );
}

function summaryOf([{ result: ranks, cost }, second]) {
  if (!second) return `${amount(ranks.length, "document")} ranked in ${cost.total} ms. Best: document ${ranks[0].index}.`;
  const count = moved(ranks, second.result);
  if (count === 0) return `Both instructions rank the ${amount(ranks.length, "document")} alike.`;
  return `Instruction B moves ${count} of ${amount(ranks.length, "document")}.`;
}

/**
 * An element that shows a ranking. `answer` is the result of `ask`; `places` maps indices to places in the
 * ranking that this one is compared with; `announce` passes a text to screen readers.
 */
function rankingOf({ title, answer, places, compares, announce }) {
  const { result: ranks, request, cost } = answer;
  const body = request.body;
  const raw = body.raw_scores === true;
  const scale = scaleOf(ranks, raw);
  const rows = ranks.map((rank, place) =>
    rowOf({ rank, place, body, bar: barOf(rank.score, raw, scale), move: moveOf(place, places?.get(rank.index)) }),
  );
  const list = element("span", {});
  const cut = cost.truncated > 0 ? [["Cut", amount(cost.truncated, "document"), list]] : [];
  // The list is not shown yet, and the search ends when it is no longer shown.
  if (cut.length > 0) {
    const byIndex = new Map(ranks.map((rank, place) => [rank.index, rows[place]]));
    setTimeout(() => markCut({ body, count: cost.truncated, rows: byIndex, list }));
  }
  const size = ranks.length > MAX_TALL_ROWS ? "ranks compact" : "ranks";
  return element(
    "article",
    { class: "ranking", "aria-label": title },
    element("h2", {}, title),
    compares ? element("p", { class: "by", dir: "auto" }, body.instruction ?? "The server’s own instruction") : "",
    costOf(cost, ...cut),
    exportOf("ranking", ranks.map(({ index, score }) => ({ index, score, text: body.texts[index] }))),
    element("ol", { class: size, role: "list" }, ...rows),
    codeOf(request, announce),
  );
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

function rowOf({ rank, place, body, bar, move }) {
  const panel = element("div", { class: "panel", id: nextId(), hidden: true });
  const button = element("button", { type: "button", class: "quiet", "aria-expanded": "false", "aria-controls": panel.id }, "Prompt");
  button.setAttribute("aria-label", `Prompt of document ${rank.index}`);
  button.addEventListener("click", () => toggle(button, panel, { query: body.query, text: body.texts[rank.index], instruction: body.instruction }));
  return element(
    "li",
    { class: "rank", "data-index": rank.index },
    element("span", { class: "place" }, String(place + 1)),
    element("p", { class: "text", dir: "auto" }, body.texts[rank.index]),
    bar,
    element("div", { class: "about" }, element("span", { class: "origin" }, `document ${rank.index}${rank.stage ? `, scored by model ${rank.stage}` : ""}`), move, button),
    panel,
  );
}

/** The score whose bar is the longest. */
export function scaleOf(scored, raw) {
  return raw ? Math.max(1e-9, ...scored.map(({ score }) => Math.abs(score))) : 1;
}

/** A bar from 0 to 1. A bar of a raw score starts in the middle and goes to either side. */
export function barOf(score, raw, scale) {
  const fill = element("span", { class: score < 0 ? "fill negative" : "fill" });
  const width = (Math.abs(score) / scale) * (raw ? 50 : 100);
  fill.style.width = `${width}%`;
  if (raw) fill.style.insetInlineStart = `${score < 0 ? 50 - width : 50}%`;
  return element(
    "div",
    { class: "score" },
    element("span", { class: raw ? "bar raw" : "bar", "aria-hidden": "true" }, fill),
    element("data", { value: score }, formatted(score, raw)),
  );
}

function formatted(score, raw) {
  if (raw) return score.toFixed(3).replace("-", "−");
  return (score > 0 && score < 0.00005 ? score.toExponential(1) : score.toFixed(4)).replace("-", "−");
}

function moveOf(place, before) {
  if (before === undefined) return "";
  const by = before - place;
  if (by === 0) return element("span", { class: "move" }, "= same place");
  const [arrow, word] = by > 0 ? ["↑", "up"] : ["↓", "down"];
  return element("span", { class: `move ${word}` }, `${arrow} ${word} ${Math.abs(by)}, was ${before + 1}`);
}

/** Opens or closes a prompt. It is fetched when it is first opened, and again after a failure. */
async function toggle(button, panel, body) {
  const opens = panel.hidden;
  panel.hidden = !opens;
  button.setAttribute("aria-expanded", String(opens));
  if (!opens || panel.dataset.state) return;
  panel.dataset.state = "asked";
  panel.replaceChildren(element("p", { class: "hint" }, "Asking for the prompt …"));
  try {
    panel.replaceChildren(promptOf(await prompt(body)));
  } catch (error) {
    panel.replaceChildren(element("p", { class: "problem", role: "alert" }, error.message));
    delete panel.dataset.state;
  }
}

let ids = 0;

function nextId() {
  ids += 1;
  return `panel-${ids}`;
}
