// The page's fields and buttons.

import { info, key, Refused, rerank, setKey } from "./api.js";
import { readDocuments } from "./documents.js";
import { amount, byId, copy, element } from "./elements.js";
import { moved, placesOf, rankingOf } from "./ranking.js";

const EXAMPLE = {
  query: "What is the capital of France?",
  documents: [
    "The Seine flows through Paris.",
    "Lyon is a large city in France.",
    "Berlin is the capital of Germany.",
    "Paris is the capital of France.",
    "French cheese is famous all over the world.",
  ].join("\n"),
};
/** Routes of models that do not rank. */
const ROUTES = {
  embedding: ["an embedding model, which makes vectors", ["/embed", "/v1/embeddings", "/similarity"]],
  classifier: ["a classifier, which gives labels", ["/predict"]],
};

let running;

start();

function start() {
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && byId("form").contains(event.target)) {
      event.preventDefault();
      run();
    }
  });
  byId("key-form").addEventListener("submit", useKey);
  byId("forget").addEventListener("click", forgetKey);
  byId("compare").addEventListener("change", showSecond);
  byId("documents").addEventListener("input", countDocuments);
  byId("stop").addEventListener("click", () => running?.abort());
  byId("example").addEventListener("click", () => fill(EXAMPLE));
  byId("clear").addEventListener("click", () => {
    fill({});
    byId("query").focus();
  });
  byId("link").addEventListener("click", copyLink);
  window.addEventListener("hashchange", () => {
    const state = stateOfLink();
    if (state) fill(state);
  });
  if (/Mac|iPhone|iPad/.test(navigator.platform)) byId("run").querySelector("kbd").textContent = "⌘\u202f↵";
  fill(stateOfLink() ?? EXAMPLE);
  describe();
}

/** Asks the server for its `/info`, and the user for the key if the server needs it. */
async function describe() {
  try {
    show(await info());
    return true;
  } catch (error) {
    byId("model").textContent = error.status === 401 ? "A server with a key." : error.message;
    if (error.status === 401) askForKey(key() ? error.message : "");
    return false;
  }
}

function show(served) {
  const { served_model_name: model, model_kind: kind, model_dtype: dtype, max_input_length: longest, default_instruction: instruction } = served;
  const detail = (text) => element("span", { class: "detail" }, text);
  byId("model").replaceChildren(element("code", {}, model), detail(kind), detail(dtype), detail(`up to ${amount(longest, "token")}`));
  document.title = `Playground: ${model}`;
  byId("key-form").hidden = true;
  byId("forget").hidden = key() === "";
  if (ROUTES[kind]) return showOtherModel(...ROUTES[kind]);
  for (const id of ["instruction", "second"]) {
    byId(id).placeholder = instruction ?? "";
    byId(id).disabled = byId("compare").disabled = instruction === null;
  }
  if (instruction === null) byId("instruction-note").textContent = "The prompt of this model has no place for an instruction.";
}

function showOtherModel(kind, routes) {
  const listed = routes.flatMap((route, index) => [index === 0 ? "" : index === routes.length - 1 ? " or " : ", ", element("code", {}, route)]);
  byId("other-model").replaceChildren(
    element("p", {}, element("strong", {}, "There is nothing to rank with here.")),
    element("p", {}, `This server serves ${kind}. Send texts to `, ...listed, "; ", element("a", { href: "docs/" }, "the description of the API"), " says how."),
  );
  byId("other-model").hidden = false;
  byId("main").hidden = true;
}

function askForKey(problem) {
  byId("key-form").hidden = false;
  byId("key-problem").textContent = problem;
  byId("key").focus();
}

async function useKey(event) {
  event.preventDefault();
  setKey(byId("key").value.trim());
  if (await describe()) {
    byId("key").value = "";
    byId("key-problem").textContent = "";
    byId("query").focus();
  }
}

function forgetKey() {
  setKey("");
  byId("forget").hidden = true;
  announce("The key is forgotten.");
  describe();
}

function showSecond() {
  const compares = byId("compare").checked;
  byId("second-field").hidden = !compares;
  byId("instruction-label").textContent = compares ? "Instruction A" : "Instruction";
}

