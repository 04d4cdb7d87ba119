// What a pasted id names: a request, what the model saw for an answer, a conversation.
import { get } from "./api.js";
import { shortId } from "./format.js";
import { to } from "./router.js";
import { isOperator } from "./session.js";

const ID = /^[A-Za-z0-9][\w.:-]{2,127}$/;

/**
 * @typedef {object} Named
 * @property {string} text
 * @property {string} note
 * @property {string} href
 */

/** @returns {Promise<Named[]>} nothing if the text is no id, or names nothing */
export async function lookUp(text, session, signal) {
  if (!ID.test(text) || !session.scopes.includes("read")) return [];
  const { data } = await get("v1/lookup", { id: text }, { signal });
  const named = data.flatMap(({ kind, id, conversation_id: conversation, item_id: item }) => [
    kind === "request" && isOperator(session) && { text: `Request ${shortId(id)}`, note: "its steps in time", href: to(["requests", id]) },
    item && { text: "What the model saw", note: `for the answer in ${shortId(conversation)}`, href: to(["conversations", conversation, "context"], { item }) },
    conversation && { text: `Conversation ${shortId(conversation)}`, note: "its log", href: to(["conversations", conversation]) },
  ]).filter(Boolean);
  return [...new Map(named.map((one) => [one.href, one])).values()];
}
