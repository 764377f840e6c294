// A request as code to paste: exactly the body that the page sent, and the key as a variable.

import { json } from "./api.js";
import { copy, element } from "./elements.js";

/** The request as a command for a POSIX shell. */
export function curl({ url, body, keyed }) {
  const parts = [`curl ${quote(url)}`, "-H 'Content-Type: application/json'"];
  if (keyed) parts.push('-H "Authorization: Bearer $API_KEY"');
  parts.push(`-d ${quote(json(body))}`);
  return parts.join(" \\\n  ");
}

/** A text quoted as one word of a shell. */
function quote(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** The request as a Python program with `requests`. */
export function python({ url, body, keyed }) {
  const lines = [
    ...(keyed ? ["import os", ""] : []),
    "import requests",
    "",
    "answer = requests.post(",
    `    ${json(url)},`,
    ...(keyed ? ['    headers={"Authorization": f"Bearer {os.environ[\'API_KEY\']}"},'] : []),
    `    json=${literal(body)},`,
    "    timeout=60,",
    ")",
    "answer.raise_for_status()",
    ...(body.query === undefined ? ["print(answer.json())"] : ["for rank in answer.json():", '    print(rank["index"], rank["score"])']),
  ];
  return lines.join("\n");
}

/** A body as a Python literal. JSON's strings are valid in Python too. */
function literal(body) {
  const value = (value) => (Array.isArray(value) ? `[\n${value.map((entry) => `            ${inline(entry)},\n`).join("")}        ]` : inline(value));
  const fields = Object.entries(body).map(([name, field]) => `        ${json(name)}: ${value(field)},\n`);
  return `{\n${fields.join("")}    }`;
}

/** A value as a Python literal on one line. */
function inline(value) {
  if (Array.isArray(value)) return `[${value.map(inline).join(", ")}]`;
  if (value === null) return "None";
  if (typeof value === "object") return `{${Object.entries(value).map(([name, field]) => `${json(name)}: ${inline(field)}`).join(", ")}}`;
  if (typeof value === "boolean") return value ? "True" : "False";
  return json(value);
}

/** An element that shows both, each with a button that copies it. */
export function codeOf(request, announce) {
  const block = (name, language, code) =>
    element(
      "div",
      { class: "snippet" },
      element(
        "div",
        { class: "row" },
        element("h4", {}, name),
        element("button", { type: "button", class: "quiet", onclick: () => say(copy(code), name, announce) }, `Copy as ${name}`),
      ),
      element("pre", { tabindex: "0", role: "region", "aria-label": `${name} code`, "data-language": language }, code),
    );
  return element(
    "details",
    { class: "code" },
    element("summary", {}, "This request as code"),
    block("curl", "curl", curl(request)),
    block("Python", "python", python(request)),
    request.keyed ? element("p", { class: "hint" }, "The key is read from the variable API_KEY.") : "",
  );
}

async function say(copying, name, announce) {
  announce((await copying) ? `Copied as ${name}.` : "The browser gave no clipboard: select the code and copy it.");
}
