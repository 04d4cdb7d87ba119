// The summaries of a conversation and all texts they had; whoever knows better corrects them here.
import { html, useEffect, useRef, useState } from "../../lib.js";
import { get, send } from "../../api.js";
import { useLoaded } from "../../load.js";
import { to } from "../../router.js";
import { Confirm } from "../../ui/confirm.js";
import { Markdown } from "../../ui/markdown.js";
import { Badge, Button, Copy, Empty, Field, Loaded, When } from "../../ui/parts.js";
import { SummaryFacts } from "./message.js";
import { Pins, UserText } from "./pins.js";
import { mayManage, placeOf } from "./place.js";
import { Revisions } from "./revisions.js";
import { allSummaries } from "./summary_list.js";

const MAX_INSTRUCTIONS_CHARS = 10_000;

export function Summaries({ id, record, route, session, round, onChange }) {
  const [withInactive, setInactive] = useState(false);
  const [open, setOpen] = useState(null);
  const list = useLoaded(
    (signal) => allSummaries(id, { all: withInactive, signal }),
    [id, record.summaries, record.updated_at, round, withInactive],
  );
  const done = () => {
    setOpen(null);
    onChange();
  };
  const close = () => setOpen(null);
  const manages = mayManage(session);
  const chosen = route.query.get("summary");
  return html`<div class="stack">
    <div class="row">
      <h2 class="grow">Summaries</h2>
      <label class="row small"><input type="checkbox" checked=${withInactive} onChange=${(event) => setInactive(event.target.checked)} />
        Also those that are no longer used</label>
    </div>
    ${!manages && html`<p class="small soft">This key may read; changing summaries takes the scope <code>manage</code>.</p>`}
    <${Loaded} from=${list} waiting="Loading summaries…">${(found) =>
      found.length === 0
        ? html`<${Empty}>No summaries yet. They are written when the prompt passes the policy’s line, or with “Compact…”.<//>`
        : found.map((one) => html`<${Summary} key=${one.id} id=${id} summary=${one} manages=${manages} isChosen=${one.id === chosen}
            onAsk=${(what, extra) => setOpen({ what, summary: one, ...extra })} />`)}<//>
    <${Pins} id=${id} record=${record} round=${round} manages=${manages} onChange=${onChange} />
    <${UserText} id=${id} record=${record} round=${round} manages=${manages} onChange=${onChange} />
    ${open?.what === "edit" && html`<${Edit} id=${id} summary=${open.summary} onClose=${close} onDone=${done} />`}
    ${open?.what === "regenerate" && html`<${Regenerate} id=${id} summary=${open.summary} onClose=${close} onDone=${done} />`}
    ${open?.what === "delete" && html`<${Delete} id=${id} summary=${open.summary} onClose=${close} onDone=${done} />`}
    ${open?.what === "rollback" && html`<${RollBack} id=${id} summary=${open.summary} to=${open.revision} onClose=${close} onDone=${done} />`}
  </div>`;
}

function Summary({ id, summary, manages, isChosen, onAsk }) {
  const [showsRevisions, setRevisions] = useState(false);
  const element = useRef(null);
  useEffect(() => {
    if (isChosen) element.current.scrollIntoView({ block: "start" });
  }, [isChosen]);
  const last = summary.to_seq - 1;
  const named = (action) => `${action} summary of messages ${summary.from_seq} to ${last}`;
  return html`<section class="panel summary ${isChosen ? "found" : ""}" ref=${element} aria-label="Summary of messages ${summary.from_seq} to ${last}">
    <header>
      <h3><a href=${to(["conversations", id, "log"], { seq: summary.from_seq })}>Messages ${summary.from_seq}–${last}</a></h3>
      ${!summary.active && html`<${Badge} title="No view is made of it">not used<//>`}
      ${summary.active && !summary.shown && html`<${Badge} title="It was made ahead: it stands in once the prompt passes the compaction threshold">ready, not shown yet<//>`}
      ${summary.folds.length > 0 && html`<${Badge} title="It stands for other summaries">fold of ${summary.folds.length}<//>`}
      <${SummaryFacts} summary=${summary} />
      <span class="small soft"><${When} at=${summary.created_at} /></span>
    </header>
    <${Markdown} text=${summary.text} />
    <div class="row actions">
      <${Button} small aria-expanded=${showsRevisions} aria-label=${named(showsRevisions ? "Hide revisions" : `Revisions (${summary.revision})`)} onClick=${() => setRevisions(!showsRevisions)}>
        ${showsRevisions ? "Hide revisions" : `Revisions (${summary.revision})`}<//>
      <${Copy} text=${summary.text} name=${named("Copy")} />
      ${manages && html`
        <${Button} small aria-label=${named("Edit…")} onClick=${() => onAsk("edit")}>Edit…<//>
        <${Button} small aria-label=${named("Regenerate…")} onClick=${() => onAsk("regenerate")}>Regenerate…<//>
        <${Button} small kind="danger" aria-label=${named("Delete…")} onClick=${() => onAsk("delete")}>Delete…<//>`}
    </div>
    ${showsRevisions && html`<${Revisions} id=${id} summary=${summary} manages=${manages} onRollBack=${(revision) => onAsk("rollback", { revision })} />`}
  </section>`;
}

function Edit({ id, summary, onClose, onDone }) {
  const [text, setText] = useState(summary.text);
  const save = async () => onDone(await send("PATCH", placeOf(id, "summaries", summary.id), { text, revision: summary.revision }));
  return html`<${Confirm} title="Edit this summary" action="Save as a new revision" kind="primary" onClose=${onClose} onConfirm=${save}
    isReady=${text.trim() !== "" && text !== summary.text}>
    <${Field} label="Text" hint="Models read this in place of the messages. It must be shorter than they are; no model replaces it later.">
      ${(field, hint) => html`<textarea id=${field} aria-describedby=${hint} class="input" rows="12" value=${text}
        onInput=${(event) => setText(event.target.value)}></textarea>`}
    <//>
  <//>`;
}

