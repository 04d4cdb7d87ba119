// Where a conversation is in the API, what it is called, and what may be done with it.
import { useEffect } from "../../lib.js";
import { exported, upload } from "../../api.js";

/** The address of something in the API below a conversation. */
export const placeOf = (id, ...rest) => ["v1/conversations", ...[id, ...rest].map(encodeURIComponent)].join("/");

/** Whether who looks may change things. */
export const mayManage = (session) => session.scopes.includes("manage");

/** Whether who looks may write into a conversation: an operator sees those of all tenants, and writes into none of them. */
export const isOwn = (session, record) => !session.operator || record.tenant === session.tenant;

/** Copy a conversation into the tenant of who looks. @returns {Promise<string>} the copy's id */
export async function copyConversation(id) {
  const copies = await upload("v1/conversations/import", await exported(placeOf(id, "export")), { query: { format: "jsonl" } });
  return copies.data[0].id;
}

/** What a conversation is called, by its record with `include[]=title`: as the gateway tells it, or the client's id. */
export const titleOf = (record) => record.title ?? record.external_id ?? "Untitled";

/** The same, in the name of the page too. */
export function useTitle(record) {
  const title = titleOf(record);
  useEffect(() => {
    document.title = `${title} · Concertina`;
  }, [title]);
  return title;
}
