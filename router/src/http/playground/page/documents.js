// Reads the field of documents: one per line, a pasted JSON list, or JSON Lines; with or without queries.

import { amount } from "./elements.js";
import { gradedText, readQueries, Wrong } from "./judged.js";

/** Queries of one run: each is a request of its own. */
const MAX_QUERIES = 1000;

/**
 * The texts in a field, as `{texts, grades, note}`: grades by text, from a file that has them. JSON whose
 * objects have a `query` gives `{queries, texts: [], note}` instead. A note calls a text `noun`. If an entry
 * of a JSON list or a line of JSON Lines is not a text, or if there are more than `limit`: `{…, note,
 * problem: true}`, and nothing of it must be sent.
 */
export function readDocuments(field, { noun, limit }) {
  const read = readTexts(field, noun);
  const most = Math.max(read.texts.length, ...(read.queries ?? []).map(({ texts }) => texts.length));
  if (read.problem || most <= limit) return read;
  const whose = read.queries ? " for a query" : "";
  return { ...read, note: `${amount(most, noun)}${whose}, but this server takes at most ${limit.toLocaleString("en")} in one request.`, problem: true };
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
  return readEntries(list, noun, "a JSON list", (place) => `Entry ${place} of this JSON list, counted from 0,`);
}

function readJsonLines(field, noun) {
  const entries = [];
  const numbers = [];
  for (const [number, line] of linesOf(field).entries()) {
    if (line.trim() === "") continue;
    try {
      entries.push(JSON.parse(line));
    } catch (error) {
      return readLines(field, noun, ` It begins like JSON Lines, but line ${number + 1} is no JSON: ${error.message}.`);
    }
    numbers.push(number + 1);
  }
  return readEntries(entries, noun, "JSON Lines", (place) => `Line ${numbers[place]} of these JSON Lines`);
}

function readEntries(entries, noun, form, at) {
  try {
    const isJudged = noun === "document" && entries.some((entry) => entry?.query !== undefined);
    return isJudged ? queriesOf(readQueries(entries, at), form) : textsOf(entries, noun, form, at);
  } catch (error) {
    if (!(error instanceof Wrong)) throw error;
    return { texts: [], note: error.message, problem: true };
  }
}

function textsOf(entries, noun, form, at) {
  const texts = [];
  const grades = new Map();
  for (const [place, entry] of entries.entries()) {
    try {
      // The label of a classifier's text is the name of a class.
      const { text, grade } = noun === "document" ? gradedText(entry) : { ...gradedText(entry?.text ?? entry), grade: entry?.label?.toString() };
      texts.push(text);
      if (grade !== undefined) grades.set(text, grade);
    } catch (error) {
      if (error instanceof Wrong) error.message = `${at(place)} ${error.message}.`;
      throw error;
    }
  }
  const graded = grades.size > 0 && noun === "document" ? `, ${[...grades.values()].filter((grade) => grade > 0).length} of them relevant` : "";
  return { texts, grades, note: `${amount(texts.length, noun)}${graded}, understood as ${form}.` };
}

function queriesOf(queries, form) {
  const count = queries.reduce((sum, { texts }) => sum + texts.length, 0);
  const asked = amount(queries.length, "query", "queries");
  const read = { texts: [], queries, note: `${asked} with ${amount(count, "document")}, understood as ${form}.` };
  const empty = queries.find(({ texts }) => texts.length === 0);
  if (empty) return { ...read, note: `The query “${empty.query}” has no documents.`, problem: true };
  if (queries.length <= MAX_QUERIES) return read;
  return { ...read, note: `${asked}, but this page asks at most ${MAX_QUERIES.toLocaleString("en")}: use the command “rerank”.`, problem: true };
}

function readLines(field, noun, remark) {
  const lines = linesOf(field);
  const texts = lines.filter((line) => line.trim() !== "");
  if (texts.length === 0) return { texts, note: `One per line, or JSON: a list or lines, of texts or of objects with “text”${noun === "document" ? ", or with “query” and “documents”" : ""}.` };
  const blank = lines.slice(0, -1).filter((line) => line.trim() === "").length;
  const left = blank === 0 ? "" : `, ${amount(blank, "blank line")} left out`;
  return { texts, note: `${amount(texts.length, noun)}, one per line${left}.${remark}` };
}

function linesOf(field) {
  return field.split(/\r\n|\n|\r/);
}
