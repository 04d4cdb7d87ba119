// Lines over something: uPlot, loaded where a chart is shown, and always the same numbers as a table.
import { html } from "../lib.js";

export function Chart({ label }) {
  return html`<p>${label}</p>`;
}
