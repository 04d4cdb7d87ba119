// Which conversations are wanted, as the address says it and as the API takes it.
import { html, useEffect, useState } from "../../lib.js";
import { useSettled } from "../../load.js";
import { Button, Field } from "../../ui/parts.js";

const DAY_SECONDS = 86_400;
const SETTLE_MS = 400;
const DATES = [
  ["created_after", "Created from"],
  ["created_before", "Created until"],
  ["updated_after", "Updated from"],
  ["updated_before", "Updated until"],
];
const NOTHING = { q: "", order: "", name: "", value: "", tenant: "", ...Object.fromEntries(DATES.map(([name]) => [name, ""])) };

/** @param {URLSearchParams} query  @returns {Record<string, string>} */
export function asked(query) {
  return Object.fromEntries(Object.keys(NOTHING).map((name) => [name, query.get(name) ?? ""]));
}

export function isFiltered(wish) {
  return Object.entries(wish).some(([name, value]) => value !== "" && name !== "q" && name !== "order");
}

/** What `GET /v1/conversations` is asked with. Days are the reader's own, and both ends belong to a range. */
export function listQuery(wish) {
  const query = { order: wish.order || "desc" };
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
  const number = DATES.filter(([name]) => wish[name]).length + (wish.name ? 1 : 0) + (wish.tenant ? 1 : 0);
  return html`
    <${Button} aria-expanded=${isOpen} onClick=${onOpen}>${number ? `Filters (${number})` : "Filters"}<//>
    ${number > 0 && html`<${Button} kind="plain" onClick=${() => onAsk({ ...NOTHING, order: wish.order })}>Clear<//>`}
    <label><span class="visually-hidden">Order</span>
      <select class="input" value=${wish.order || "desc"} onChange=${(event) => onAsk({ order: event.target.value === "desc" ? "" : "asc" })}>
        <option value="desc">newest first</option>
        <option value="asc">oldest first</option>
      </select>
    </label>`;
}

export function Filters({ wish, onAsk, hasTenants }) {
  return html`<div class="filter-grid">
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
