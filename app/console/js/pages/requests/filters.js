// Which requests are wanted, as the address says it and as the API takes it.
import { html, useEffect, useState } from "../../lib.js";
import { Button } from "../../ui/parts.js";

/** The texts among the filters: name in the address and in the API, label, an example. */
const TEXTS = [
  ["model", "Model", "any model"],
  ["tenant", "Tenant", "any tenant"],
  ["conversation_id", "Conversation", "any conversation"],
];
const NAMES = ["outcome", ...TEXTS.map(([name]) => name)];

/** @param {URLSearchParams} query  @returns {Record<string, string>} */
export const readFilters = (query) => Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""]));

export const isFiltered = (wish) => NAMES.some((name) => wish[name] !== "");

export const NO_FILTERS = Object.fromEntries(NAMES.map((name) => [name, ""]));

const OUTCOMES = [["", "All"], ["error", "Errors"], ["ok", "Answered"]];

/** One line of filters. `known` are the rows that are shown: their models and tenants are offered. */
export function Filters({ wish, known, onAsk }) {
  return html`<div class="request-filters" role="group" aria-label="Filters">
    <span class="segments" role="group" aria-label="Outcome">${OUTCOMES.map(([value, text]) => html`<button type="button" key=${value} class="choice"
      aria-pressed=${wish.outcome === value} onClick=${() => onAsk({ outcome: value })}>${text}</button>`)}</span>
    ${TEXTS.map(([name, label, empty]) => html`<${TextFilter} key=${name} name=${name} label=${label} empty=${empty} value=${wish[name]} offered=${offered(name, known)}
      onDone=${(value) => onAsk({ [name]: value })} />`)}
    ${isFiltered(wish) && html`<${Button} kind="plain" onClick=${() => onAsk(NO_FILTERS)}>Clear<//>`}
  </div>`;
}

function offered(name, rows) {
  const values = name === "model" ? rows.flatMap((row) => [row.model, row.answered_by]) : rows.map((row) => row[name]);
  return name === "conversation_id" ? [] : [...new Set(values.filter(Boolean))].sort();
}

/** The API compares whole names, so a name counts once it is typed to its end: at Enter, or when the field is left. */
function TextFilter({ name, label, empty, value, offered: names, onDone }) {
  const [typed, setTyped] = useState(value);
  useEffect(() => setTyped(value), [value]);
  const done = () => typed.trim() !== value && onDone(typed.trim());
  return html`<form class="text-filter" onSubmit=${(event) => { event.preventDefault(); done(); }}>
    <input class="input" aria-label=${label} placeholder=${empty} title=${typed || undefined} spellcheck="false" autocomplete="off" list=${names.length ? `known-${name}` : undefined}
      data-set=${value ? "" : undefined} value=${typed} onInput=${(event) => setTyped(event.target.value)} onChange=${done} />
    ${names.length > 0 && html`<datalist id="known-${name}">${names.map((one) => html`<option value=${one} />`)}</datalist>`}
  </form>`;
}
