// Talk to a model through the gateway and watch the context while it happens.
import { html } from "../lib.js";

export function Chat() {
  return html`<div class="page-head"><h1 tabindex="-1">Chat</h1></div>`;
}
