// Finds the documents of a ranking that were cut. The answer of `/rerank` has their number only.

import { prompt } from "./api.js";
import { amount, element } from "./elements.js";

/** More prompts are not asked for: each is a request. */
const MAX_PROMPTS = 100;

/**
 * Marks the rows of documents that were cut, longest documents first, and lists them in `list`. `rows` maps
 * indices to rows. It ends when `count` documents were found, or the ranking is no longer shown.
 */
export async function markCut({ request, count, rows, list }) {
  const { body, model } = request;
  const order = [...body.texts.keys()].sort((a, b) => body.texts[b].length - body.texts[a].length);
  const found = [];
  for (const index of order.slice(0, MAX_PROMPTS)) {
    if (found.length === count || !list.isConnected) return;
    let shown;
    try {
      shown = await prompt({ query: body.query, text: body.texts[index], instruction: body.instruction }, model);
    } catch {
      // Their number stays, and each prompt can still be opened.
      return;
    }
    if (shown.truncated_tokens === 0) continue;
    found.push(index);
    const mark = element("span", { class: "mark" }, `✂ ${amount(shown.truncated_tokens, "token")} cut`);
    rows.get(index)?.querySelector(".origin").after(mark);
    list.textContent = `${found.length < count ? ", among them" : ":"} ${found.sort((a, b) => a - b).join(", ")}`;
  }
}
