// Load, errors, tokens saved, cache hits, cost.
import { html } from "../lib.js";

export function Overview() {
  return html`<div class="page-head"><h1 tabindex="-1">Overview</h1></div>`;
}
