// A ranking: the texts best first, each with its score, its place in the request and, on request, its prompt.

import { prompt } from "./api.js";
import { codeOf } from "./code.js";
import { amount, element } from "./elements.js";
import { promptOf } from "./prompt.js";

/**
 * An element that shows a ranking. `answer` is the result of `rerank`; `places` maps indices to places in the
 * ranking that this one is compared with; `announce` passes a text to screen readers.
 */
export function rankingOf({ title, answer, places, compares, announce }) {
  const { ranks, request } = answer;
  const raw = request.body.raw_scores === true;
  const scale = raw ? Math.max(1e-9, ...ranks.map((rank) => Math.abs(rank.score))) : 1;
  const rows = ranks.map((rank, place) =>
    rowOf({ rank, place, body: request.body, bar: barOf(rank.score, raw, scale), move: moveOf(place, places?.get(rank.index)) }),
  );
  return element(
    "article",
    { class: "ranking", "aria-label": title },
    element("h2", {}, title),
    compares ? element("p", { class: "by", dir: "auto" }, request.body.instruction ?? "The server’s own instruction") : "",
    costOf(answer.cost),
    element("ol", { class: "ranks", role: "list" }, ...rows),
    codeOf(request, announce),
  );
}

/** Places by index. */
export function placesOf(ranks) {
  return new Map(ranks.map((rank, place) => [rank.index, place]));
}

/** The number of documents that have another place in the second ranking. */
export function moved(first, second) {
  const places = placesOf(first);
  return second.filter((rank, place) => places.get(rank.index) !== place).length;
}

function costOf(cost) {
  const entry = (name, ...value) => element("div", {}, element("dt", {}, name), element("dd", {}, ...value));
  const steps = `tokenizer ${cost.tokenization}, queue ${cost.queue}, model ${cost.inference}`;
  return element(
    "dl",
    { class: "cost" },
    entry("Latency", `${cost.total} ms `, element("span", { class: "hint" }, steps)),
    entry("Tokens", cost.tokens.toLocaleString("en")),
    cost.truncated > 0 ? entry("Cut", amount(cost.truncated, "document")) : "",
  );
}

function rowOf({ rank, place, body, bar, move }) {
  const panel = element("div", { class: "panel", id: nextId(), hidden: true });
  const button = element("button", { type: "button", class: "quiet", "aria-expanded": "false", "aria-controls": panel.id }, "Prompt");
  button.setAttribute("aria-label", `Prompt of document ${rank.index + 1}`);
  button.addEventListener("click", () => toggle(button, panel, { query: body.query, text: body.texts[rank.index], instruction: body.instruction }));
  return element(
    "li",
    { class: "rank", "data-index": rank.index },
    element("span", { class: "place" }, String(place + 1)),
    element("p", { class: "text", dir: "auto" }, body.texts[rank.index]),
    bar,
    element("div", { class: "about" }, element("span", { class: "origin" }, `document ${rank.index + 1}`), move, button),
    panel,
  );
}

/** A bar from 0 to 1. A bar of a raw score starts in the middle and goes to either side. */
function barOf(score, raw, scale) {
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
  return score > 0 && score < 0.00005 ? score.toExponential(1).replace("-", "−") : score.toFixed(4);
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
