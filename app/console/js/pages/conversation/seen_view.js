// A view as the gateway tells it, taken apart: its rows of the log, and what was sent in the order it was sent. Pure but
// for the loading.
import { get } from "../../api.js";
import { DISPOSITIONS } from "../../ui/parts.js";

const PAGE = 1000;
const SECTION = /<earlier_conversation through_turn="(\d+)">\n([\s\S]*?)\n<\/earlier_conversation>\s*/g;
const QUOTED = "Quoted from earlier in this conversation, word for word,";
const SHOWN = new Set(["verbatim", "anchor", "pinned", "masked", "truncated", "cleared", "told"]);

/** Where a view is: of an answer, or of what would be sent now. */
export function pathOf(id, item) {
  const conversation = `v1/conversations/${encodeURIComponent(id)}`;
  return item ? `${conversation}/items/${encodeURIComponent(item)}/context` : `${conversation}/context`;
}

/** The view with what was sent and the newest rows. */
export function loadView(id, item, asked, signal) {
  return get(pathOf(id, item), { ...asked, "include[]": "sent", limit: PAGE, order: "desc" }, { signal });
}

/** Further rows, older and older, a page at a time. @yields {object[]} */
export async function* olderRows(id, item, asked, page, signal) {
  let last = page;
  while (last.has_more && last.data.length) {
    const { messages } = await get(pathOf(id, item), { ...asked, limit: PAGE, order: "desc", after: last.last_id }, { signal });
    last = messages;
    yield messages.data;
  }
}

/** How many rows have each disposition, in the order of the legend. @returns {[string, number][]} */
export function counted(rows) {
  const counts = new Map(Object.keys(DISPOSITIONS).map((kind) => [kind, 0]));
  for (const row of rows) if (row) counts.set(row.disposition, (counts.get(row.disposition) ?? 0) + 1);
  return [...counts].filter(([, number]) => number > 0);
}

/**
 * What was sent, as entries that know what they stand for.
 *
 * @typedef {object} Entry
 * @property {"instructions"|"preamble"|"summary"|"notice"|"quoted"|"message"} kind
 * @property {string} role
 * @property {object} message  as it was sent
 * @property {string} text
 * @property {number} fromSeq  first message of the log that it stands for; -1 if none
 * @property {number} toSeq  one past the last
 * @property {object} [summary]
 * @property {object} [row]  of the log
 *
 * @param {object} view  with `sent`
 * @param {object[]} rows  by seq
 * @returns {Entry[]}
 */
export function entriesOf(view, rows) {
  const sent = [...(view.sent ?? [])];
  const entries = (view.instructions ?? []).map(() => entry("instructions", sent.shift()));
  if (sent.length && (view.summaries.length || view.dropped_messages)) entries.push(...sections(sent.shift(), view));
  const shown = rows.filter((row) => row && SHOWN.has(row.disposition) && !(row.disposition === "told" && row.shown_tokens === 0));
  const quoted = sent.filter(isQuotation).length;
  let next = Math.max(0, shown.length - (sent.length - quoted));
  for (const message of sent) {
    const row = isQuotation(message) ? null : shown[next++];
    if (row) entries.push({ ...entry("message", message), fromSeq: row.seq, toSeq: row.seq + 1, row });
    else entries.push(entry(isQuotation(message) ? "quoted" : "message", message));
  }
  return entries;
}

function entry(kind, message, text = textOf(message)) {
  return { kind, role: message?.role ?? "", message, text, fromSeq: -1, toSeq: -1 };
}

function sections(message, view) {
  const content = textOf(message);
  const found = [...content.matchAll(SECTION)];
  if (found.length !== view.summaries.length) return [entry("summary", message)];
  const end = found.length ? found.at(-1).index + found.at(-1)[0].length : 0;
  const before = found.length ? content.slice(0, found[0].index).trim() : "";
  return [
    ...(before ? [entry("preamble", message, before)] : []),
    ...found.map((match, at) => {
      const summary = view.summaries[at];
      return { ...entry("summary", message, match[2]), summary, fromSeq: summary.from_seq, toSeq: summary.to_seq };
    }),
    ...(content.slice(end).trim() ? [entry("notice", message, content.slice(end).trim())] : []),
  ];
}

function isQuotation(message) {
  return message?.role === "user" && typeof message.content === "string" && message.content.startsWith(QUOTED);
}

/** A message's words; parts that are no text are named. */
export function textOf(message) {
  const { content } = message ?? {};
  const text = Array.isArray(content) ? content.map(partOf).join("\n") : (content ?? "");
  return [text, message?.refusal, ...(message?.tool_calls ?? []).map(callOf)].filter(Boolean).join("\n");
}

function partOf(part) {
  return typeof part === "string" ? part : (part?.text ?? part?.refusal ?? `[${part?.type ?? "part"}]`);
}

function callOf(call) {
  const made = call?.function ?? call?.custom ?? {};
  return `calls ${made.name ?? "?"}(${made.arguments ?? made.input ?? ""})`;
}
