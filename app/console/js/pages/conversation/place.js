// Where a conversation is in the API, what it is called, and what may be done with it.
import { useEffect } from "../../lib.js";
import { get } from "../../api.js";
import { useLoaded } from "../../load.js";

const TITLE_CHARS = 80;
const FIRST_MESSAGES = 4;

/** The address of something in the API below a conversation. */
export const placeOf = (id, ...rest) => ["v1/conversations", ...[id, ...rest].map(encodeURIComponent)].join("/");

/** Whether who looks may change things. */
export const mayManage = (session) => session.scopes.includes("manage");

/** What a conversation is called: its title, or how what was said first begins, or the client's id of it. */
export async function titleOf(record, signal) {
  if (record.metadata.title) return record.metadata.title;
  const log = record.messages ? await get(placeOf(record.id, "log"), { limit: FIRST_MESSAGES }, { signal }) : null;
  return beginning(log?.data ?? []) || (record.external_id ?? "Untitled");
}

/** The same, for a component; null while it is not known. */
export function useTitle(record) {
  const { title: given } = record.metadata;
  const loaded = useLoaded((signal) => titleOf(record, signal), [record.id, given, record.messages > 0]);
  const title = given ?? loaded.data ?? (loaded.error ? record.id : null);
  useEffect(() => {
    if (title) document.title = `${title} · Concertina`;
  }, [title]);
  return title;
}

function beginning(messages) {
  const first = messages.find((message) => message.role === "user");
  const words = first ? first.text.split(/\s+/).filter(Boolean).join(" ") : "";
  return words.length > TITLE_CHARS ? `${words.slice(0, TITLE_CHARS - 1)}…` : words;
}
