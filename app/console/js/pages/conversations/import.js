// Conversations from a file: chat messages, an export of ours, or one of the other formats that the gateway reads.
import { html, useState } from "../../lib.js";
import { upload } from "../../api.js";
import { to } from "../../router.js";
import { count } from "../../format.js";
import { useAction } from "../../ui/confirm.js";
import { Button, Dialog, Failure, Field } from "../../ui/parts.js";

export function Import({ onClose, onDone }) {
  const [file, setFile] = useState(null);
  const [told, setTold] = useState(null);
  const { busy, error, run } = useAction(
    async () => upload("v1/conversations/import", await file.text(), { type: "application/json" }),
    (answer) => {
      setTold(answer);
      onDone();
    },
  );
  const footer = told
    ? html`<${Button} kind="primary" onClick=${onClose}>Done<//>`
    : html`<${Button} onClick=${onClose}>Cancel<//>
        <${Button} kind="primary" disabled=${busy || file === null} onClick=${run}>${busy ? "Importing…" : "Import"}<//>`;
  return html`<${Dialog} title="Import conversations" onClose=${onClose} footer=${footer}>
    ${told ? html`<${Taken} told=${told} />` : html`
      <${Field} label="File" hint="JSON or JSON lines: an export of this gateway, chat messages, or a history of another tool.">
        ${(id, hint) => html`<input id=${id} aria-describedby=${hint} class="input" type="file" accept=".json,.jsonl,.ndjson,application/json"
          onChange=${(event) => setFile(event.target.files[0] ?? null)} />`}
      <//>
      <${Failure} error=${error} />`}
  <//>`;
}

function Taken({ told }) {
  return html`<p role="status">${count(told.data.length)} ${told.data.length === 1 ? "conversation was" : "conversations were"} taken in.</p>
    <ul>${told.data.slice(0, 20).map((one) => html`<li><a class="break" href=${to(["conversations", one.id])}>${one.metadata.title ?? one.external_id ?? one.id}</a>
      <span class="small soft"> ${count(one.messages)} messages</span></li>`)}</ul>
    ${told.warnings.length > 0 && html`<div class="notice warn"><ul>${told.warnings.map((warning) => html`<li class="break">${warning}</li>`)}</ul></div>`}`;
}
