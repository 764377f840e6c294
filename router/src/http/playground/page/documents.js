// Reads the field of documents: one per line, a pasted JSON list, or JSON Lines.

import { amount } from "./elements.js";

/**
 * The texts in a field, as `{texts, note}`; a note calls a text `noun`. If an entry of a JSON list or a line
 * of JSON Lines is not a text, or if there are more than `limit`: `{texts, note, problem: true}`, where
 * `texts` must not be sent.
 */
export function readDocuments(field, noun, limit) {
  const read = readTexts(field, noun);
  if (read.problem || read.texts.length <= limit) return read;
  const count = amount(read.texts.length, noun);
  return { ...read, note: `${count}, but this server takes at most ${limit.toLocaleString("en")} in one request.`, problem: true };
}

function readTexts(field, noun) {
  const start = field.trimStart();
  if (start.startsWith("{")) return readJsonLines(field, noun);
  if (!start.startsWith("[")) return readLines(field, noun, "");
  let list;
  try {
    list = JSON.parse(start);
  } catch (error) {
    return readLines(field, noun, ` It begins like a JSON list, but is none: ${error.message}.`);
  }
  if (!Array.isArray(list)) return readLines(field, noun, "");
  const wrong = list.findIndex((entry) => textOf(entry) === undefined);
  if (wrong >= 0) return problem(`Entry ${wrong} of this JSON list, counted from 0, is neither a text nor an object with a “text”.`);
  return { texts: list.map(textOf), note: `${amount(list.length, noun)}, understood as a JSON list.` };
}

function readJsonLines(field, noun) {
  const entries = [];
  for (const [number, line] of linesOf(field).entries()) {
    if (line.trim() === "") continue;
    let entry;
    try {
      entry = JSON.parse(line);
    } catch (error) {
      return readLines(field, noun, ` It begins like JSON Lines, but line ${number + 1} is no JSON: ${error.message}.`);
    }
    if (textOf(entry) === undefined) return problem(`Line ${number + 1} of these JSON Lines is neither a text nor an object with a “text”.`);
    entries.push(entry);
  }
  return { texts: entries.map(textOf), note: `${amount(entries.length, noun)}, understood as JSON Lines.` };
}

function readLines(field, noun, remark) {
  const lines = linesOf(field);
  const texts = lines.filter((line) => line.trim() !== "");
  if (texts.length === 0) return { texts, note: "One per line, or JSON: a list or lines, of texts or of objects with “text”." };
  const blank = lines.slice(0, -1).filter((line) => line.trim() === "").length;
  const left = blank === 0 ? "" : `, ${amount(blank, "blank line")} left out`;
  return { texts, note: `${amount(texts.length, noun)}, one per line${left}.${remark}` };
}

function linesOf(field) {
  return field.split(/\r\n|\n|\r/);
}

function textOf(entry) {
  const text = typeof entry === "string" ? entry : entry?.text;
  return typeof text === "string" ? text : undefined;
}

function problem(note) {
  return { texts: [], note, problem: true };
}
