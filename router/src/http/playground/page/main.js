// The page's fields and buttons.

import { info, key, models, Refused, setKey, setModel } from "./api.js";
import { CLASSIFIER } from "./classifier.js";
import { DECISIONS } from "./decisions.js";
import { readDocuments } from "./documents.js";
import { amount, byId, copy, element } from "./elements.js";
import { embeddingView } from "./embedding.js";
import { evaluationOf } from "./evaluation.js";
import { acceptFiles } from "./files.js";
import { Judgements } from "./judged.js";
import { RANKING } from "./ranking.js";

/** Queries with judged documents, to try the evaluation. */
const JUDGED_EXAMPLE = [
  { query: "Which planet is red?", positive: ["Mars is the red planet."], negative: ["Venus is hot.", "Bread is baked from flour and water."] },
  { query: "What is the capital of France?", positive: ["Paris is the capital of France."], negative: ["Lyon is a large city in France.", "The Seine flows through Paris.", "Berlin is the capital of Germany."] },
  { query: "How is bread baked?", positive: ["Bread is baked from flour and water."], negative: ["A red car drives to the bakery.", "The oven is new."] },
];

/** The server's answer to `/info`. */
let served = {};
/** The fields and requests for the kind of the model, and how answers are shown. */
let view = RANKING;
/** The task that a link names. */
let linkedTask;
/** The kinds of the server's models by their names. */
let kinds = new Map();
/** The `/info` of the second model, if it is not the first one. */
let second;
/** Grades given by hand: by query, then by text. A typed query is "", so that it may be reworded. */
let marks = new Map();
/** The tasks of the model, one or two, with their names and views. */
let tasks = [{ view }];
/** The texts of one request by the server's `/info`. */
let limit = Infinity;
/** Whether nobody has typed yet, and no link has filled the fields. */
let isUntouched = true;
/** The fields whose answers are shown, as JSON. */
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
  byId("second-model").addEventListener("change", changeSecondModel);
  byId("task-field").addEventListener("change", changeTask);
  acceptFiles({ area: byId("form"), button: byId("open"), input: byId("file"), field: byId("documents"), complain, done: fileOpened });
  for (const kind of ["input", "change"]) byId("form").addEventListener(kind, touch);
  byId("stop").addEventListener("click", () => running?.abort());
  byId("example").addEventListener("click", () => fill(view.example));
  byId("judged").addEventListener("click", () => fill({ documents: JUDGED_EXAMPLE.map((line) => JSON.stringify(line)).join("\n") }));
  byId("clear").addEventListener("click", () => {
    fill({});
    focusFirst();
  });
  byId("link").addEventListener("click", copyLink);
  byId("models").addEventListener("change", changeModel);
  window.addEventListener("hashchange", () => {
    const state = stateOfLink();
    if (state) openState(state);
  });
  if (/Mac|iPhone|iPad/.test(navigator.platform)) byId("run").querySelector("kbd").textContent = "⌘\u202f↵";
  const state = stateOfLink();
  openState(state ?? view.example);
  isUntouched = state === undefined;
  describe();
}

