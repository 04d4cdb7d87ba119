// What the keyboard does, beside what browsers do anyway.
import { html } from "../lib.js";
import { Dialog } from "../ui/parts.js";
import { PALETTE_KEYS } from "./bar.js";

const KEYS = [
  ["Anywhere", [
    [PALETTE_KEYS, "search, go to a page, do something"],
    ["?", "this help"],
    ["Esc", "close a dialog or a menu"],
    ["Tab", "to the next control; the first one of a page skips to its content"],
  ]],
  ["In the palette", [
    ["↑ ↓", "choose"],
    ["Enter", "open or do it"],
  ]],
  ["In a conversation", [
    ["↑ ↓ PgUp PgDn", "scroll the log, once it has the focus"],
    ["Home End", "to its beginning or end"],
    ["Enter", "in “Find”: to the next message; with Shift to the one before"],
  ]],
  ["In a chat", [
    ["Enter", "send"],
    ["Shift Enter", "begin a new line"],
    ["Esc", "stop the answer"],
  ]],
  ["In a chart", [["← →", "move along it"]]],
];

export function KeyboardHelp({ onClose }) {
  return html`<${Dialog} title="Keyboard" onClose=${onClose}>
    ${KEYS.map(([place, keys]) => html`<section key=${place}><h3>${place}</h3>
      <dl class="keys">${keys.map(([name, words]) => html`<div><dt><kbd>${name}</kbd></dt><dd>${words}</dd></div>`)}</dl></section>`)}
  <//>`;
}
