// A score as a number and a bar.

import { element } from "./elements.js";

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

/** A score as it is shown. */
export function formatted(score, raw) {
  if (raw) return score.toFixed(3).replace("-", "−");
  return (score > 0 && score < 0.00005 ? score.toExponential(1) : score.toFixed(4)).replace("-", "−");
}
