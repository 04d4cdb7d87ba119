// Where a conversation is in the API, what it is called, and what may be done with it.
import { useEffect } from "../../lib.js";
import { get } from "../../api.js";
import { useLoaded } from "../../load.js";

const TITLE_CHARS = 80;

/** The address of something in the API below a conversation. */
export const placeOf = (id, ...rest) => ["v1/conversations", ...[id, ...rest].map(encodeURIComponent)].join("/");

/** Whether who looks may change things. */
export const mayManage = (session) => session.scopes.includes("manage");

/** What a conversation is called: its title, or how what was said first begins; null while that is not known. */
export function useTitle(record) {
  const given = record.metadata.title;
  const log = useLoaded(
    async (signal) => (given || !record.messages ? null : get(placeOf(record.id, "log"), { limit: 4 }, { signal })),
    [record.id, Boolean(given)],
  );
  const title = given || said(log.data) || (log.loading ? null : record.external_id ?? record.id);
  useEffect(() => {
    if (title) document.title = `${title} · Concertina`;
  }, [title]);
  return title;
}

function said(log) {
  const first = log?.data.find((message) => message.role === "user");
  const words = first ? first.text.split(/\s+/).filter(Boolean).join(" ") : "";
  return words.length > TITLE_CHARS ? `${words.slice(0, TITLE_CHARS - 1)}…` : words;
}
