// The head of a conversation: what it is called, how full it is, and what can be done with it.
import { html, useEffect, useRef, useState } from "../../lib.js";
import { download, get, send } from "../../api.js";
import { useCommands } from "../../commands.js";
import { useLoaded } from "../../load.js";
import { go, to } from "../../router.js";
import { count } from "../../format.js";
import { Confirm, useAction } from "../../ui/confirm.js";
import { Menu } from "../../ui/menu.js";
import { Badge, Button, ContextBar, Copy, Failure, MODES, Status, When } from "../../ui/parts.js";
import { Compact } from "./compact.js";
import { copyConversation, isOwn, mayManage, placeOf, useTitle } from "./place.js";

const MAX_TITLE_CHARS = 512;
const UNANSWERED = {};

export function Head({ record, session, round, onChange }) {
  const title = useTitle(record);
  const [open, setOpen] = useState(null);
  const close = () => setOpen(null);
  const copying = useAction(() => copyConversation(record.id), (id) => go(["chat", id]));
  const exporting = useAction(() => download(placeOf(record.id, "export"), {}, `${record.id}.jsonl`));
  const manages = mayManage(session);
  const deleted = () => go(["conversations"]);
  const chats = session.scopes.includes("chat");
  useCommands([
    manages && { text: "Compact this conversation…", run: () => setOpen("compact") },
    chats && isOwn(session, record) && { text: "Continue this conversation in a chat", run: () => go(["chat", record.id]) },
    chats && !isOwn(session, record) && { text: "Try in a copy of this conversation", run: copying.run },
    { text: "Export this conversation", run: exporting.run },
    manages && { text: "Rename this conversation", run: () => setOpen("rename") },
    manages && { text: "Delete this conversation…", run: () => setOpen("delete") },
  ]);
  return html`
    <header class="conversation-head">
      <div class="conversation-name">
        ${open === "rename" ? html`<${Rename} title=${title} record=${record} onChange=${onChange} onClose=${close} />`
          : html`<h1 tabindex="-1" class="break" title=${title}>${title ?? "…"}</h1>`}
        <p class="facts small soft number">
          <span class="wide"><code class="break">${record.id}</code><${Copy} text=${record.id} label="Copy id" /></span>
          ${record.external_id && html`<span title="What the client calls it"><span class="wide">client’s id </span><code class="break">${record.external_id}</code></span>`}
          <span>updated <${When} at=${record.updated_at} /></span>
          <span class="wide">created <${When} at=${record.created_at} /></span>
          <span>${count(record.messages)} messages</span>
          <span class="wide">${count(record.tokens)} tokens</span>
          ${MODES[record.mode] && html`<span class="wide">client ${MODES[record.mode]}</span>`}
          ${record.parent && html`<a href=${to(["conversations", record.id, "branches"])}>a branch</a>`}
        </p>
      </div>
      <div class="conversation-side">
        <div class="row actions">
          ${chats && isOwn(session, record) && html`<a class="button primary wide" href=${to(["chat", record.id])}>Continue in chat</a>`}
          ${chats && !isOwn(session, record) && html`<${Button} kind="primary wide" onClick=${copying.run} disabled=${copying.busy}>Try in a copy<//>`}
          ${manages && html`<${Button} kind="wide" onClick=${() => setOpen("compact")}>Compact…<//>`}
          <${Menu} label="More" kind="menu-more" face="More">${(shut) => {
            const leading = (act) => () => { shut(); act(); };
            return html`
              ${chats && isOwn(session, record) && html`<a class="menu-item narrow" href=${to(["chat", record.id])}>Continue in chat</a>`}
              ${chats && !isOwn(session, record) && html`<button type="button" class="menu-item narrow" onClick=${leading(copying.run)}>Try in a copy</button>`}
              ${manages && html`<button type="button" class="menu-item narrow" onClick=${leading(() => setOpen("compact"))}>Compact…</button>`}
              ${manages && html`<button type="button" class="menu-item" onClick=${leading(() => setOpen("rename"))}>Rename</button>`}
              <button type="button" class="menu-item" onClick=${leading(exporting.run)}>Export</button>
              ${manages && html`<button type="button" class="menu-item danger" onClick=${leading(() => setOpen("delete"))}>Delete…</button>`}
              <p class="menu-facts small soft"><code class="break">${record.id}</code></p>`;
          }}<//>
        </div>
        <${Fullness} record=${record} round=${round} />
      </div>
    </header>
    ${exporting.busy && html`<p class="small soft" role="status">Exporting…</p>`}
    ${copying.busy && html`<p class="small soft" role="status">Copying…</p>`}
    <${Failure} error=${exporting.error ?? copying.error} />
    <${OtherMetadata} metadata=${record.metadata} />
    ${open === "compact" && html`<${Compact} id=${record.id} onClose=${close} onDone=${onChange} />`}
    ${open === "delete" && html`<${DeleteConversation} record=${record} onClose=${close} onDeleted=${deleted} />`}
  `;
}

/** A field in the place of the title. */
function Rename({ title, record, onChange, onClose }) {
  const { title: before, ...others } = record.metadata;
  const [draft, setDraft] = useState(before ?? "");
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  const saving = useAction(
    (words) => send("POST", placeOf(record.id), { metadata: words ? { ...others, title: words } : others }),
    () => {
      onClose();
      onChange();
    },
  );
  const submit = (event) => {
    event.preventDefault();
    saving.run(draft.trim());
  };
  return html`<form class="row" onSubmit=${submit} onKeyDown=${(event) => event.key === "Escape" && onClose()}>
    <h1 class="visually-hidden" tabindex="-1">${title}</h1>
    <input class="input grow" aria-label="Title" maxlength=${MAX_TITLE_CHARS} value=${draft} placeholder="As it begins" ref=${field}
      onInput=${(event) => setDraft(event.target.value)} />
    <${Button} type="submit" kind="primary" disabled=${saving.busy}>Save<//>
    <${Button} onClick=${onClose}>Cancel<//>
    <${Failure} error=${saving.error} />
  </form>`;
}

/** What the next request would be sent with. */
function Fullness({ record, round }) {
  const context = useLoaded(
    (signal) => nextPrompt(record.id, signal),
    [record.id, record.messages, record.summaries, round],
  );
  const view = context.data;
  if (view === UNANSWERED) {
    return html`<p class="small soft">No model answered here yet, so it is not known whose window counts.</p>`;
  }
  if (context.error) return html`<p class="small soft">The context cannot be shown: ${context.error.message}</p>`;
  if (view === null) return html`<p class="small soft" role="status">Planning the next request…</p>`;
  return html`
    <${ContextBar} tokens=${view.prompt_tokens} window=${view.window} threshold=${view.compacts_above}
      label="What the next prompt takes of the window" />
    <p class="facts small soft">
      <${Status} of=${view.status} />
      <span class="wide">policy <strong>${view.policy}</strong></span>
      <span class="wide break">model <strong>${view.model}</strong></span>
      ${view.summaries.length > 0 && html`<a class="wide number" href=${to(["conversations", record.id, "summaries"])}>${count(view.summaries.length)} ${view.summaries.length === 1 ? "summary" : "summaries"} shown</a>`}
      ${!view.fits && html`<${Badge} kind="bad">does not fit<//>`}
    </p>
  `;
}

async function nextPrompt(id, signal) {
  const { data } = await get(placeOf(id, "turns"), { limit: 1, order: "desc" }, { signal });
  return data[0]?.model ? get(placeOf(id, "context"), { limit: 1 }, { signal }) : UNANSWERED;
}

function OtherMetadata({ metadata }) {
  const pairs = Object.entries(metadata).filter(([name]) => name !== "title");
  if (pairs.length === 0) return null;
  return html`<dl class="pairs small">${pairs.map(
    ([name, value]) => html`<div><dt>${name}</dt><dd class="break">${value}</dd></div>`,
  )}</dl>`;
}

/** Also in the list of conversations. */
export function DeleteConversation({ record, title, onClose, onDeleted }) {
  const [branches, setBranches] = useState(false);
  const remove = () => send("DELETE", placeOf(record.id), undefined, { query: { branches: branches || null } });
  return html`<${Confirm} title="Delete this conversation?" action="Delete for good" onClose=${onClose}
    onConfirm=${async () => onDeleted(await remove())}>
    <p class="break"><strong>${title ?? record.metadata.title ?? record.external_id ?? record.id}</strong></p>
    <p>Its ${count(record.messages)} messages, its summaries and its stored completions are destroyed. This cannot be
      taken back.</p>
    <label class="row"><input type="checkbox" checked=${branches} onChange=${(event) => setBranches(event.target.checked)} />
      Delete what branched from it, too</label>
  <//>`;
}
