// Why a page for operators shows nothing, and what to do about it.
import { html } from "../../lib.js";
import { Failure } from "../../ui/parts.js";

/**
 * The error of a page that only operators may see.
 * @param {object} props
 * @param {Error} props.error
 * @param {string} props.what  what the page shows: "requests"
 * @param {any} [props.setting]  what switches it on, where it can be switched off: the gateway then answers 404
 * @param {() => void} props.retry
 */
export function NotShown({ error, what, setting, retry }) {
  if (error.status === 401 || error.status === 403) {
    return html`<div class="notice" role="alert"><p><strong>Only an operator may see ${what}.</strong></p>
      <p class="hint">Open the link that the gateway prints at its start, or make a key with the scope <code>admin</code>:
        <code>concertina keys create --name operator --scopes admin</code>, then choose “Change key”.</p></div>`;
  }
  if (error.status === 404 && setting) {
    return html`<div class="notice" role="alert"><p><strong>The gateway keeps no ${what}.</strong></p>
      <p class="hint">Set ${setting} in its configuration and start it again.</p></div>`;
  }
  return html`<${Failure} error=${error} retry=${retry} />`;
}

/** What is shown is from before the last attempt to refresh it. */
export function Outdated({ error }) {
  return html`<div class="notice warn" role="alert">What is shown is old: ${error.message}</div>`;
}

/** The token of a link ended with the start of the gateway that printed it. */
export function OldLink() {
  return html`<div class="notice warn" role="alert"><p><strong>This link is from an earlier start of the gateway.</strong></p>
    <p class="hint">Open the link in its newest start line. <code>auth.operator_token</code> keeps one token for all starts.</p></div>`;
}
