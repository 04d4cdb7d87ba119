// What tenants, keys and models cost, by day, and what is left of budgets: for an operator of all, else of the own key.
import { html } from "../lib.js";
import { get } from "../api.js";
import { count, dollars, nameTenant, percent, short } from "../format.js";
import { useLoaded } from "../load.js";
import { go, to } from "../router.js";
import { isOperator } from "../session.js";
import { Choices } from "../ui/choices.js";
import { Empty, Loading } from "../ui/parts.js";
import { Spend } from "./costs/spend.js";
import { Budgets, OwnBudget } from "./costs/budgets.js";
import { NotShown, Outdated } from "./operation/access.js";
import { readAllKeys } from "./operation/keys.js";

const DAY_SECONDS = 86_400;
const BY = { key: "Keys", tenant: "Tenants", model: "Models" };
const RANGES = { today: "Today", week: "7 days", month: "This month", quarter: "90 days" };
const DAYS = { today: 1, week: 7, quarter: 90 };
const COLUMNS = [["cost_usd", "Cost"], ["requests", "Requests"], ["prompt_tokens", "Prompt"], ["cached_tokens", "Cached"], ["completion_tokens", "Answers"]];

export function Costs({ route, session }) {
  const isAll = isOperator(session);
  const by = isAll && route.query.get("by") in BY ? route.query.get("by") : isAll ? "key" : "model";
  const range = route.query.get("range") in RANGES ? route.query.get("range") : "month";
  const sort = COLUMNS.some(([name]) => name === route.query.get("sort")) ? route.query.get("sort") : "cost_usd";
  const ask = (changed) => go(["costs"], { by, range, sort, ...changed }, { replace: true });
  const costs = useLoaded(async (signal) => {
    const read = (query) => get(isAll ? "v1/admin/costs" : "v1/costs", { since: beginOf(range), ...query }, { signal });
    const [sums, days, daily, keys] = await Promise.all([read({ by }), read({ by: "day" }), read({ by, daily: true }), isAll ? readBudgets(signal) : null]);
    return { ...sums, by, days: days.data, daily: daily.data, budgets: keys };
  }, [by, range, isAll]);
  const { data, error } = costs;
  return html`
    <div class="page-head"><h1 tabindex="-1">Costs</h1><span class="page-facts small soft">${data && html`<strong class="number">${dollars(totalOf(data.days))}</strong> in all · `}${isAll ? "" : "Of your requests. "}Days are those of UTC</span></div>
    ${error && !data ? html`<${NotShown} error=${error} what="costs" retry=${costs.reload} />` : html`
      <div class="request-filters wrapping" role="group" aria-label="What to add up">
        ${isAll && html`<${Choices} label="By" of=${BY} chosen=${by} onChoose=${(one) => ask({ by: one })} />`}
        <${Choices} label="Since" of=${RANGES} chosen=${range} onChoose=${(one) => ask({ range: one })} />
      </div>
      ${error && html`<${Outdated} error=${error} />`}
      ${data === null ? html`<${Loading}>Adding up…<//>` : html`<div class="stack">
        ${range !== "today" && data.data.length > 0 && html`<${Spend} of=${data} nameOf=${(row) => nameText(row, data.by)} />`}
        <${Table} rows=${data.data} by=${data.by} sort=${sort} hasMore=${data.has_more} onSort=${(one) => ask({ sort: one })} />
        ${isAll ? html`<${Budgets} keys=${data.budgets} />` : html`<${OwnBudget} of=${data} />`}</div>`}`}
  `;
}

/** Unix seconds of the first day of a range, in UTC. */
const totalOf = (days) => days.reduce((sum, day) => sum + (day.cost_usd ?? 0), 0);

function beginOf(range) {
  const now = new Date();
  if (range === "month") return Date.UTC(now.getUTCFullYear(), now.getUTCMonth(), 1) / 1000;
  return Date.UTC(now.getUTCFullYear(), now.getUTCMonth(), now.getUTCDate()) / 1000 - (DAYS[range] - 1) * DAY_SECONDS;
}

const readBudgets = async (signal) => (await readAllKeys(signal)).filter((key) => typeof key.budget_usd === "number" && !key.revoked_at);

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

/** The same as text. */
function nameText(row, by) {
  if (by === "model") return row.model ?? "–";
  const tenant = row.tenant ? nameTenant(row) : "no tenant";
  if (by === "tenant") return tenant;
  const key = row.key_name ?? row.key_id ?? "no key";
  return tenant === key ? key : `${key}, ${tenant}`;
}
