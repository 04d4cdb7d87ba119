// One of a few, side by side.
import { html } from "../lib.js";

/** @param {{label: string, of: Record<string, string>, chosen: string, onChoose: (name: string) => void}} props */
export function Choices({ label, of, chosen, onChoose }) {
  return html`<span class="segments" role="group" aria-label=${label}>${Object.entries(of).map(([name, text]) => html`<button type="button" key=${name} class="choice"
    aria-pressed=${name === chosen} onClick=${() => onChoose(name)}>${text}</button>`)}</span>`;
}
