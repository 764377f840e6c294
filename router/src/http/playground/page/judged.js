// Which texts are relevant: grades in a file, and marks made by hand.

/** Fields of an object that may hold the grade of its text. */
const GRADES = ["relevance", "relevant", "label"];
/** Pairs of fields with relevant and other texts, as data sets for re-rankers have them. */
const SIDES = [
  ["positive", "negative"],
  ["positives", "negatives"],
  ["pos", "neg"],
];

/** A defect of an entry, as the end of a sentence about the entry. */
export class Wrong extends Error {}

/** The text of an entry and its grade, which is undefined if the entry has none. */
export function gradedText(entry) {
  const text = typeof entry === "string" ? entry : (entry?.text ?? entry?.document);
  if (typeof text !== "string") throw new Wrong("is neither a text nor an object with a “text”");
  const name = typeof entry === "string" ? undefined : GRADES.find((field) => entry[field] !== undefined && entry[field] !== null);
  return { text, grade: name === undefined ? undefined : gradeOf(entry[name], name) };
}

function gradeOf(value, name) {
  if (typeof value === "boolean") return value ? 1 : 0;
  if (Number.isFinite(value) && value >= 0) return value;
  throw new Wrong(`has a “${name}” that is neither true or false nor a number from 0 up`);
}

/**
 * The queries `{query, texts, grades}` of `entries`. Each entry has a `query`, and `documents`, or texts that
 * are `positive` and `negative`, or one `text`. Entries with the same query are joined. `at` says where an
 * entry is, for errors.
 */
export function readQueries(entries, at) {
  const byQuery = new Map();
  for (const [place, entry] of entries.entries()) {
    try {
      const { query } = entry ?? {};
      if (typeof query !== "string" || query.trim() === "") throw new Wrong("has no “query”, but others have one");
      const known = byQuery.get(query) ?? byQuery.set(query, { query, texts: [], grades: new Map() }).get(query);
      for (const { text, grade } of textsOf(entry)) {
        known.texts.push(text);
        if (grade !== undefined) known.grades.set(text, grade);
      }
    } catch (error) {
      if (error instanceof Wrong) error.message = `${at(place)} ${error.message}.`;
      throw error;
    }
  }
  return [...byQuery.values()];
}

function textsOf(entry) {
  const list = entry.documents ?? entry.texts;
  if (Array.isArray(list)) return list.map(gradedText);
  const sides = SIDES.find(([relevant]) => entry[relevant] !== undefined);
  if (sides) return sides.flatMap((name, side) => [entry[name] ?? []].flat().map((text) => ({ ...gradedText(text), grade: 1 - side })));
  if (entry.text !== undefined || entry.document !== undefined) return [gradedText(entry)];
  throw new Wrong("has a “query” but no “documents”, “positive” or “text”");
}

/** The grades of one query's texts. Marks take the place of the file's grades. */
export class Judgements {
  #given;
  #marks;
  #followers = [];

  /** `given` and `marks` map texts to grades; marks are written into `marks`. */
  constructor(given, marks) {
    this.#given = given;
    this.#marks = marks;
  }

  /** The grade of a text; 0 is not relevant. */
  grade(text) {
    return this.#marks.get(text) ?? this.#given.get(text) ?? 0;
  }

  /** Makes a text relevant, or no longer. */
  toggle(text) {
    this.#marks.set(text, this.grade(text) > 0 ? 0 : this.#given.get(text) || 1);
    this.#followers = this.#followers.filter(({ shown }) => shown.isConnected);
    for (const { update } of this.#followers) update();
  }

  /** Calls `update` now, and after each change while the element `shown` is on the page. */
  follow(shown, update) {
    this.#followers.push({ shown, update });
    update();
  }
}

/** A query with its texts and grades, as `readQueries` and the command `rerank` read it. */
export function judgedLine({ query, texts, judgements }) {
  return { query, documents: texts.map((text) => ({ text, relevance: judgements.grade(text) })) };
}
