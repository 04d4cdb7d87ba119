// What every view shows whatever is summarized around it: pinned messages, and what the user said.
import { html, useState } from "../../lib.js";
import { get, send } from "../../api.js";
import { useLoaded } from "../../load.js";
import { to } from "../../router.js";
import { useAction } from "../../ui/confirm.js";
import { Button, Failure, Loaded } from "../../ui/parts.js";
import { placeOf } from "./place.js";

const PAGE = 100;

export function Pins({ id, record, round, manages, onChange }) {
  const pins = useLoaded((signal) => allOf(placeOf(id, "pins"), signal), [id, record.updated_at, round]);
  const unpinning = useAction((pin) => send("DELETE", placeOf(id, "items", pin.id, "pin")), onChange);
  return html`<section class="stack" aria-label="Pinned messages">
    <h2>Pinned messages</h2>
    <${Failure} error=${unpinning.error} />
    <${Loaded} from=${pins} waiting="Looking for pins…">${(found) =>
      found.length === 0
        ? html`<p class="soft">None. Pin a message in the log to have it always shown word for word.</p>`
        : html`<ul class="plain-list panel pins">${found.flatMap((pin) => pin.messages.map((message, index) => html`<li key=${message.id} class="row">
            <a class="number" href=${to(["conversations", id, "log"], { seq: message.seq })}>#${message.seq}</a>
            <span class="small soft">${message.role}</span>
            <span class="grow break">${message.text}</span>
            ${manages && index === 0 && html`<${Button} small disabled=${unpinning.busy} onClick=${() => unpinning.run(pin)}>Unpin<//>`}
          </li>`))}</ul>`}<//>
  </section>`;
}

export function UserText({ id, record, round, manages, onChange }) {
  const kept = useLoaded((signal) => allOf(placeOf(id, "user_text"), signal), [id, record.updated_at, round]);
  const pinning = useAction((one) => send("POST", placeOf(id, "items", one.id, "pin")), onChange);
  const dropping = useAction((one) => send("DELETE", placeOf(id, "user_text", one.id)), onChange);
  return html`<section class="stack" aria-label="What the user said">
    <h2>What the user said</h2>
    <${Failure} error=${pinning.error ?? dropping.error} />
    <${Loaded} from=${kept} waiting="Looking for user text…">${(found) =>
      found.length === 0
        ? html`<p class="soft">Nothing. What the user said is kept here word for word once its message is no longer shown.</p>`
        : html`<ul class="plain-list panel pins">${found.map((one) => html`<li key=${one.id} class="row">
            <a class="number" href=${to(["conversations", id, "log"], { seq: one.seq })}>#${one.seq}</a>
            <span class="small soft">${one.verbatim ? "whole" : "shortened"}</span>
            <span class="grow break">${one.text}</span>
            ${manages && html`<${Button} small disabled=${pinning.busy} onClick=${() => pinning.run(one)}>Pin<//>`}
            ${manages && html`<${Button} small disabled=${dropping.busy} onClick=${() => dropping.run(one)}>Drop<//>`}
          </li>`)}</ul>`}<//>
  </section>`;
}

async function allOf(place, signal) {
  const found = [];
  for (let page = null; !page || page.has_more; ) {
    page = await get(place, { limit: PAGE, after: page?.last_id }, { signal });
    found.push(...page.data);
  }
  return found;
}
