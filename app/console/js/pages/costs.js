// What tenants, keys and models cost, and what is left of budgets. Only an operator may see it.
import { html } from "../lib.js";
import { get } from "../api.js";
import { count, dollars, nameTenant, percent, short } from "../format.js";
import { useLoaded } from "../load.js";
import { go, to } from "../router.js";
import { Badge, Empty, Loading } from "../ui/parts.js";
import { NotShown, Outdated } from "./operation/access.js";
import { readAllKeys } from "./operation/keys.js";

const DAY_SECONDS = 86_400;
const WEEK_DAYS = 7;
const BY = { key: "Keys", tenant: "Tenants", model: "Models" };
const RANGES = { today: "Today", week: "7 days", month: "This month" };
const COLUMNS = [["cost_usd", "Cost"], ["requests", "Requests"], ["prompt_tokens", "Prompt"], ["cached_tokens", "Cached"], ["completion_tokens", "Answers"]];

export function Costs({ route }) {
  const by = route.query.get("by") in BY ? route.query.get("by") : "key";
  const range = route.query.get("range") in RANGES ? route.query.get("range") : "month";
  const sort = COLUMNS.some(([name]) => name === route.query.get("sort")) ? route.query.get("sort") : "cost_usd";
  const ask = (changed) => go(["costs"], { by, range, sort, ...changed }, { replace: true });
  const costs = useLoaded(async (signal) => {
    const [sums, keys] = await Promise.all([get("v1/admin/costs", { by, since: beginOf(range) }, { signal }), readBudgets(signal)]);
    return { ...sums, budgets: keys };
  }, [by, range]);
  const { data, error } = costs;
  return html`
    <div class="page-head"><h1 tabindex="-1">Costs</h1><span class="page-facts small soft">Days are those of UTC</span></div>
    ${error && !data ? html`<${NotShown} error=${error} what="costs" retry=${costs.reload} />` : html`
      <div class="request-filters" role="group" aria-label="What to add up">
        <${Choices} label="By" of=${BY} chosen=${by} onChoose=${(one) => ask({ by: one })} />
        <${Choices} label="Since" of=${RANGES} chosen=${range} onChoose=${(one) => ask({ range: one })} />
      </div>
      ${error && html`<${Outdated} error=${error} />`}
      ${data === null ? html`<${Loading}>Adding up…<//>` : html`<div class="stack">
        <${Table} rows=${data.data} by=${by} sort=${sort} hasMore=${data.has_more} onSort=${(one) => ask({ sort: one })} />
        <${Budgets} keys=${data.budgets} /></div>`}`}
  `;
}

/** Unix seconds of the first day of a range, in UTC. */
function beginOf(range) {
  const now = new Date();
  const today = Date.UTC(now.getUTCFullYear(), now.getUTCMonth(), now.getUTCDate()) / 1000;
  if (range === "today") return today;
  return range === "week" ? today - (WEEK_DAYS - 1) * DAY_SECONDS : Date.UTC(now.getUTCFullYear(), now.getUTCMonth(), 1) / 1000;
}

const readBudgets = async (signal) => (await readAllKeys(signal)).filter((key) => typeof key.budget_usd === "number" && !key.revoked_at);

function Choices({ label, of, chosen, onChoose }) {
  return html`<span class="segments" role="group" aria-label=${label}>${Object.entries(of).map(([name, text]) => html`<button type="button" key=${name} class="choice"
    aria-pressed=${name === chosen} onClick=${() => onChoose(name)}>${text}</button>`)}</span>`;
}

