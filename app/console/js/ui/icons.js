// Small drawings; the words for them are in the labels beside.
import { html } from "../lib.js";

const draw = (path) => html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false"><path d=${path} /></svg>`;

export const ICONS = {
  menu: draw("M2 4h12M2 8h12M2 12h12"),
  search: draw("M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10ZM10.6 10.6 14 14"),
  person: draw("M8 8a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM2.5 14c.6-2.6 2.7-4 5.5-4s4.900 1.400 5.500 4"),
};
