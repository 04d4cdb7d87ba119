// Which requests are wanted, as the address says it and as the API takes it.
import { html, useEffect, useState } from "../../lib.js";
import { Button } from "../../ui/parts.js";
import { CONTEXT_CHOICES, Choice, KeyChoice } from "../operation/keys.js";

const HOUR_SECONDS = 3600;
/** Seconds before now. */
const RANGES = { hour: HOUR_SECONDS, day: 24 * HOUR_SECONDS, week: 7 * 24 * HOUR_SECONDS };
const OUTCOMES = [["", "All"], ["error", "Errors"], ["ok", "Answered"]];
/** The choices: name in the address, label, what each value says. The first is no filter. */
const CHOICES = [
  ["range", "Time", [["", "any time"], ["hour", "last hour"], ["day", "last 24 hours"], ["week", "last 7 days"], ["between", "from … until"]]],
  ["context_status", "Context", CONTEXT_CHOICES],
  ["slow", "Duration", [["", "any duration"], ["1000", "over 1 s"], ["5000", "over 5 s"], ["20000", "over 20 s"], ["60000", "over 1 min"]]],
];
/** The texts: name in the address and in the API, label, what stands there without one. */
const TEXTS = [
  ["model", "Model", "any model"],
  ["provider", "Provider", "any provider"],
  ["status", "Status", "any status"],
  ["tenant", "Tenant", "any tenant"],
  ["conversation_id", "Conversation", "any conversation"],
];
const BETWEEN = [["from", "From"], ["until", "Until"]];
const NAMES = ["outcome", "key_id", ...[...CHOICES, ...TEXTS, ...BETWEEN].map(([name]) => name)];

/** @param {URLSearchParams} query  @returns {Record<string, string>} */
export const readFilters = (query) => Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""]));

export const isFiltered = (wish) => NAMES.some((name) => wish[name] !== "");

export const NO_FILTERS = Object.fromEntries(NAMES.map((name) => [name, ""]));

/** What `GET /v1/admin/requests` is asked with. Times are the reader's own. */
export function requestQuery({ range, from, until, slow, status, ...same }) {
  const moment = (text) => (Number.isNaN(Date.parse(text)) ? null : Date.parse(text) / 1000);
  const times = range in RANGES
    ? { started_after: Date.now() / 1000 - RANGES[range] }
    : range === "between" ? { started_after: moment(from), started_before: moment(until) } : {};
  return { ...same, ...times, min_duration_ms: slow, status: /^[1-5]\d\d$/.test(status) ? status : null };
}

/** The filters. `known` are the rows that are shown: their models, providers, statuses and tenants are offered. */
export function Filters({ wish, known, onAsk }) {
  return html`<div class="request-filters" role="group" aria-label="Filters">
    <span class="segments" role="group" aria-label="Outcome">${OUTCOMES.map(([value, text]) => html`<button type="button" key=${value} class="choice"
      aria-pressed=${wish.outcome === value} onClick=${() => onAsk({ outcome: value })}>${text}</button>`)}</span>
    ${CHOICES.map(([name, label, choices]) => html`<${Choice} key=${name} aria-label=${label} value=${wish[name]} choices=${choices} onChoose=${(value) => onAsk({ [name]: value })} />`)}
    ${wish.range === "between" && BETWEEN.map(([name, label]) => html`<input key=${name} class="input" type="datetime-local" aria-label=${label} title=${label} value=${wish[name]}
      onChange=${(event) => onAsk({ [name]: event.target.value })} />`)}
    <${KeyChoice} aria-label="Key" value=${wish.key_id} onChoose=${(value) => onAsk({ key_id: value })} />
    ${TEXTS.map(([name, label, empty]) => html`<${TextFilter} key=${name} name=${name} label=${label} empty=${empty} value=${wish[name]} offered=${offered(name, known)}
      onDone=${(value) => onAsk({ [name]: value })} />`)}
    ${isFiltered(wish) && html`<${Button} kind="plain" onClick=${() => onAsk(NO_FILTERS)}>Clear<//>`}
  </div>`;
}

/** @returns {[string, string?][]} values, each with its name if it has another */
function offered(name, rows) {
  if (name === "conversation_id") return [];
  const values = name === "model" ? rows.flatMap((row) => [row.model, row.answered_by]) : rows.map((row) => row[name]);
  const named = new Map(name === "tenant" ? rows.map((row) => [row.tenant, row.tenant_name]) : []);
  return [...new Set(values.filter(Boolean))].sort().map((value) => [String(value), named.get(value)]);
}

/** The API compares whole names, so a name counts once it is typed to its end: at Enter, or when the field is left. */
function TextFilter({ name, label, empty, value, offered: values, onDone }) {
  const [typed, setTyped] = useState(value);
  useEffect(() => setTyped(value), [value]);
  const done = () => typed.trim() !== value && onDone(typed.trim());
  return html`<form class="text-filter" onSubmit=${(event) => { event.preventDefault(); done(); }}>
    <input class="input" aria-label=${label} placeholder=${empty} title=${typed || undefined} spellcheck="false" autocomplete="off" list=${values.length ? `known-${name}` : undefined}
      data-set=${value ? "" : undefined} value=${typed} onInput=${(event) => setTyped(event.target.value)} onChange=${done} />
    ${values.length > 0 && html`<datalist id="known-${name}">${values.map(([one, text]) => html`<option value=${one} label=${text ?? undefined} />`)}</datalist>`}
  </form>`;
}
