// The head of a conversation: what it is called, how full it is, and what can be done with it.
import { html, useState } from "../../lib.js";
import { download, get, send } from "../../api.js";
import { useLoaded } from "../../load.js";
import { go, to } from "../../router.js";
import { count } from "../../format.js";
import { Confirm, useAction } from "../../ui/confirm.js";
import { Badge, Button, ContextBar, Copy, Failure, MODES, Status, When } from "../../ui/parts.js";
import { Compact } from "./compact.js";
import { mayManage, placeOf, useTitle } from "./place.js";

const MAX_TITLE_CHARS = 512;
const UNANSWERED = {};

export function Head({ record, session, round, onChange }) {
  const title = useTitle(record);
  const [open, setOpen] = useState(null);
  const close = () => setOpen(null);
  const exporting = useAction(() => download(placeOf(record.id, "export"), {}, `${record.id}.jsonl`));
  const manages = mayManage(session);
  const deleted = () => go(["conversations"]);
  return html`
    <header class="conversation-head">
      <div class="conversation-name">
        <${Title} title=${title} record=${record} manages=${manages} onChange=${onChange} />
        <p class="facts small soft">
          <span><code class="break">${record.id}</code><${Copy} text=${record.id} label="Copy id" /></span>
          ${record.external_id && html`<span title="What the client calls it">client’s id <code class="break">${record.external_id}</code></span>`}
          <span>updated <${When} at=${record.updated_at} /></span>
          <span>created <${When} at=${record.created_at} /></span>
          <span class="number">${count(record.messages)} messages</span>
          <span class="number">${count(record.tokens)} tokens</span>
          ${MODES[record.mode] && html`<span>client ${MODES[record.mode]}</span>`}
          ${record.parent && html`<a href=${to(["conversations", record.id, "branches"])}>a branch</a>`}
        </p>
      </div>
      <div class="conversation-side">
        <div class="row actions">
          ${session.scopes.includes("chat") && html`<a class="button primary" href=${to(["chat", record.id])}>Continue in chat</a>`}
          ${manages && html`<${Button} onClick=${() => setOpen("compact")}>Compact…<//>`}
          <${Button} onClick=${exporting.run} disabled=${exporting.busy}>${exporting.busy ? "Exporting…" : "Export"}<//>
          ${manages && html`<${Button} kind="danger" onClick=${() => setOpen("delete")}>Delete…<//>`}
        </div>
        <${Fullness} record=${record} round=${round} />
      </div>
    </header>
    <${Failure} error=${exporting.error} />
    <${OtherMetadata} metadata=${record.metadata} />
    ${open === "compact" && html`<${Compact} id=${record.id} onClose=${close} onDone=${onChange} />`}
    ${open === "delete" && html`<${DeleteConversation} record=${record} onClose=${close} onDeleted=${deleted} />`}
  `;
}

function Title({ title, record, manages, onChange }) {
  const [draft, setDraft] = useState(null);
  const { title: before, ...others } = record.metadata;
  const saving = useAction(
    (words) => send("POST", placeOf(record.id), { metadata: words ? { ...others, title: words } : others }),
    () => {
      setDraft(null);
      onChange();
    },
  );
  if (draft === null) {
    return html`<div class="row title-row"><h1 tabindex="-1" class="break" title=${title}>${title ?? "…"}</h1>
      ${manages && html`<${Button} small kind="plain" onClick=${() => setDraft(before ?? "")}>Rename<//>`}</div>`;
  }
  const submit = (event) => {
    event.preventDefault();
    saving.run(draft.trim());
  };
  return html`<form class="row" onSubmit=${submit} onKeyDown=${(event) => event.key === "Escape" && setDraft(null)}>
    <h1 class="visually-hidden" tabindex="-1">${title}</h1>
    <input class="input grow" aria-label="Title" maxlength=${MAX_TITLE_CHARS} value=${draft} placeholder="As it begins"
      ref=${(input) => input?.dataset.begun === undefined && input && ((input.dataset.begun = ""), input.focus())}
      onInput=${(event) => setDraft(event.target.value)} />
    <${Button} type="submit" kind="primary" disabled=${saving.busy}>Save<//>
    <${Button} onClick=${() => setDraft(null)}>Cancel<//>
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
      <span>policy <strong>${view.policy}</strong></span>
      <span class="break">model <strong>${view.model}</strong></span>
      ${view.summaries.length > 0 && html`<a class="number" href=${to(["conversations", record.id, "summaries"])}>${count(view.summaries.length)} ${view.summaries.length === 1 ? "summary" : "summaries"} shown</a>`}
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
