// A row of numbers that tell how things stand.
import { html } from "../lib.js";

/**
 * @param {object} props
 * @param {string} props.label  of the whole row
 * @param {{label: string, value: any, note?: any, title?: string, kind?: string}[]} props.of
 */
export function Numbers({ label, of }) {
  return html`<dl class="numbers" aria-label=${label}>
    ${of.map(
      (one) => html`<div class="panel" key=${one.label}>
        <dt class="small soft">${one.label}</dt>
        <dd class="value number ${one.kind ?? ""}" title=${one.title}>${one.value}</dd>
        ${one.note && html`<dd class="small soft">${one.note}</dd>`}
      </div>`,
    )}
  </dl>`;
}