function Regenerate({ id, summary, onClose, onDone }) {
  const [instructions, setInstructions] = useState("");
  const [model, setModel] = useState("");
  const wish = { instructions: instructions.trim() || null, model: model.trim() || null };
  const ask = async () => onDone(await send("POST", placeOf(id, "summaries", summary.id, "regenerate"), wish));
  return html`<${Confirm} title="Have it written anew" action="Regenerate" kind="primary" onClose=${onClose} onConfirm=${ask}>
    <p>A model reads the same messages again. This text is kept as a revision; if the model fails, nothing changes.</p>
    <${Field} label="What to pay attention to">
      ${(field) => html`<textarea id=${field} class="input" rows="4" maxlength=${MAX_INSTRUCTIONS_CHARS} value=${instructions}
        onInput=${(event) => setInstructions(event.target.value)}></textarea>`}
    <//>
    <${Field} label="Model" hint="Left empty: the one that was asked last.">
      ${(field, hint) => html`<input id=${field} aria-describedby=${hint} class="input" maxlength="256" value=${model}
        onInput=${(event) => setModel(event.target.value)} />`}
    <//>
  <//>`;
}

function Delete({ id, summary, onClose, onDone }) {
  const remove = async () => onDone(await send("DELETE", placeOf(id, "summaries", summary.id)));
  return html`<${Confirm} title="Delete this summary?" action="Delete with all its texts" onClose=${onClose} onConfirm=${remove}>
    <p>Messages ${summary.from_seq}–${summary.to_seq - 1} are shown word for word again, or summarized anew when the room is needed.
      Branches that share it lose it, too.</p>
  <//>`;
}

function RollBack({ id, summary, to: revision, onClose, onDone }) {
  const wish = { revision, current_revision: summary.revision };
  const ask = async () => onDone(await send("POST", placeOf(id, "summaries", summary.id, "rollback"), wish));
  return html`<${Confirm} title=${`Back to revision ${revision}?`} action="Roll back" kind="primary" onClose=${onClose} onConfirm=${ask}>
    <p>Its text becomes the newest revision; those in between stay. The next prompt begins with other bytes, so the provider’s cache is missed once.</p>
  <//>`;
}
