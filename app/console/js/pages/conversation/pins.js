// What is pinned: messages that are shown word for word whatever is summarized around them.
import { html, useState } from "../../lib.js";
import { get, send } from "../../api.js";
import { useLoaded } from "../../load.js";
import { to } from "../../router.js";
import { count } from "../../format.js";
import { useAction } from "../../ui/confirm.js";
import { Button, Failure, Loaded } from "../../ui/parts.js";
import { placeOf } from "./place.js";

const PAGE = 200;
const UNASKED_MESSAGES = 2_000;

export function Pins({ id, record, round, manages, onChange }) {
  const [isAsked, setAsked] = useState(record.messages <= UNASKED_MESSAGES);
  const pins = useLoaded(async (signal) => (isAsked ? pinned(id, signal) : null), [id, record.updated_at, round, isAsked]);
  const unpinning = useAction((message) => send("DELETE", placeOf(id, "items", message.id, "pin")), onChange);
  return html`<section class="stack" aria-label="Pinned messages">
    <h2>Pinned messages</h2>
    <${Failure} error=${unpinning.error} />
    ${!isAsked
      ? html`<p><${Button} small onClick=${() => setAsked(true)}>Look through ${count(record.messages)} messages<//></p>`
      : html`<${Loaded} from=${shown(pins)} waiting="Looking for pins…">${({ found }) =>
          found.length === 0
            ? html`<p class="soft">None. Pin a message in the log to have it always shown word for word.</p>`
            : html`<ul class="plain-list panel pins">${found.map((message) => html`<li key=${message.id} class="row">
                <a class="number" href=${to(["conversations", id, "log"], { seq: message.seq })}>#${message.seq}</a>
                <span class="small soft">${message.role}</span>
                <span class="grow break">${message.text.slice(0, 200) || message.tool_calls.map((call) => `calls ${call.name}`).join(", ")}</span>
                ${manages && html`<${Button} small disabled=${unpinning.busy} onClick=${() => unpinning.run(message)}>Unpin<//>`}
              </li>`)}</ul>`}<//>`}
  </section>`;
}

/** Not yet asked for is the same as not yet there. */
function shown(pins) {
  return { ...pins, data: pins.data === null ? null : { found: pins.data } };
}

async function pinned(id, signal) {
  const found = [];
  for (let from_seq = 0, total = 1; from_seq < total; from_seq += PAGE) {
    const told = await get(placeOf(id, "log"), { from_seq, limit: PAGE }, { signal });
    found.push(...told.data.filter((message) => message.pinned));
    total = told.total;
  }
  return found;
}
