// What every view shows whatever is summarized around it: pinned messages, and the user's standing requests.
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

export function StandingRequests({ id, record, round, manages, onChange }) {
  const place = placeOf(id, "standing_requests");
  const requests = useLoaded((signal) => allOf(place, signal), [id, record.updated_at, round]);
  const removing = useAction((request) => send("DELETE", `${place}/${request.id}`), onChange);
  return html`<section class="stack" aria-label="Standing requests">
    <h2>Standing requests</h2>
    <${Failure} error=${removing.error} />
    <${Loaded} from=${requests} waiting="Looking for standing requests…">${(found) =>
      found.length === 0
        ? html`<p class="soft">None. Rules, preferences, names and prohibitions that the user sets are kept here word for word.</p>`
        : html`<ul class="plain-list panel pins">${found.map((request) => html`<li key=${request.id} class="row">
            <a class="number" href=${to(["conversations", id, "log"], { seq: request.seq })}>#${request.seq}</a>
            <span class="small soft">${request.kind}</span>
            <span class="grow break">${request.text}</span>
            ${manages && html`<${Button} small disabled=${removing.busy} onClick=${() => removing.run(request)}>Remove<//>`}
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
