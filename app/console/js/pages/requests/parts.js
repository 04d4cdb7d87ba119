// What the list and the page of one request share.
import { html } from "../../lib.js";
import { to } from "../../router.js";
import { Badge } from "../../ui/parts.js";

const time = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });
const CLIENT_LEFT = "client_disconnected";

/** 14:03:22, with the day before it if that is another than today. */
export function clockTime(unixSeconds) {
  const at = new Date(unixSeconds * 1000);
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday ? time.format(at) : `${day.format(at)} ${time.format(at)}`;
}

/** The status, and the error where there is one. A stream may have status 200 and an error. */
export function Outcome({ of: { status, error } }) {
  if (!error) return html`<span class="soft number">${status}</span>`;
  const isOurs = status >= 500 || status < 400;
  if (error === CLIENT_LEFT) return html`<span class="outcome"><${Badge} title="The client left before the end of the answer">${status} client left<//></span>`;
  return html`<span class="outcome"><${Badge} kind=${isOurs ? "bad" : "warn"}>${status}<//> <code title=${error}>${error}</code></span>`;
}

/** Where what the model saw for a request is shown. */
export const seenAt = ({ conversation_id: conversation, item_id: item }) => to(["conversations", conversation, "context"], { item });
