// The page's fields and buttons.

import { info, key, models, Refused, setKey, setModel } from "./api.js";
import { CLASSIFIER } from "./classifier.js";
import { readDocuments } from "./documents.js";
import { amount, byId, copy, element } from "./elements.js";
import { embeddingView } from "./embedding.js";
import { RANKING } from "./ranking.js";

/** For the kind of the model: its fields, its requests, and how answers are shown. */
let view = RANKING;
/** The texts of one request by the server's `/info`. */
let limit = Infinity;
/** Whether nobody has typed yet, and no link has filled the fields. */
let isUntouched = true;
/** The requests whose answers are shown, as JSON. */
let shown;
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
  for (const kind of ["input", "change"]) byId("form").addEventListener(kind, touch);
  byId("stop").addEventListener("click", () => running?.abort());
  byId("example").addEventListener("click", () => fill(view.example));
  byId("clear").addEventListener("click", () => {
    fill({});
    focusFirst();
  });
  byId("link").addEventListener("click", copyLink);
  byId("models").addEventListener("change", changeModel);
  window.addEventListener("hashchange", () => {
    const state = stateOfLink();
    if (state) fill(state);
  });
  if (/Mac|iPhone|iPad/.test(navigator.platform)) byId("run").querySelector("kbd").textContent = "⌘\u202f↵";
  const state = stateOfLink();
  fill(state ?? view.example);
  isUntouched = state === undefined;
  describe();
}

/** Asks the server for its `/info`, and the user for a key if the server needs one; then runs the example. */
async function describe() {
  try {
    offerModels(await models());
    show(await info());
    if (isUntouched) {
      fill(view.example);
      run({ isExample: true });
    }
    return true;
  } catch (error) {
    byId("model").textContent = error.status === 401 ? "A server with a key." : error.message;
    if (error.status === 401) askForKey(key() ? error.message : "");
    return false;
  }
}

function show(served) {
  const { served_model_name: model, model_kind: kind, model_dtype: dtype, max_input_length: longest, default_instruction: instruction } = served;
  if (kind === "embedding") view = embeddingView(served.model_type?.embedding?.pooling === "splade");
  else if (kind === "classifier") view = CLASSIFIER;
  else view = RANKING;
  limit = view === RANKING ? served.max_rerank_texts : served.max_client_batch_size;
  const detail = (text) => element("span", { class: "detail" }, text);
  byId("model").replaceChildren(element("code", {}, model), detail(kind), detail(dtype), detail(`up to ${amount(longest, "token")}`));
  document.title = `Playground: ${model}`;
  byId("key-form").hidden = true;
  byId("forget").hidden = key() === "";
  for (const field of ["query", "instruction", "raw"]) byId(`${field}-field`).hidden = !view.fields.includes(field);
  byId("documents-label").textContent = view.noun === "document" ? "Documents" : "Texts";
  for (const id of ["instruction", "second"]) {
    byId(id).placeholder = instruction ?? "";
    byId(id).disabled = byId("compare").disabled = instruction === null;
  }
  if (instruction === null) byId("instruction-note").textContent = "The prompt of this model has no place for an instruction.";
  showSecond();
  markOld();
}

/** Lets the user choose among several models. The address of the page names the chosen one. */
function offerModels(names) {
  byId("models-field").hidden = names.length < 2;
  if (names.length < 2) return;
  const chosen = new URLSearchParams(location.search).get("model") ?? "";
  setModel(chosen);
  byId("models").replaceChildren(...names.map((name) => element("option", { selected: name === chosen }, name)));
}

/** Opens the page for another model, with the texts that were typed. */
function changeModel() {
  const url = new URL(location.href);
  url.searchParams.set("model", byId("models").value);
  const state = stateOfPage();
  const isExample = ["query", "documents"].every((field) => state[field] === (view.example[field] ?? ""));
  url.hash = isExample ? "" : encodeURIComponent(JSON.stringify(state));
  location.assign(url);
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
    focusFirst();
  }
}

function forgetKey() {
  setKey("");
  byId("forget").hidden = true;
  announce("The key is forgotten.");
  describe();
}

function focusFirst() {
  byId(view.fields.includes("query") ? "query" : "documents").focus();
}

function showSecond() {
  const compares = byId("compare").checked && view.fields.includes("instruction");
  byId("second-field").hidden = !compares;
  byId("instruction-label").textContent = compares ? "Instruction A" : "Instruction";
}

function countDocuments() {
  const read = readDocuments(byId("documents").value, view.noun, limit);
  byId("documents-note").textContent = read.note;
  byId("documents-note").classList.toggle("problem", read.problem === true);
  return read;
}

function touch() {
  isUntouched = false;
  markOld();
}

/** Says whether the fields have changed since the answers that are shown. */
function markOld() {
  const { texts } = countDocuments();
  const isOld = shown !== undefined && JSON.stringify(bodies(texts)) !== shown;
  byId("old").hidden = !isOld;
  byId("columns").classList.toggle("old", isOld);
}

/** The requests for the fields. */
function bodies(texts) {
  const fields = byId("compare").checked ? ["instruction", "second"] : ["instruction"];
  const instructions = fields.map((field) => byId(field).value);
  return view.bodies({ query: byId("query").value, texts, instructions, raw: byId("raw").checked });
}

function announce(text) {
  byId("status").textContent = text;
}

/** Sends the texts in the fields. The example runs without a click, so that it must not scroll. */
async function run({ isExample } = {}) {
  running?.abort();
  const { texts, note, problem } = countDocuments();
  complain("");
  if (view.fields.includes("query") && byId("query").value.trim() === "") return complain("Write a query first.", "query");
  if (problem) return complain(note, "documents");
  if (texts.length === 0) return complain(`There are no ${view.noun}s yet.`, "documents");
  const requests = bodies(texts);
  const mine = (running = new AbortController());
  busy(true);
  try {
    const answers = await Promise.all(requests.map((body) => view.ask(body, mine.signal)));
    if (running === mine) showAnswers(answers, requests, isExample);
  } catch (error) {
    if (running === mine) fail(error);
  } finally {
    if (running === mine) busy(false);
  }
}

function showAnswers(answers, requests, isExample) {
  const { columns, summary } = view.show(answers, announce);
  byId("columns").replaceChildren(...columns);
  byId("columns").classList.toggle("pair", answers.length === 2);
  byId("empty").hidden = true;
  shown = JSON.stringify(requests);
  markOld();
  announce(summary);
  // On a phone the results are below the fields.
  const results = byId("results");
  if (!isExample && results.getBoundingClientRect().top > window.innerHeight / 2) results.scrollIntoView();
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
  if (is) announce("Computing …");
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
  isUntouched = false;
  showSecond();
  markOld();
}
