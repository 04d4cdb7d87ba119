// A question before something that cannot be undone, and what came of it.
import { html, useState } from "../lib.js";
import { Button, Dialog, Failure } from "./parts.js";

/**
 * @param {object} props
 * @param {string} props.title
 * @param {string} props.action  what the button says that does it
 * @param {string} [props.kind]  of that button: "danger" or "primary"
 * @param {() => Promise<any>} props.onConfirm  what it throws is shown, and the dialog stays
 * @param {() => void} props.onClose
 */
export function Confirm({ title, action, kind = "danger", isReady = true, onConfirm, onClose, children }) {
  const { busy, error, run } = useAction(onConfirm, onClose);
  const footer = html`
    <${Button} onClick=${onClose}>Cancel<//>
    <${Button} kind=${kind} disabled=${busy || !isReady} onClick=${run}>${busy ? "Working…" : action}<//>
  `;
  return html`<${Dialog} title=${title} onClose=${onClose} footer=${footer}>
    ${children}
    <${Failure} error=${error} />
  <//>`;
}

/**
 * Something that a person starts: whether it runs, and why it failed.
 * @param {(...args: any[]) => Promise<any>} act
 * @param {(result: any) => void} [onDone]
 */
export function useAction(act, onDone) {
  const [state, setState] = useState({ busy: false, error: null });
  const run = async (...args) => {
    setState({ busy: true, error: null });
    let result;
    try {
      result = await act(...args);
    } catch (error) {
      setState({ busy: false, error });
      return;
    }
    setState({ busy: false, error: null });
    onDone?.(result);
  };
  return { ...state, run };
}