function countDocuments() {
  const { texts, note, problem } = readDocuments(byId("documents").value);
  byId("documents-note").textContent = note;
  byId("documents-note").classList.toggle("problem", problem === true);
  return texts;
}

function announce(text) {
  byId("status").textContent = text;
}

/** Ranks the documents in the fields, for one instruction or for both. */
async function run() {
  running?.abort();
  const texts = countDocuments();
  const query = byId("query").value;
  complain("");
  if (query.trim() === "") return complain("Write a query first.", "query");
  if (texts.length === 0) return complain("There are no documents to rank yet.", "documents");
  const compares = byId("compare").checked;
  const fields = compares ? ["instruction", "second"] : ["instruction"];
  const bodies = fields.map((field) => bodyOf(query, texts, byId(field).value));
  const mine = (running = new AbortController());
  busy(true);
  try {
    const answers = await Promise.all(bodies.map((body) => rerank(body, mine.signal)));
    if (running === mine) showAnswers(answers);
  } catch (error) {
    if (running === mine) fail(error);
  } finally {
    if (running === mine) busy(false);
  }
}

function bodyOf(query, texts, instruction) {
  const body = { query, texts };
  if (instruction.trim() !== "") body.instruction = instruction;
  if (byId("raw").checked) body.raw_scores = true;
  return body;
}

function showAnswers(answers) {
  const titles = answers.length === 1 ? ["Ranking"] : ["Ranking A", "Ranking B"];
  const places = placesOf(answers[0].ranks);
  const columns = answers.map((answer, index) =>
    rankingOf({ title: titles[index], answer, places: index === 0 ? undefined : places, compares: answers.length > 1, announce }),
  );
  byId("columns").replaceChildren(...columns);
  byId("columns").classList.toggle("pair", answers.length === 2);
  byId("empty").hidden = true;
  announce(summary(answers));
  // On a phone the results are below the fields.
  const results = byId("results");
  if (results.getBoundingClientRect().top > window.innerHeight / 2) results.scrollIntoView();
}

function summary(answers) {
  const [{ ranks, cost }, second] = answers;
  if (!second) return `${amount(ranks.length, "document")} ranked in ${cost.total} ms. Best: document ${ranks[0].index + 1}.`;
  const count = moved(ranks, second.ranks);
  if (count === 0) return `Both instructions rank the ${amount(ranks.length, "document")} alike.`;
  return `Instruction B moves ${count} of ${amount(ranks.length, "document")}.`;
}

function fail(error) {
  if (error.name === "AbortError") return announce("Stopped.");
  announce("");
  complain(error.message);
  if (error instanceof Refused && error.status === 401) askForKey(error.message);
}

function complain(text, field) {
  byId("problem").textContent = text;
  if (text) byId("problem").scrollIntoView({ block: "nearest" });
  if (field) byId(field).focus();
}

function busy(is) {
  byId("results").setAttribute("aria-busy", String(is));
  byId("stop").hidden = !is;
  if (is) announce("Ranking …");
}

/** The fields that a link holds. The key is never one of them. */
function stateOfPage() {
  const { query, instruction, second, documents, compare, raw } = Object.fromEntries(
    ["query", "instruction", "second", "documents", "compare", "raw"].map((id) => [id, byId(id)]),
  );
  const state = { query: query.value, instruction: instruction.value, documents: documents.value };
  if (compare.checked) state.second = second.value;
  if (raw.checked) state.raw = true;
  return state;
}

function stateOfLink() {
  try {
    const state = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    return typeof state === "object" ? state : undefined;
  } catch {
    return undefined;
  }
}

async function copyLink() {
  const url = new URL(location.href);
  url.hash = encodeURIComponent(JSON.stringify(stateOfPage()));
  history.replaceState(null, "", url);
  const copied = await copy(url.href);
  announce(copied ? "The link is copied. It holds query, instructions and documents." : "The link is in the address bar.");
}

function fill(state) {
  const text = (value) => (typeof value === "string" ? value : "");
  for (const id of ["query", "instruction", "second", "documents"]) byId(id).value = text(state[id]);
  byId("compare").checked = typeof state.second === "string";
  byId("raw").checked = state.raw === true;
  showSecond();
  countDocuments();
}
