// Which conversations are wanted, as the address says it and as the API takes it.
import { html, useEffect, useState } from "../../lib.js";
import { useSettled } from "../../load.js";
import { Button, Field } from "../../ui/parts.js";
import { CONTEXT_CHOICES, Choice, KeyChoice } from "../operation/keys.js";

const DAY_SECONDS = 86_400;
const SETTLE_MS = 400;
const DATES = [
  ["created_after", "Created from"],
  ["created_before", "Created until"],
  ["updated_after", "Updated from"],
  ["updated_before", "Updated until"],
];
/** By what a request of the conversation was like: name in the address and in the API. */
const REQUESTED = ["context_status", "model", "key_id"];
/** Two exchanges are four messages, or more. */
const MESSAGES = [["", "any number"], ["4", "more than one exchange"], ["10", "10 and more"], ["50", "50 and more"], ["200", "200 and more"]];
/** In the address: what it says, and how the API takes it. */
const ORDERS = {
  "": ["last active first", { sort: "updated_at", order: "desc" }],
  desc: ["newest first", { order: "desc" }],
  asc: ["oldest first", { order: "asc" }],
};
const NOTHING = { q: "", order: "", name: "", value: "", tenant: "", min_messages: "", context_status: "", model: "", key_id: "", ...Object.fromEntries(DATES.map(([name]) => [name, ""])) };

/** @param {URLSearchParams} query  @returns {Record<string, string>} */
export function asked(query) {
  return Object.fromEntries(Object.keys(NOTHING).map((name) => [name, query.get(name) ?? ""]));
}

export function isFiltered(wish) {
  return Object.entries(wish).some(([name, value]) => value !== "" && name !== "q" && name !== "order");
}

/** What `GET /v1/conversations` is asked with. Days are the reader's own, and both ends belong to a range. */
export function listQuery(wish) {
  const query = { ...(ORDERS[wish.order] ?? ORDERS[""])[1], min_messages: wish.min_messages };
  for (const name of REQUESTED) query[name] = wish[name];
  for (const [name] of DATES) {
    const midnight = Date.parse(`${wish[name]}T00:00`) / 1000;
    if (Number.isNaN(midnight)) continue;
    query[name] = name.endsWith("after") ? Math.max(0, midnight - 1) : midnight + DAY_SECONDS;
  }
  if (wish.name) query[`metadata[${wish.name}]`] = wish.value;
  return query;
}

/** One line: how many filters there are, and the order. */
export function FilterBar({ wish, isOpen, onOpen, onAsk }) {
  const number = [...DATES.map(([name]) => name), ...REQUESTED, "min_messages", "name", "tenant"].filter((name) => wish[name]).length;
  return html`
    <${Button} aria-expanded=${isOpen} onClick=${onOpen}>${number ? `Filters (${number})` : "Filters"}<//>
    ${number > 0 && html`<${Button} kind="plain" onClick=${() => onAsk({ ...NOTHING, order: wish.order })}>Clear<//>`}
    <label><span class="visually-hidden">Order</span>
      <select class="input" value=${wish.order} onChange=${(event) => onAsk({ order: event.target.value })}>
        ${Object.entries(ORDERS).map(([order, [text]]) => html`<option key=${order} value=${order}>${text}</option>`)}
      </select>
    </label>`;
}

export function Filters({ wish, onAsk, hasTenants }) {
  const choose = (name) => (value) => onAsk({ [name]: value });
  return html`<div class="filter-grid">
    <${Field} label="Messages">${(id) => html`<${Choice} id=${id} value=${wish.min_messages} choices=${MESSAGES} onChoose=${choose("min_messages")} />`}<//>
    <${Field} label="Context">${(id) => html`<${Choice} id=${id} value=${wish.context_status} choices=${CONTEXT_CHOICES} onChoose=${choose("context_status")} />`}<//>
    <${Field} label="Model">${(id) => html`<input id=${id} class="input" spellcheck="false" placeholder="any model" value=${wish.model}
      onChange=${(event) => onAsk({ model: event.target.value.trim() })} />`}<//>
    ${hasTenants && html`<${Field} label="Key">${(id) => html`<${KeyChoice} id=${id} value=${wish.key_id} onChoose=${choose("key_id")} />`}<//>`}
    ${DATES.map(([name, label]) => html`<${Field} label=${label}>${(id) => html`<input id=${id} class="input" type="date" value=${wish[name]}
      onChange=${(event) => onAsk({ [name]: event.target.value })} />`}<//>`)}
    <${Pair} wish=${wish} onAsk=${onAsk} />
    ${(hasTenants || wish.tenant) && html`<${Field} label="Tenant">${(id) => html`<input id=${id} class="input" spellcheck="false" placeholder="all" value=${wish.tenant}
      onChange=${(event) => onAsk({ tenant: event.target.value.trim() })} />`}<//>`}
  </div>`;
}

/** A pair of metadata: both names count once they are not typed at any more. */
function Pair({ wish, onAsk }) {
  const [pair, setPair] = useState({ name: wish.name, value: wish.value });
  const typed = `${pair.name}\n${pair.value}`;
  const settled = useSettled(typed, SETTLE_MS);
  useEffect(() => setPair({ name: wish.name, value: wish.value }), [wish.name, wish.value]);
  useEffect(() => {
    if (settled === typed && (pair.name !== wish.name || pair.value !== wish.value)) onAsk(pair);
  }, [settled]);
  return html`
    <${Field} label="Metadata name">${(id) => html`<input id=${id} class="input" maxlength="64" placeholder="topic" value=${pair.name}
      onInput=${(event) => setPair({ ...pair, name: event.target.value })} />`}<//>
    <${Field} label="Metadata value">${(id) => html`<input id=${id} class="input" maxlength="512" placeholder="invoices" value=${pair.value}
      onInput=${(event) => setPair({ ...pair, value: event.target.value })} />`}<//>
  `;
}
