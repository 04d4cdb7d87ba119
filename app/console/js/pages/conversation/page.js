// One conversation: its head, and the view that the address names.
import { html } from "../../lib.js";

export function Conversation({ route }) {
  return html`<div class="page-head"><h1 tabindex="-1">${route.parts[1]}</h1></div>`;
}
