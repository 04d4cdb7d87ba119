// What is stored of a conversation, for a chat that goes on with it.
import { get } from "../../api.js";

const PAGE = 200;
export const SHOWN = 100;

const place = (id, rest = "") => `v1/conversations/${encodeURIComponent(id)}${rest}`;

/** @returns {Promise<{total: number, data: object[]}>} messages of the log from `fromSeq` on */
export function stretch(id, fromSeq, limit, signal) {
  return get(place(id, "/log"), { from_seq: fromSeq, limit }, { signal });
}

/** The newest messages, and what the next request would bring to the model. */
export async function newest(id, signal) {
  const { total } = await stretch(id, 0, 1, signal);
  const fromSeq = Math.max(0, total - SHOWN);
  const { data } = await stretch(id, fromSeq, SHOWN, signal);
  return { messages: data, context: await preview(id, data, signal), total };
}

/** What would be sent now; null where none of these messages names a model that would be asked. */
export async function preview(id, rows, signal) {
  if (!rows.some((row) => row.model)) return null;
  try {
    return await get(place(id, "/context"), { limit: 1 }, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return null;
  }
}

/**
 * All messages before `endSeq` as a client would send them, to have the last one answered once more.
 * @returns {Promise<object[]|null>} null where they cannot be told word for word: something was erased, cut or attached
 */
export async function historyBefore(id, endSeq, signal) {
  const all = [];
  while (all.length < endSeq) {
    const { data } = await stretch(id, all.length, Math.min(PAGE, endSeq - all.length), signal);
    if (!data.length) break;
    all.push(...data);
  }
  return all.every(isPlain) ? all.map(asSent) : null;
}

const isPlain = (row) => !row.truncated && !row.deleted && !row.erased && !row.attachments.length && !row.refusal;

function asSent(row) {
  return {
    role: row.role,
    content: row.tool_calls.length && !row.text ? null : row.text,
    ...(row.name && { name: row.name }),
    ...(row.tool_call_id && { tool_call_id: row.tool_call_id }),
    ...(row.tool_calls.length && {
      tool_calls: row.tool_calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } })),
    }),
  };
}
