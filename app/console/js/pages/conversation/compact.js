// Summarize now: first what it would do, then its progress, then what came of it.
import { html } from "../../lib.js";
import { Dialog } from "../../ui/parts.js";

/**
 * @param {object} props
 * @param {string} props.id  of the conversation
 * @param {string} [props.throughItem]  the last item that is to be summarized
 * @param {() => void} props.onClose
 * @param {() => void} [props.onDone]  called when summaries were written
 */
export function Compact({ onClose }) {
  return html`<${Dialog} title="Compact" onClose=${onClose} />`;
}
