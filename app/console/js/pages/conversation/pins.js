// What is pinned: messages that are shown word for word whatever is summarized around them.
import { html, useState } from "../../lib.js";
import { get, send } from "../../api.js";
import { useLoaded } from "../../load.js";
import { to } from "../../router.js";
import { useAction } from "../../ui/confirm.js";
import { Button, Failure, Loaded } from "../../ui/parts.js";
import { placeOf } from "./place.js";

const PAGE = 100;

export function Pins({ id, record, round, manages, onChange }) {
  const pins = useLoaded((signal) => allPins(id, signal), [id, record.updated_at, round]);
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

async function allPins(id, signal) {
  const found = [];
  for (let page = null; !page || page.has_more; ) {
    page = await get(placeOf(id, "pins"), { limit: PAGE, after: page?.last_id }, { signal });
    found.push(...page.data);
  }
  return found;
}
