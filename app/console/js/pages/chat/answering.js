// One answer as it comes: chunks of a completion's stream put together. No components here.
import { ApiError, events } from "../../api.js";

const EVENTS = new Set(["compaction_started", "compaction_completed", "compaction_failed"]);
/** Of one answer. The index of a call is the provider's word, and a list must not become as long as it says. */
const MOST_CALLS = 1_000;

/**
 * @typedef {object} Answer
 * @property {string} text
 * @property {string} reasoning
 * @property {string} refusal
 * @property {{id?: string, name: string, arguments: string}[]} calls
 * @property {string|null} finish  why it ended; null while it has not
 * @property {string|null} conversation  its id
 * @property {string|null} status  as `context_status`
 * @property {object|null} context
 * @property {object|null} usage
 * @property {{type: string, since: number, inputTokens?: number, window?: number, durationMs?: number}|null} compaction
 */

/** @returns {Answer} */
export function nothingYet() {
  return {
    text: "", reasoning: "", refusal: "", calls: [], finish: null, conversation: null, status: null, context: null, usage: null, compaction: null,
  };
}

/**
 * Ask, and tell of each piece as it comes.
 * @param {object} body  of the completion
 * @param {Record<string, string>} headers
 * @param {AbortSignal} signal
 * @param {(answer: Answer, isEvent: boolean) => void} tell  the same object each time; `isEvent` where something happened
 *   that is not text
 * @returns {Promise<Answer>} whole
 */
export async function ask(body, headers, signal, tell) {
  const answer = nothingYet();
  try {
    for await (const { data } of events("v1/chat/completions", body, { signal, headers })) {
      if (data.error) throw new ApiError(0, data);
      tell(answer, took(answer, data));
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    throw new ApiError(0, { error: { message: "The connection to the gateway broke off in the middle of the answer." } });
  }
  if (answer.finish === null) throw new ApiError(0, { error: { message: "The answer broke off before it was whole." } });
  return answer;
}

/** Take a chunk in. @returns {boolean} whether anything but text came */
function took(answer, chunk) {
  answer.conversation = chunk.conversation_id ?? answer.conversation;
  answer.status = chunk.context_status ?? answer.status;
  answer.context = isObject(chunk.context) ? chunk.context : answer.context;
  answer.usage = chunk.usage ?? answer.usage;
  const event = EVENTS.has(chunk.context_event?.type) ? chunk.context_event : null;
  if (event) answer.compaction = followed(answer.compaction, event);
  const [choice] = chunk.choices ?? [];
  const delta = choice?.delta ?? choice?.message ?? {};
  answer.text += typeof delta.content === "string" ? delta.content : "";
  answer.reasoning += delta.reasoning_content ?? (typeof delta.reasoning === "string" ? delta.reasoning : "");
  answer.refusal += delta.refusal ?? "";
  for (const call of delta.tool_calls ?? []) addCall(answer.calls, call);
  answer.finish = choice?.finish_reason ?? answer.finish;
  return Boolean(event || choice?.finish_reason || delta.tool_calls);
}

const isObject = (value) => value !== null && typeof value === "object";

function followed(before, event) {
  if (event.type === "compaction_started") {
    return { type: "running", since: Date.now(), inputTokens: event.input_tokens, window: event.context_window };
  }
  return { ...before, type: event.type === "compaction_failed" ? "failed" : "completed", durationMs: event.duration_ms };
}

function addCall(calls, piece) {
  const at = piece.index ?? 0;
  if (!Number.isInteger(at) || at < 0 || at >= MOST_CALLS) return;
  const call = (calls[at] ??= { name: "", arguments: "" });
  call.id = piece.id ?? call.id;
  call.name += piece.function?.name ?? "";
  call.arguments += piece.function?.arguments ?? "";
}
