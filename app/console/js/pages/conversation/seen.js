// What the model saw at a turn, beside the whole log.
import { html } from "../../lib.js";

/** @param {{id: string, route: object, session: object}} props  `id` of the conversation */
export function Seen({ id }) {
  return html`<p>${id}</p>`;
}
