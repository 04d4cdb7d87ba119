// The list of conversations, with search and filters. All of what is asked for is in the address.
import { html, useEffect, useState } from "../lib.js";
import { useCommands } from "../commands.js";
import { useSettled } from "../load.js";
import { go } from "../router.js";
import { credentials, hasLinkToken } from "../session.js";
import { Button } from "../ui/parts.js";
import { OldLink } from "./operation/access.js";
import { mayManage } from "./conversation/place.js";
import { FilterBar, Filters, asked, isFiltered } from "./conversations/filters.js";
import { Found } from "./conversations/found.js";
import { Import } from "./conversations/import.js";
import { List } from "./conversations/list.js";

const SETTLE_MS = 300;

export function Conversations({ route, session }) {
  const wish = asked(route.query);
  const [round, setRound] = useState(0);
  const [isImporting, setImporting] = useState(false);
  const [isOpen, setOpen] = useState(isFiltered(wish));
  const isOperator = Boolean(session.operator);
  const manages = mayManage(session);
  useCommands([manages && { text: "Import conversations…", run: () => setImporting(true) }]);
  const ask = (changed) => go(["conversations"], { ...wish, ...changed }, { replace: true });
  return html`
    <div class="page-head">
      <h1 tabindex="-1">Conversations</h1>
      ${manages && html`<${Button} onClick=${() => setImporting(true)}>Import…<//>`}
      ${session.scopes.includes("chat") && html`<a class="button primary" href="#/chat">New chat</a>`}
    </div>
    ${hasLinkToken() && !isOperator && html`<${OldLink} />`}
    <div class="list-tools stack">
      <div class="row">
        <${Search} words=${wish.q} onAsk=${(q) => ask({ q })} />
        ${!wish.q && html`<${FilterBar} wish=${wish} isOpen=${isOpen} onOpen=${() => setOpen(!isOpen)} onAsk=${ask} />`}
      </div>
      ${!wish.q && isOpen && html`<${Filters} wish=${wish} onAsk=${ask} hasTenants=${isOperator} />`}
    </div>
    ${wish.q
      ? html`<${Found} words=${wish.q} tenant=${wish.tenant} session=${session} />`
      : html`<${List} key=${round} wish=${wish} session=${session} isFiltered=${isFiltered(wish)} onClear=${() => go(["conversations"])} onAsk=${ask} />`}
    ${!credentials().key && !isOperator && html`<p class="small soft">These are the conversations without a key. The link in the gateway’s start line shows all of them.</p>`}
    ${isImporting && html`<${Import} onClose=${() => setImporting(false)} onDone=${() => setRound((before) => before + 1)} />`}
  `;
}

function Search({ words, onAsk }) {
  const [typed, setTyped] = useState(words);
  const settled = useSettled(typed.trim(), SETTLE_MS);
  useEffect(() => setTyped((before) => (before.trim() === words ? before : words)), [words]);
  useEffect(() => {
    if (settled !== words && settled === typed.trim()) onAsk(settled);
  }, [settled]);
  return html`<form class="row grow" role="search" onSubmit=${(event) => { event.preventDefault(); onAsk(typed.trim()); }}>
    <input class="input grow" type="search" aria-label="Search in all conversations" placeholder="Words that were said, or an id: req_…, chatcmpl-…, conv_…, a client’s own"
      value=${typed} onInput=${(event) => setTyped(event.target.value)} />
    <${Button} type="submit" kind="primary">Search<//>
  </form>`;
}
