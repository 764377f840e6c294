// Reads the field of documents: one per line, or a pasted JSON list.

import { amount } from "./elements.js";

/**
 * The documents in a text, as `{texts, note}`. If the text is a list with an element that is not a document:
 * `{texts: [], note, problem: true}`.
 */
export function readDocuments(text) {
  const start = text.trimStart();
  if (!start.startsWith("[")) return readLines(text, "");
  let list;
  try {
    list = JSON.parse(start);
  } catch (error) {
    return readLines(text, ` It begins like a JSON list, but is none: ${error.message}.`);
  }
  if (!Array.isArray(list)) return readLines(text, "");
  return readList(list);
}

function readLines(text, remark) {
  const lines = text.split(/\r\n|\n|\r/);
  const texts = lines.filter((line) => line.trim() !== "");
  if (texts.length === 0) return { texts, note: "One per line, or a JSON list of texts or of objects with “text”." };
  const blank = lines.slice(0, -1).filter((line) => line.trim() === "").length;
  const left = blank === 0 ? "" : `, ${amount(blank, "blank line")} left out`;
  return { texts, note: `${amount(texts.length, "document")}, one per line${left}.${remark}` };
}

function readList(list) {
  const texts = list.map((entry) => (typeof entry === "string" ? entry : entry?.text));
  const wrong = texts.findIndex((entry) => typeof entry !== "string");
  if (wrong >= 0) {
    const note = `Entry ${wrong + 1} of this JSON list is neither a text nor an object with a “text”.`;
    return { texts: [], note, problem: true };
  }
  return { texts, note: `${amount(texts.length, "document")}, understood as a JSON list.` };
}
