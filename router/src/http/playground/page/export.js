// Saves results as files. The browser makes the files; nothing is sent.

import { json } from "./api.js";
import { element } from "./elements.js";

/**
 * Buttons that save `rows()`, which are objects with the same fields, as CSV and JSON, and each of `lines` as
 * JSON Lines under its name. `name` is the name of the first two files.
 */
export function exportOf(name, rows, lines = {}) {
  const button = (label, file, type, content) => element("button", { type: "button", class: "quiet", onclick: () => save(file, type, content()) }, `Save ${label}`);
  return element(
    "p",
    { class: "export" },
    button("CSV", `${name}.csv`, "text/csv", () => csv(rows())),
    button("JSON", `${name}.json`, "application/json", () => json(rows(), 1)),
    ...Object.entries(lines).map(([what, objects]) => button(what, `${what}.jsonl`, "application/jsonl", () => objects().map((object) => `${json(object)}\n`).join(""))),
  );
}

function csv(rows) {
  const lines = rows.map((row) => Object.values(row).map(cell).join(","));
  return [Object.keys(rows[0] ?? {}).join(","), ...lines, ""].join("\r\n");
}

function cell(value) {
  if (value === null) return "";
  if (typeof value === "number") return String(value);
  // A spreadsheet would run a text that begins like a formula; behind an apostrophe it is a text.
  const text = typeof value === "string" ? value.replace(/^(?=[=+\-@\t\r])/, "'") : json(value);
  return `"${text.replaceAll('"', '""')}"`;
}

function save(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  element("a", { href: url, download: name }).click();
  // The download has begun; its data must not stay in memory.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
