// Which key to look with. Without a session it is the whole page, otherwise a dialog.
import { html, useState } from "../lib.js";
import { credentials, hasLinkToken, signIn } from "../session.js";
import { Button, Dialog, Failure, Field } from "../ui/parts.js";
import { OldLink } from "./operation/access.js";

/** What a header may hold: other characters, such as a typographic dash in a key that was copied, never leave the browser. */
const HEADER = /^[\x20-\x7e]*$/;

export function SignIn({ session, error, onClose }) {
  const before = credentials();
  const [key, setKey] = useState(before.key);
  const [endUser, setEndUser] = useState(before.endUser);
  const submit = (event) => {
    event.preventDefault();
    if (!isPlain) return;
    signIn({ key, endUser });
    onClose?.();
  };
  const isPlain = HEADER.test(key.trim()) && HEADER.test(endUser.trim());
  const form = html`<form class="stack" onSubmit=${submit}>
    <${Field} label="API key or operator’s token" hint="The key that the application sends, or the operator’s token, which is in the link that the gateway prints at its start. It stays in this tab and is sent to this gateway only.">
      ${(id, hint) => html`<input id=${id} aria-describedby=${hint} class="input" type="password" autocomplete="off"
        spellcheck="false" value=${key} onInput=${(event) => setKey(event.target.value)} />`}
    <//>
    ${(session?.end_users || before.endUser) && html`<${Field} label="End user" hint="Leave empty to see what belongs to the key itself.">
      ${(id, hint) => html`<input id=${id} aria-describedby=${hint} class="input" autocomplete="off" value=${endUser}
        onInput=${(event) => setEndUser(event.target.value)} />`}
    <//>`}
    ${!isPlain && html`<p class="notice warn" role="alert">There is a character in it that no key has. Was it copied whole, and nothing else with it?</p>`}
    <div class="row"><${Button} kind="primary" type="submit" disabled=${!isPlain}>Look with this key<//></div>
  </form>`;
  if (onClose) return html`<${Dialog} title="Whose conversations?" onClose=${onClose}>${form}<//>`;
  return html`<main class="page sign-in stack">
    <h1>Concertina</h1>
    ${[401, 403].includes(error.status) && html`<p class="soft">This gateway wants a key with the scope <code>read</code>.</p>`}
    ${hasLinkToken() && html`<${OldLink} />`}
    ${(before.key || before.endUser) && html`<${Failure} error=${error} />`}
    <div class="panel">${form}</div>
  </main>`;
}
