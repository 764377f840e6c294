// Saves results as files. The browser makes the files; nothing is sent.

import { json } from "./api.js";
import { element } from "./elements.js";

/** Buttons that save `rows`, which are objects with the same fields. `name` is the files' name. */
export function exportOf(name, rows) {
  const button = (format, type, content) =>
    element("button", { type: "button", class: "quiet", onclick: () => save(`${name}.${format.toLowerCase()}`, type, content()) }, `Save ${format}`);
  return element(
    "p",
    { class: "export" },
    button("CSV", "text/csv", () => csv(rows)),
    button("JSON", "application/json", () => json(rows, 1)),
  );
}

function csv(rows) {
  const lines = rows.map((row) => Object.values(row).map(cell).join(","));
  return [Object.keys(rows[0]).join(","), ...lines, ""].join("\r\n");
}

function cell(value) {
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