/** Asks the server for its `/info`, and the user for a key if the server needs one; then runs the example. */
async function describe() {
  try {
    const all = await models();
    const own = ownAddress(all);
    if (own) return location.replace(own);
    offerModels(all);
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

function show(answer) {
  served = answer;
  const { served_model_name: model, model_kind: kind, model_dtype: dtype, max_input_length: longest } = served;
  const detail = (text) => element("span", { class: "detail" }, text);
  byId("model").replaceChildren(element("code", {}, model), detail(kind), detail(dtype), detail(`up to ${amount(longest, "token")}`));
  document.title = `Playground: ${model}`;
  byId("key-form").hidden = true;
  byId("forget").hidden = key() === "";
  tasks = tasksOf(served);
  byId("task-field").hidden = tasks.length < 2;
  for (const [index, label] of byId("task-field").querySelectorAll("label > span").entries()) label.textContent = tasks[index]?.name ?? "";
  showTask(linkedTask);
  showView();
}

/** The tasks of the model: an embedding model can rank by cosines, and some re-rankers can decide. */
function tasksOf({ model_kind: kind, model_type: type, cosine_reranking: cosine, max_questions: decides }) {
  const ranks = { name: "Rank for a query", view: RANKING };
  const answers = { name: "Ask about a text", view: DECISIONS };
  const compares = { name: "Compare texts", view: embeddingView(type?.embedding?.pooling === "splade") };
  if (kind === "embedding") return cosine ? [compares, ranks] : [compares];
  if (kind === "classifier") return [{ name: "Label texts", view: CLASSIFIER }];
  if (kind === "decider") return [answers];
  return decides ? [ranks, answers] : [ranks];
}

/** Chooses the task with this name, if the model has it. */
function showTask(name) {
  if (tasks.length > 1 && tasks[1].name === name) byId("second-task").checked = true;
}

/** The chosen task. */
function task() {
  return tasks[1] && byId("second-task").checked ? tasks[1] : tasks[0];
}

/** Shows the fields of the view. */
function showView() {
  const { default_instruction: instruction, cosine_reranking: cosine } = served;
  view = task().view;
  limit = view === RANKING ? served.max_rerank_texts : view === DECISIONS ? served.max_questions : served.max_client_batch_size;
  const [queryLabel, documentsLabel] = view.labels ?? ["Query", view === RANKING ? "Documents" : "Texts"];
  byId("query-label").textContent = queryLabel;
  byId("documents-label").textContent = documentsLabel;
  for (const field of ["query", "instruction", "raw"]) byId(`${field}-field`).hidden = !view.fields.includes(field);
  byId("raw-note").textContent = cosine ? `cosines instead of ${cosine.score}` : "log-odds instead of probabilities";
  byId("judged").hidden = view !== RANKING;
  byId("instruction").placeholder = instruction ?? "";
  byId("instruction").disabled = instruction === null;
  byId("compare").disabled = instruction === null && byId("second-model-field").hidden;
  if (instruction === null) byId("instruction-note").textContent = "The prompt of this model has no place for an instruction.";
  showSecond();
  markOld();
}

function changeTask() {
  const wasExample = isExample();
  showView();
  if (wasExample) fill(view.example);
}

/** The address of this page with the model in its query, if it was opened as the page of one of several. */
function ownAddress(all) {
  const [, root, name = ""] = location.pathname.match(/^(.*)\/models\/(.+)\/playground$/) ?? [];
  const model = all.find(({ id, aliases = [] }) => [id, ...aliases].includes(decodeURIComponent(name)));
  if (!model || all.length < 2) return undefined;
  const url = new URL(location.href);
  url.pathname = `${root}/playground`;
  url.searchParams.set("model", model.id);
  return url.href;
}

/** Lets the user choose among several models. The address of the page names the chosen one. */
function offerModels(all) {
  kinds = new Map(all.map(({ id, kind }) => [id, kind]));
  const names = [...kinds.keys()];
  byId("models-field").hidden = names.length < 2;
  if (names.length < 2) return;
  const chosen = new URLSearchParams(location.search).get("model") ?? "";
  setModel(chosen);
  byId("models").replaceChildren(...names.map((name) => element("option", { selected: name === chosen }, name)));
  const current = byId("models").value;
  const rankers = names.filter((name) => name !== current && !["classifier", "decider"].includes(kinds.get(name)));
  byId("second-model-field").hidden = rankers.length === 0;
  byId("second-model").replaceChildren(element("option", { value: "" }, `${current} again`), ...rankers.map((name) => element("option", { value: name }, name)));
  if (rankers.length > 0) byId("compare-label").textContent = "Compare with a second instruction or model";
}

/** Asks what the second model takes as an instruction. */
async function changeSecondModel() {
  const name = byId("second-model").value;
  try {
    second = name === "" ? undefined : await info(name);
  } catch (error) {
    return fail(error);
  }
  showSecond();
  markOld();
}

/** Opens the page for another model, with the texts that were typed. */
function changeModel() {
  const url = new URL(location.href);
  url.searchParams.set("model", byId("models").value);
  url.hash = isExample() ? "" : encodeURIComponent(JSON.stringify(stateOfPage()));
  location.assign(url);
}

/** Whether the fields have the example of the view. */
function isExample() {
  return ["query", "documents"].every((field) => byId(field).value === (view.example[field] ?? ""));
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

function compares() {
  return byId("compare").checked && !byId("compare").disabled && view.fields.includes("instruction");
}

function showSecond() {
  byId("second-field").hidden = !compares();
  byId("instruction-label").textContent = compares() ? "Instruction A" : "Instruction";
  const instruction = (second ?? served).default_instruction;
  byId("second").placeholder = instruction ?? "";
  byId("second").disabled = instruction === null;
}

/** Reads the documents, and says what they were understood as. */
function countDocuments() {
  const read = (view.read ?? readDocuments)(byId("documents").value, { noun: view.noun, limit });
  byId("documents-note").textContent = read.note;
  byId("documents-note").classList.toggle("problem", read.problem === true);
  byId("query-field").hidden = read.queries !== undefined || !view.fields.includes("query");
  return read;
}

function fileOpened(name) {
  touch();
  announce(`${name} is in the field: ${byId("documents-note").textContent}`);
}

function touch() {
  isUntouched = false;
  markOld();
}

/** Says whether the fields have changed since the answers that are shown. */
function markOld() {
  countDocuments();
  const isOld = shown !== undefined && fieldsAsText() !== shown;
  byId("old").hidden = !isOld;
  byId("columns").classList.toggle("old", isOld);
}

/** All that the answers depend on. */
function fieldsAsText() {
  return JSON.stringify([view.noun, byId("query").value, byId("documents").value, byId("raw").checked, variants()]);
}

/** How the texts are ranked: by one model and instruction, or by two. */
function variants() {
  const first = { instruction: instructionIn("instruction"), hasPrompt: served.model_kind !== "embedding", takesInstruction: served.default_instruction !== null };
  if (!compares()) return [first];
  const model = byId("second-model").value;
  const other = { instruction: instructionIn("second"), takesInstruction: !byId("second").disabled };
  if (model === "") return [first, { ...first, ...other }];
  return [{ ...first, name: served.served_model_name }, { ...other, model, name: model, hasPrompt: kinds.get(model) !== "embedding" }];
}

function instructionIn(field) {
  return byId(field).disabled ? "" : byId(field).value;
}

function announce(text) {
  byId("status").textContent = text;
}

/** Sends the texts in the fields. The example runs without a click, so that it must not scroll. */
async function run({ isExample } = {}) {
  running?.abort();
  const read = countDocuments();
  const query = byId("query").value;
  complain("");
  if (!byId("query-field").hidden && query.trim() === "") return complain(`Write a ${byId("query-label").textContent.toLowerCase()} first.`, "query");
  if (read.problem) return complain(read.note, "documents");
  const queries = read.queries ?? [{ query, texts: read.texts, grades: read.grades ?? new Map() }];
  if (queries[0].texts.length === 0) return complain(`There are no ${view.noun}s yet.`, "documents");
  const mine = (running = new AbortController());
  const asked = fieldsAsText();
  busy(true);
  try {
    const answers = [];
    for (const [place, { query, texts }] of queries.entries()) {
      if (queries.length > 1) announce(`Query ${place + 1} of ${queries.length} …`);
      const requests = view.requests({ query, texts, variants: variants(), raw: byId("raw").checked });
      answers.push(await Promise.all(requests.map((request) => view.ask(request, mine.signal))));
    }
    if (running === mine) showAnswers({ queries, answers, isJudged: read.queries !== undefined, isExample, asked });
  } catch (error) {
    if (running === mine) fail(error);
  } finally {
    if (running === mine) busy(false);
  }
}

function showAnswers({ queries, answers, isJudged, isExample, asked }) {
  const columns = byId("columns");
  const judged = queries.map(({ query, texts, grades }) => ({ query, texts, judgements: new Judgements(grades, marksOf(isJudged ? query : "")) }));
  byId("empty").hidden = true;
  if (isJudged) announce(evaluationOf({ queries: judged, answers, columns, announce }));
  else {
    const shown = view.show({ answers: answers[0], grades: queries[0].grades, judgements: judged[0].judgements, announce });
    columns.replaceChildren(...shown.columns);
    columns.classList.toggle("pair", shown.columns.length === 2);
    announce(shown.summary);
  }
  shown = asked;
  markOld();
  // On a phone the results are below the fields.
  const results = byId("results");
  if (!isExample && results.getBoundingClientRect().top > window.innerHeight / 2) results.scrollIntoView();
}

/** The grades that were given by hand to a query's texts. */
function marksOf(query) {
  return marks.get(query) ?? marks.set(query, new Map()).get(query);
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

/** The fields and marks that a link holds. The key is never one of them. */
function stateOfPage() {
  const state = Object.fromEntries(["query", "instruction", "documents"].map((id) => [id, byId(id).value]));
  if (byId("compare").checked) state.second = byId("second").value;
  if (byId("raw").checked) state.raw = true;
  if (task() === tasks[1]) state.task = tasks[1].name;
  const { texts } = countDocuments();
  const marked = [...marksOf("")].map(([text, grade]) => [texts.indexOf(text), grade]).filter(([index]) => index >= 0);
  if (marked.length > 0) state.marks = marked;
  return state;
}

/** Fills the fields with a link's content, and chooses its task. */
function openState(state) {
  linkedTask = state.task;
  showTask(linkedTask);
  if (tasks[0].name) showView();
  fill(state);
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
  announce(copied ? "The link is copied. It holds query, instructions, documents and marks." : "The link is in the address bar.");
}

function fill(state) {
  const text = (value) => (typeof value === "string" ? value : "");
  for (const id of ["query", "instruction", "second", "documents"]) byId(id).value = text(state[id]);
  byId("compare").checked = typeof state.second === "string";
  byId("raw").checked = state.raw === true;
  isUntouched = false;
  marks = new Map();
  const { texts } = countDocuments();
  for (const [index, grade] of Array.isArray(state.marks) ? state.marks.filter(Array.isArray) : []) {
    if (texts[index] !== undefined && grade >= 0) marksOf("").set(texts[index], Number(grade));
  }
  showSecond();
  markOld();
}
