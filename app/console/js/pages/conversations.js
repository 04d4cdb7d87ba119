// The list of conversations, with search and filters.
import { html } from "../lib.js";

export function Conversations() {
  return html`<div class="page-head"><h1 tabindex="-1">Conversations</h1></div>`;
}