function Table({ rows, by, sort, hasMore, onSort }) {
  if (!rows.length) return html`<div class="panel"><${Empty}><p>Nothing was asked in this time.</p><p>Each call of a model adds to these sums, summaries too.</p><//></div>`;
  const sorted = [...rows].sort((one, other) => (other[sort] ?? -1) - (one[sort] ?? -1));
  const most = Math.max(...sorted.map((row) => row[sort] ?? 0), 0);
  const unpriced = rows.reduce((sum, row) => sum + (row.unpriced_calls ?? 0), 0);
  return html`<div class="panel list"><div class="scroll-x" tabindex="0" role="region" aria-label="Costs"><table class="data costs">
    <thead><tr><th scope="col">${BY[by].slice(0, -1)}</th><th scope="col" class="share-cell"><span class="visually-hidden">Share</span></th>
      ${COLUMNS.map(([name, text]) => html`<th scope="col" class="number" aria-sort=${name === sort ? "descending" : undefined} key=${name}>
        <button type="button" class="sort" onClick=${() => onSort(name)}>${text}${name === sort ? " ↓" : ""}</button></th>`)}</tr></thead>
    <tbody>${sorted.map((row) => html`<tr key=${[row.tenant, row.key_id, row.model].join(" ")}>
      <th scope="row" class="break">${nameOf(row, by)}</th>
      <td class="share-cell"><span class="share" style=${{ width: `${most ? (100 * (row[sort] ?? 0)) / most : 0}%` }}></span></td>
      <td class="number">${dollars(row.cost_usd)}${row.unpriced_calls > 0 && html` <span class="soft" title="${count(row.unpriced_calls)} calls have no known price">+ ?</span>`}</td>
      <td class="number">${count(row.requests)}</td><td class="number" title=${count(row.prompt_tokens)}>${short(row.prompt_tokens)}</td>
      <td class="number soft">${percent(row.cached_tokens, row.prompt_tokens)}</td><td class="number" title=${count(row.completion_tokens)}>${short(row.completion_tokens)}</td>
    </tr>`)}</tbody></table></div>
    ${(hasMore || unpriced > 0) && html`<p class="small soft list-note">${hasMore && "Only the highest are shown. "}${unpriced > 0 && html`${count(unpriced)} calls have no known price: set <code>models.NAME.price</code>.`}</p>`}
  </div>`;
}

function nameOf(row, by) {
  if (by === "model") return row.model ?? "–";
  const tenant = row.tenant ? html`<a class="quiet" href=${to(["requests"], { tenant: row.tenant })} title="Requests of ${row.tenant}">${nameTenant(row)}</a>` : html`<span class="soft">no tenant</span>`;
  if (by === "tenant") return tenant;
  const key = row.key_id ? html`<a class="quiet" href=${to(["requests"], { key_id: row.key_id })} title="Requests with ${row.key_id}">${row.key_name ?? row.key_id}</a>` : html`<span class="soft">no key</span>`;
  const isNamedAlike = row.tenant && nameTenant(row) === row.key_name;
  return html`${key}${!isNamedAlike && html` <span class="soft small">${tenant}</span>`}`;
}

function Budgets({ keys }) {
  if (!keys.length) return html`<p class="soft small">No key has a budget. <a href=${to(["keys"])}>Make one with a budget</a> to limit what a team spends in a month.</p>`;
  return html`<section class="panel list"><header><h2>Budgets of this month</h2></header><table class="data"><tbody>${keys.map((key) => {
    const part = key.budget_usd ? (key.spent_usd ?? 0) / key.budget_usd : 1;
    return html`<tr key=${key.id}><th scope="row" class="break">${key.name} <code class="soft">${key.hint}</code></th>
      <td class="wide-cell"><div class="track" role="meter" aria-label="Spent by ${key.name}" aria-valuemin="0" aria-valuemax=${key.budget_usd} aria-valuenow=${key.spent_usd ?? 0}
        aria-valuetext="${dollars(key.spent_usd)} of ${dollars(key.budget_usd)}"><div class="fill ${part >= 1 ? "bad" : part > 0.8 ? "warn" : ""}" style=${{ width: `${Math.min(100, 100 * part)}%` }}></div></div></td>
      <td class="number">${dollars(key.spent_usd)} <span class="soft">of ${dollars(key.budget_usd)}</span></td>
      <td>${part >= 1 ? html`<${Badge} kind="bad">refused until next month<//>` : ""}</td></tr>`;
  })}</tbody></table></section>`;
}
