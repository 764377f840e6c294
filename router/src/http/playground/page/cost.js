// The cost of a request, from the headers of its answer.

import { element } from "./elements.js";

/** An element that lists the cost, and `entries`, each a name and its value. */
export function costOf(cost, ...entries) {
  const entry = ([name, ...value]) => element("div", {}, element("dt", {}, name), element("dd", {}, ...value));
  // The header of each step is the longest among the request's texts, and their steps overlap. Without the
  // tokenizer's part, the rest of the time is waiting and computing.
  const parts = `tokenizer ${cost.tokenization} + queue and model ${cost.total - cost.tokenization}`;
  return element(
    "dl",
    { class: "cost" },
    entry(["Latency", `${cost.total} ms `, element("span", { class: "hint" }, parts)]),
    entry(["Tokens", cost.tokens.toLocaleString("en")]),
    ...entries.map(entry),
  );
}
