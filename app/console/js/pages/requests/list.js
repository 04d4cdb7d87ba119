// The list of requests: newest first, live, and still while somebody reads it.
import { html, memo, useCallback, useMemo, useRef, useState } from "../../lib.js";
import { useCommands } from "../../commands.js";
import { count, dollars, milliseconds, nameTenant, percent, shortId } from "../../format.js";
import { go, to } from "../../router.js";
import { Button, Empty, Failure, Loading, Status } from "../../ui/parts.js";
import { NotShown, Outdated } from "../operation/access.js";
import { Filters, NO_FILTERS, isFiltered, readFilters } from "./filters.js";
import { useLiveRequests } from "./live.js";
import { Outcome, clockTime, seenAt } from "./parts.js";
import { KINDS, SpentBar, roughlySpent } from "./time_spent.js";

const SETTING = html`<code>telemetry.recent_requests</code> above 0`;
/** Longer requests fill the bar: one that takes minutes would press all others flat. */
const BAR_QUANTILE = 0.95;

export function RequestList({ route }) {
  const wish = readFilters(route.query);
  const [isPaused, setPaused] = useState(false);
  const table = useRef(null);
  const live = useLiveRequests(wish, isPaused, useCallback(() => isRead(table.current), []));
  const ask = (changed) => go(["requests"], { ...wish, ...changed }, { replace: true });
  useCommands([
    { text: isPaused ? "Go on refreshing the list" : "Pause the list", run: () => setPaused(!isPaused) },
    { text: wish.outcome === "error" ? "Show all requests" : "Show only requests with errors", run: () => ask({ outcome: wish.outcome === "error" ? "" : "error" }) },
    isFiltered(wish) && { text: "Clear the filters", run: () => ask(NO_FILTERS) },
  ]);
  const isAway = live.error && live.rows === null;
  const showNew = () => {
    live.showNew();
    scrollTo({ top: 0 });
    document.querySelector("h1")?.focus({ preventScroll: true });
  };
  return html`
    <div class="page-head">
      <h1 tabindex="-1">Requests</h1>
      ${live.rows !== null && html`<${Summary} rows=${live.rows} />`}
      ${!isAway && html`<${Button} aria-pressed=${isPaused} onClick=${() => setPaused(!isPaused)}>${isPaused ? "Go on" : "Pause"}<//>`}
    </div>
    ${isAway ? html`<${NotShown} error=${live.error} what="requests" setting=${SETTING} retry=${live.reload} />` : html`
      <${Filters} wish=${wish} known=${live.rows ?? []} onAsk=${ask} />
      ${live.error && live.rows !== null && html`<${Outdated} error=${live.error} />`}
      <p class="visually-hidden" role="status">${live.waiting > 0 ? "New requests wait above the list" : ""}</p>
      ${live.waiting > 0 && html`<div class="new-rows"><${Button} kind="primary" small onClick=${showNew}>↑ ${count(live.waiting)} new<//></div>`}
      ${live.rows === null ? html`<${Loading}>Reading the requests…<//>` : html`<${Rows} live=${live} wish=${wish} table=${table} isPaused=${isPaused} onClear=${() => ask(NO_FILTERS)} />`}`}
  `;
}

/** Whether somebody is about to read or to click: then no row moves. */
function isRead(table) {
  if (!table) return false;
  const hasPointer = matchMedia("(hover: hover)").matches && table.matches(":hover");
  return hasPointer || table.contains(document.activeElement) || table.getBoundingClientRect().top < 0;
}

function Rows({ live, wish, table, isPaused, onClear }) {
  const most = useMemo(() => quantile(live.rows.map((row) => row.duration_ms), BAR_QUANTILE), [live.rows]);
  const query = JSON.stringify(wish);
  if (live.rows.length === 0) return html`<div class="panel">${isFiltered(wish)
    ? html`<${Empty}><p>No request that is kept is like that.</p><p><${Button} onClick=${onClear}>Clear the filters<//></p><//>`
    : html`<${Empty}><p>Nothing was asked yet.</p><p>Each request to a model appears here when it ends.</p><//>`}</div>`;
  return html`<div class="panel list ${live.isStale ? "stale" : ""}" aria-busy=${live.isStale}>
    <table class="data requests" ref=${table} onKeyDown=${moveByArrows}>
      <caption class="visually-hidden">Requests, newest first. Arrow keys move from one to the next.</caption>
      <thead><tr><th scope="col">Time</th><th scope="col">Status</th><th scope="col">Model</th><th scope="col" class="wide">Provider</th><th scope="col" class="number wide">Prompt</th>
        <th scope="col" class="number wider">Cached</th><th scope="col" class="number wide">Answer</th><th scope="col" class="wide">Context</th><th scope="col" class="number wide">First byte</th>
        <th scope="col" class="number">Duration</th><th scope="col" class="wide spent"><${BarKey} /></th>
        <th scope="col" class="number wider">Cost</th><th scope="col" class="wide">Key</th><th scope="col" class="wider">Conversation</th></tr></thead>
      <tbody>${live.rows.map((row) => html`<${Row} key=${row.id} row=${row} most=${most} query=${query} />`)}</tbody>
    </table>
    <div class="row list-end"><span class="small soft number grow">${endOfList(live)}${isPaused ? " · not refreshed" : ""}</span>
      ${live.hasMore && html`<${Button} small disabled=${live.isLoadingMore} onClick=${live.more}>${live.isLoadingMore ? "Loading…" : "Older"}<//>`}</div>
  </div>`;
}

const endOfList = ({ rows, hasMore }) => (hasMore ? `The newest ${count(rows.length)}` : `All ${count(rows.length)} that the gateway still has`);

function BarKey() {
  return html`<span class="visually-hidden">Where the time went</span><span class="bar-key" aria-hidden="true" title="Queue, summary, waiting for the first byte, answer">${["queue", "summary", "waiting", "writing"].map(
    (kind) => html`<span class="spent-swatch kind-${kind}" title=${KINDS[kind]}></span>`)}</span>`;
}

const Row = memo(({ row, most, query }) => {
  const wish = JSON.parse(query);
  const spent = roughlySpent(row);
  return html`<tr class=${row.error ? "failed" : ""}>
    <th scope="row"><a class="title number" href=${to(["requests", row.id], wish)} title=${row.id}>${clockTime(row.started_at)}</a></th>
    <td><${Outcome} of=${row} /></td>
    <td class="models"><${Models} row=${row} />
      <div class="narrow facts soft number">${row.error && html`<code class="bad-ink break">${row.error}</code>`}${row.provider && html`<span>${row.provider}${times(row)}</span>`}<span>${count(row.prompt_tokens)} → ${count(row.completion_tokens)}</span>
        ${row.context_status && row.context_status !== "full" && html`<${Status} of=${row.context_status} />`}${row.tenant && html`<span>${row.key_name ?? nameTenant(row)}</span>`}</div></td>
    <td class="wide">${row.provider ?? "–"}${row.attempts > 1 && html` <span class="attempts" title="${count(row.attempts)} calls of providers">×${count(row.attempts)}</span>`}</td>
    <td class="number wide">${count(row.prompt_tokens)}</td>
    <td class="number wider soft">${row.cached_tokens ? percent(row.cached_tokens, row.prompt_tokens) : "–"}</td>
    <td class="number wide">${count(row.completion_tokens)}</td>
    <td class="wide">${row.context_status && row.context_status !== "full" ? html`<${Status} of=${row.context_status} />` : html`<span class="soft">${row.context_status ?? "–"}</span>`}</td>
    <td class="number wide">${milliseconds(row.first_byte_ms)}</td>
    <td class="number">${milliseconds(row.duration_ms)}<span class="narrow">${spent && html`<${SpentBar} spent=${spent} most=${most} />`}</span></td>
    <td class="wide spent">${spent && html`<${SpentBar} spent=${spent} most=${most} />`}</td>
    <td class="number wider">${dollars(row.cost_usd)}</td>
    <td class="wide who"><${Who} row=${row} wish=${wish} /></td>
    <td class="wider">${row.conversation_id ? html`<a class="quiet" title="What the model saw in ${row.conversation_id}" href=${seenAt(row)}>${shortId(row.conversation_id)}</a>` : "–"}</td>
  </tr>`;
});

/** Who asked: the key by its name, and the tenant where that says more. */
function Who({ row, wish }) {
  if (!row.tenant) return "–";
  const tenant = nameTenant(row);
  const only = (name, text, title) => html`<a class="quiet" title=${title} href=${to(["requests"], { ...wish, [name]: row[name] })}>${text}</a>`;
  const isNamed = row.key_name !== null;
  return html`${isNamed && only("key_id", row.key_name, `Only requests with the key ${row.key_name}`)}${tenant !== row.key_name && html` <span class=${isNamed ? "small soft" : ""}>${only("tenant", tenant, `Only requests of ${row.tenant}`)}</span>`}`;
}

const times = (row) => (row.attempts > 1 ? ` ×${count(row.attempts)}` : "");

/** The model that was asked for, and the one that answered where it is another. */
function Models({ row }) {
  const isOther = row.answered_by && row.answered_by !== row.model;
  return html`<span class="model-name" title=${row.model}>${row.model ?? html`<span class="soft">no model</span>`}</span>${isOther && html`<span class="model-name soft" title="Answered by ${row.answered_by}">→ ${row.answered_by}</span>`}`;
}

/** In words what the rows are. */
function Summary({ rows }) {
  const failed = rows.filter((row) => row.error).length;
  const firstBytes = rows.filter((row) => row.first_byte_ms !== null && !row.error).map((row) => row.first_byte_ms);
  if (!rows.length) return null;
  const minutes = Math.max(1, Math.round((Date.now() / 1000 - rows.at(-1).started_at) / 60));
  return html`<p class="page-facts small soft number">${count(rows.length)} ${rows.length === 1 ? "request" : "requests"}<span class="wide"> in ${minutes < 120 ? `${minutes} min` : `${Math.round(minutes / 60)} h`}</span>${" · "}${failed ? html`<strong class="bad-ink">${count(failed)} ${failed === 1 ? "error" : "errors"}</strong>` : "no errors"}
    ${firstBytes.length > 0 && html`<span class="wide"> · first byte: half within ${milliseconds(quantile(firstBytes, 0.5))}, 95 % within ${milliseconds(quantile(firstBytes, 0.95))}</span>`}</p>`;
}

function quantile(values, share) {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] || 1;
}

/** Arrow keys go from row to row. */
function moveByArrows(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
  const links = [...event.currentTarget.querySelectorAll("a.title")];
  const at = links.indexOf(event.target.closest("tr")?.querySelector("a.title"));
  const next = links[at + step];
  if (at < 0 || !next) return;
  event.preventDefault();
  next.focus({ preventScroll: true });
  next.closest("tr").scrollIntoView({ block: "nearest" });
}
