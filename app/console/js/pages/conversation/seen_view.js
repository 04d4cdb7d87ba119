// A view as the gateway tells it, taken apart: its rows of the log, and what was sent in the order it was sent. Pure but
// for the loading.
import { get } from "../../api.js";
import { DISPOSITIONS } from "../../ui/parts.js";

const PAGE = 1000;

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
 * @property {"instructions"|"introduction"|"summary"|"note"|"user_text"|"quotation"|"message"} kind
 * @property {string} role
 * @property {object} message  as it was sent
 * @property {string} text
 * @property {{from_seq: number, to_seq: number}[]} ranges  messages of the log that it stands for
 * @property {object} [summary]
 * @property {object} [row]  of the log
 *
 * @param {object} view  with `sent`
 * @param {object[]} rows  by seq
 * @returns {Entry[]}
 */
export function entriesOf(view, rows) {
  const summaries = new Map(view.summaries.map((summary) => [summary.id, summary]));
  return (view.sent ?? []).flatMap((message, index) => {
    const place = view.sent_places[index];
    const said = { kind: place.kind, role: message.role, message, text: textOf(message), ranges: rangesOf(place) };
    if (place.kind === "summary") {
      return place.parts.map((part) => ({
        ...said, kind: part.kind, text: unfenced(part), ranges: rangesOf(part), summary: summaries.get(part.summary_id),
      }));
    }
    return place.kind === "message" ? { ...said, row: rows[place.from_seq] } : said;
  });
}

function rangesOf({ from_seq, to_seq, parts = [] }) {
  return from_seq === null ? parts.flatMap(rangesOf) : [{ from_seq, to_seq }];
}

/** A summary without the lines that fence it in. */
function unfenced({ kind, text }) {
  const words = text.trim();
  return kind === "summary" ? words.split("\n").slice(1, -1).join("\n") : words;
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
