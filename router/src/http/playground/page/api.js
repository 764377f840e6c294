// Requests to the server. The key is kept in this tab's session storage, never in an address.

const KEY = "playground-key";

/** An error answer as a sentence. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function key() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function setKey(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

/** The model that requests are for; empty: the server's only or first one. */
let model = "";

export function setModel(name) {
  model = name;
}

/** The address of a route for a model, relative to the page's; by default for the chosen model. */
function address(route, name = model) {
  return serverAddress(name === "" ? route : `models/${encodeURIComponent(name)}/${route}`);
}

function serverAddress(route) {
  const base = new URL(document.baseURI);
  base.hash = base.search = "";
  return new URL(route, base).href;
}

/** The `/info` of a model. */
export async function info(name) {
  return (await send(address("info", name), {})).json();
}

/** All models of the server, with `id` and `kind`. */
export async function models() {
  return (await (await send(serverAddress("v1/models"), {})).json()).data;
}

/**
 * Sends the `body` of `asked` to a route of its `model`. Returns `{result, cost, request}`, where `request`
 * is `asked` with its address, to be shown as code.
 */
export async function ask(route, asked, signal) {
  const request = { ...asked, url: address(route, asked.model), keyed: key() !== "" };
  const answer = await send(request.url, post(asked.body, signal));
  const header = (name) => Number(answer.headers.get(name) ?? NaN);
  const cost = {
    tokens: header("x-compute-tokens"),
    truncated: header("x-truncated-texts"),
    total: header("x-total-time"),
    tokenization: header("x-tokenization-time"),
  };
  return { result: await answer.json(), cost, request };
}

/** The pieces of a model's prompt for a query and a document. */
export async function prompt(body, name) {
  return (await send(address("playground/prompt", name), post(body))).json();
}

function post(body, signal) {
  return { method: "POST", body: json(body), headers: { "Content-Type": "application/json" }, signal };
}

async function send(url, options) {
  const headers = { ...options.headers };
  // Browsers send header values as bytes: a key with other characters cannot be sent, and cannot be right.
  if (/[^\x21-\x7e]/.test(key())) throw new Refused(401, "A key has no spaces and no letters beyond ASCII.");
  if (key()) headers.Authorization = `Bearer ${key()}`;
  let answer;
  try {
    answer = await fetch(url, { ...options, headers, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server does not answer. Is it still running?");
  }
  if (!answer.ok) throw new Refused(answer.status, await sentence(answer));
  return answer;
}

async function sentence(answer) {
  let reason = `HTTP status ${answer.status}`;
  try {
    // The text around the message names the kind of error already.
    const { error } = await answer.json();
    reason = (error?.message ?? error)?.replace(/^[A-Z][a-z]+( [a-z]+)? error: |\.$/g, "") ?? reason;
  } catch {
    // Without an error body, a proxy answered and not the server.
  }
  switch (answer.status) {
    case 401:
      return key() ? "The server does not accept this key." : "This server wants its key.";
    case 424:
      return `The model could not answer: ${reason}.`;
    case 429:
      return `The server is busy: try again in ${answer.headers.get("retry-after") ?? "a few"} s.`;
    case 503:
      return `The server cannot compute at present: ${reason}.`;
    default:
      return `The server refused this: ${reason}.`;
  }
}

// Invisible characters, and characters that change the direction of text, are escaped: pasted into a terminal
// they would mislead.
const UNSEEN = /[\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** JSON with invisible characters escaped. */
export function json(value, indent) {
  const escape = (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return JSON.stringify(value, null, indent).replace(UNSEEN, escape);
}
