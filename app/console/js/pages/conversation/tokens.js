// The sawtooth: tokens sent per turn, against what the whole log would have cost.
import { html } from "../../lib.js";

/** @param {{id: string, session: object}} props  `id` of the conversation */
export function Tokens({ id }) {
  return html`<p>${id}</p>`;
}
