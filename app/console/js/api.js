// The gateway's own API, as any client may use it. Errors are thrown as ApiError, with the code that docs explain.
import { credentials } from "./session.js";

/** The gateway's address: two folders up, so that it also works behind a path prefix. */
export const ROOT = new URL("../../", import.meta.url);

let endUserHeader = null;
let isOperator = false;

/** Name the header that says who the end user is; the session endpoint tells it. */
export function nameEndUserHeader(name) {
  endUserHeader = name;
}

/** Ask for the conversations of all tenants from now on, as an operator may; the session endpoint tells who is one. */
export function actAsOperator(is) {
  isOperator = is;
}

export class ApiError extends Error {
  constructor(status, body) {
    const error = typeof body?.error === "string" ? { message: body.error } : (body?.error ?? {});
    super(error.message ?? (status ? `The gateway answered ${status}.` : "The gateway cannot be reached."));
    this.status = status;
    this.code = error.code ?? null;
    this.hint = error.hint ?? null;
    this.param = error.param ?? null;
  }
}

/** GET a JSON document. `query` values that are null, undefined or "" are left out; arrays repeat. */
export function get(path, query = {}, { signal } = {}) {
  return json("GET", path, { query, signal });
}

/** Send a JSON body and read a JSON answer. */
export function send(method, path, body, { query = {}, signal, headers } = {}) {
  return json(method, path, { query, body, signal, headers });
}

/** Send text as it is, a file for one, and read a JSON answer. */
export async function upload(path, text, { query = {}, type = "application/octet-stream", signal } = {}) {
  return parse(await request("POST", path, { query, text, signal, headers: { "Content-Type": type } }));
}

/** The text that GET answers with. */
export const exported = async (path) => (await request("GET", path)).text();

/** Have the browser save what GET answers with, under the name `name`. */
export async function download(path, query, name) {
  const saved = URL.createObjectURL(await (await request("GET", path, { query })).blob());
  Object.assign(document.createElement("a"), { href: saved, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(saved), 60_000);
}

/**
 * Send a JSON body and read server-sent events.
 * @yields {{event: string, data: any}} data parsed; the closing `[DONE]` ends it
 */
export async function* events(path, body, { signal, headers, onHeaders } = {}) {
  const answer = await request("POST", path, { body, signal, headers });
  onHeaders?.(answer.headers);
  const type = answer.headers.get("content-type") ?? "";
  if (!type.startsWith("text/event-stream")) {
    yield { event: "message", data: await parse(answer) };
    return;
  }
  const decoder = new TextDecoder();
  let rest = "";
  let isOver = false;
  for await (const bytes of pieces(answer.body)) {
    const blocks = (rest + decoder.decode(bytes, { stream: true })).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const event = parsed(block);
      // Read to the end, lest it look as if we had hung up.
      isOver ||= event?.data === "[DONE]";
      if (event === null || isOver) continue;
      yield { event: event.event, data: JSON.parse(event.data) };
    }
  }
}

async function json(method, path, options) {
  const answer = await request(method, path, options);
  return answer.status === 204 ? null : parse(answer);
}

/** The JSON of an answer. What is none was not written by the gateway: the page of a proxy that wants a login, for one. */
async function parse(answer) {
  try {
    return await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(answer.status, { error: { message: "The answer is not the gateway’s. Is there a proxy in between that wants a login?" } });
  }
}

async function request(method, path, { query = {}, body, text, signal, headers = {} } = {}) {
  // As a segment, "." or ".." would be an address of something else.
  if (path.split("/").some((part) => /^\.{1,2}$/.test(part))) throw new ApiError(404, null);
  const url = new URL(path.replace(/^\//, ""), ROOT);
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") url.searchParams.append(name, String(one));
    }
  }
  // What the console reads is not counted among the requests of applications.
  const sent = { ...(method === "GET" && { "X-Concertina-Console": "1" }), ...headers };
  const { key, endUser } = credentials();
  if (isOperator) sent["X-Concertina-Tenant"] ??= "*";
  if (key) sent.Authorization = `Bearer ${key}`;
  if (endUser && endUserHeader) sent[endUserHeader] = endUser;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(url, {
      method,
      headers: sent,
      body: body === undefined ? text : JSON.stringify(body),
      signal,
      credentials: "omit",
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, null);
  }
  if (!answer.ok) throw new ApiError(answer.status, await answer.json().catch(() => null));
  return answer;
}

async function* pieces(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  let event = "message";
  const data = [];
  for (const line of block.split(/\r?\n/)) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? { event, data: data.join("\n") } : null;
}
