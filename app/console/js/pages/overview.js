// Load, errors, tokens saved, cache hits, cost: how the gateway is doing now, and over an hour, a day or a week.
import { html, useMemo } from "../lib.js";
import { get } from "../api.js";
import { count, dollars, duration, moment, percent, short } from "../format.js";
import { useEvery, useLoaded } from "../load.js";
import { go, to } from "../router.js";
import { isOperator } from "../session.js";
import { Chart } from "../ui/chart.js";
import { Choices } from "../ui/choices.js";
import { Numbers } from "../ui/numbers.js";
import { Badge, Empty, Failure, Loading, Status } from "../ui/parts.js";

const REFRESH_SECONDS = 5;
const PERCENTILES = ["p50", "p95", "p99"];
const LATENCIES = {
  first_byte_seconds: "First byte",
  request_seconds: "Whole request",
  upstream_seconds: "Provider",
  store_seconds: "Database",
};
/** Fewer failed calls are no news. */
const LEAST_FAILURES = 3;
const RANGES = { hour: "Hour", day: "Day", week: "Week" };
/** Samples as far apart are of more than a day. */
const DAY_RANGE_SECONDS = 300;
const clock = new Intl.DateTimeFormat("en", { timeStyle: "medium", hourCycle: "h23" });

export function Overview({ route, session }) {
  const range = route.query.get("range") in RANGES ? route.query.get("range") : "hour";
  const overview = useLoaded(async (signal) => {
    const read = (query) => get("v1/admin/overview", query, { signal });
    const [told, longer] = await Promise.all([read({}), range === "hour" ? null : read({ range })]);
    return { ...told, range, shown: (longer ?? told).series };
  }, [range]);
  useEvery(REFRESH_SECONDS, overview.reload);
  const { data, error } = overview;
  return html`<div class="page-head">
      <h1 tabindex="-1">Overview</h1>
      ${data && html`<span class="soft small">${facts(data)}</span>`}
    </div>
    ${error && !data && html`<${Refused} error=${error} retry=${overview.reload} />`}
    ${error && data && html`<div class="notice warn" role="alert">These numbers are old: ${error.message}</div>`}
    ${!data && !error && html`<${Loading}>Reading the numbers…<//>`}
    ${data && html`<${All} told=${data} showsRequests=${isOperator(session)} />`}`;
}

function facts(told) {
  const workers = told.workers === 1 ? "1 process" : `${count(told.workers)} processes`;
  return `up for ${duration(told.uptime_seconds)} · ${workers} · ${told.database} · since ${moment(told.started_at)}`;
}

/** Who may see this, and what switches it on. */
function Refused({ error, retry }) {
  if (error.status === 404) {
    return html`<div class="notice"><p><strong>The overview is switched off.</strong></p>
      <p class="hint">Set <code>telemetry.metrics: true</code> in the gateway’s configuration to have it back.</p></div>`;
  }
  if (error.status === 401 || error.status === 403) {
    return html`<div class="notice"><p><strong>This key may not see the overview.</strong></p>
      <p class="hint">It tells of everybody’s requests, though of nothing that was said, and needs a key with the scope <code>admin</code>: <code>concertina keys create --name operator --scopes admin</code>, then “Change key” above.</p></div>`;
  }
  return html`<${Failure} error=${error} retry=${retry} />`;
}

function All({ told, showsRequests }) {
  const { totals, now } = told;
  const rates = useMemo(() => lastMinute(told.series.samples), [told.series.samples]);
  return html`<div class="stack overview">
    <${Failing} models=${told.models} showsRequests=${showsRequests} />
    <${Numbers} label="Now" of=${[
      { label: "Requests now", value: count(now.requests_in_flight), note: `${count(now.streams_open)} streaming` },
      { label: "Requests per second", value: rates ? rates.requests.toFixed(rates.requests < 10 ? 2 : 0) : "–", note: "over the last minute" },
      { label: "First byte, 95 %", value: duration(told.latency.first_byte_seconds.p95), note: `half within ${duration(told.latency.first_byte_seconds.p50)}` },
      { label: "Errors", value: count(totals.errors + totals.refusals), kind: totals.errors ? "bad" : "", note: totals.requests ? `${errorKinds(totals)}, ${share(totals.errors + totals.refusals, totals.requests)} of ${count(totals.requests)} requests` : "no requests yet" },
      { label: "Compactions now", value: count(now.compactions_running), note: `${count(sum(totals.compactions))} so far` },
    ]} />
    <${Numbers} label="Since the start" of=${[
      { label: "Tokens sent", value: short(totals.prompt_tokens), title: count(totals.prompt_tokens), note: `of ${short(totals.log_tokens)} without compaction` },
      { label: "Tokens saved", value: short(totals.saved_tokens), title: count(totals.saved_tokens), kind: totals.saved_tokens > 0 ? "good" : "", note: `${percent(totals.saved_tokens, totals.log_tokens)} · summaries took ${short(totals.summary_prompt_tokens + totals.summary_completion_tokens)}` },
      { label: "Cache hits", value: percent(totals.cached_tokens, totals.reported_prompt_tokens), note: `${short(totals.cached_tokens)} of ${short(totals.reported_prompt_tokens)} reported tokens` },
      { label: "Cost", value: dollars(totals.cost_usd), note: priceNote(told) },
      { label: "Cost saved", value: dollars(totals.saved_usd), kind: totals.saved_usd > 0 ? "good" : "", note: totals.saved_usd === null ? "no prices are configured" : "summaries paid" },
    ]} />
    ${totals.requests === 0 && html`<div class="panel"><${Empty}><p>Nothing was asked yet.</p><p>Point a client’s base URL at this gateway, or begin with <a href="#/chat">a chat</a>.</p><//></div>`}
    <div class="row"><${Choices} label="Range of the charts" of=${RANGES} chosen=${told.range} onChoose=${(range) => go(["overview"], { range }, { replace: true })} /></div>
    <${Charts} series=${told.shown} />
    <div class="overview-tables">
      <${Panel} title="Latency" note="of the last minutes"><${Latency} latency=${told.latency} /><//>
      <${Panel} title="Answers by status"><${Shares} of=${totals.statuses} name=${(status) => html`<${Status} of=${status} />`} /><//>
      <${Panel} title="Compactions by outcome"><${Shares} of=${totals.compactions} name=${(outcome) => html`<${Badge} kind=${outcome === "failed" ? "bad" : ""}>${outcome.replaceAll("_", " ")}<//>`} /><//>
      <${Panel} title="Errors" note=${told.errors.length ? errorKinds(totals) : ""}><${Errors} errors=${told.errors} showsRequests=${showsRequests} /><//>
    </div>
    <${Panel} title="Models" note=${totals.fallbacks ? `${plural(totals.fallbacks, "answer")} by another deployment than the first` : ""}><${Models} models=${told.models} /><//>
  </div>`;
}

const sum = (counts) => Object.values(counts).reduce((before, value) => before + value, 0);
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** Failures (5xx) are the gateway's or its providers', client errors (4xx) the requests'. */
const errorKinds = ({ errors, refusals }) => `${plural(errors, "failure")}, ${plural(refusals, "client error")}`;

function priceNote({ simulated, totals }) {
  if (simulated) return "the simulated model is free";
  return totals.cost_usd === null ? "no prices are configured" : "by the configured prices";
}

const share = (part, of) => `${((100 * part) / of).toFixed(part && part / of < 0.001 ? 3 : 1)} %`;

function Panel({ title, note, children }) {
  return html`<section class="panel"><header><h2>${title}</h2>${note && html`<span class="small soft">${note}</span>`}</header>${children}</section>`;
}

/** Rates over the newest samples, up to a minute; null before there are two. */
function lastMinute(samples) {
  const last = samples.at(-1);
  const first = samples.findLast((sample) => last.at - sample.at >= 60) ?? samples[0];
  const seconds = last && last.at - first.at;
  return seconds > 0 ? { requests: (last.requests - first.requests) / seconds } : null;
}

/** How much of a cumulative total came in each interval. A restart of a process counts as none. */
function grown(samples, name) {
  return samples.map((sample, at) => (at === 0 || sample[name] === null ? null : Math.max(0, sample[name] - samples[at - 1][name])));
}

function perSecond(samples, name) {
  return grown(samples, name).map((value, at) => (value === null ? null : value / Math.max(1, samples[at].at - samples[at - 1].at)));
}

/** Whether a deployment gets no calls now, or fails more often than it answers. */
const isFailing = (model) => model.breaker_open || (model.errors >= LEAST_FAILURES && 2 * model.errors >= model.requests);

/** Deployments that are down, or were for most of the time. */
function Failing({ models, showsRequests }) {
  const failing = models.filter(isFailing);
  if (!failing.length) return null;
  return html`<div class="notice bad" role="alert">
    ${failing.map((model) => html`<p key=${`${model.provider} ${model.model}`}><strong>${model.provider}/${model.model}</strong>${model.breaker_open ? " gets no calls for a while" : ""}: ${count(model.errors)} of ${plural(model.requests, "call")} failed since the start${model.errors > 0 && ` (${failuresOf(model)})`}.
      ${showsRequests && html` <a href=${to(["requests"], { outcome: "error", provider: model.provider })}>Its requests with errors</a>`}</p>`)}
    <p class="hint">Meanwhile other deployments and fallbacks of the model are called, if it has any.</p></div>`;
}

function Charts({ series }) {
  const { samples, interval_seconds: seconds } = series;
  const charts = useMemo(() => chartsOf(samples), [samples.length, samples.at(-1)?.at]);
  if (samples.length < 2) return html`<p class="soft">Charts begin with the second sample, ${seconds < 120 ? `${seconds} s` : duration(seconds)} after the start.</p>`;
  return html`<div class="overview-charts">
    ${charts.map((chart) => html`<section class="panel" key=${chart.title}>
      <header><h2>${chart.title}</h2><span class="small soft">last ${duration(samples.at(-1).at - samples[0].at)}</span></header>
      <${Chart} label="${chart.title}, every ${seconds < 120 ? `${seconds} s` : duration(seconds)}" time xLabel="Time" x=${chart.x} lines=${chart.lines} height=${190} least=${chart.least}
        formatX=${(at) => (seconds < DAY_RANGE_SECONDS ? clock.format(new Date(at * 1000)) : moment(at))} formatY=${chart.formatY} />
    </section>`)}
  </div>`;
}

function chartsOf(samples) {
  const x = samples.map((sample) => sample.at);
  const rate = (value) => (value === null ? "–" : value.toFixed(value < 10 ? 2 : 1));
  const line = (label, values, color, rest = {}) => ({ label, values, color, ...rest });
  return [
    { title: "Requests per second", least: 0.1, formatY: (value) => String(Number(value.toFixed(2))), lines: [line("Requests", perSecond(samples, "requests"), "--chart-1", { area: true, format: rate })] },
    { title: "Tokens", formatY: short, lines: [
      line("Saved", grown(samples, "saved_tokens"), "--chart-3", { dashed: true }),
      line("Sent", grown(samples, "prompt_tokens"), "--chart-1", { area: true }),
      line("Cached", grown(samples, "cached_tokens"), "--chart-2"),
    ] },
    { title: "First byte, 95 %", least: 0.01, formatY: duration, lines: [line("95 % within", samples.map((sample) => sample.first_byte_p95_seconds), "--chart-4", { format: duration })] },
    { title: "Errors", formatY: (value) => (Number.isInteger(value) ? count(value) : ""), lines: [
      line("Failures (5xx)", grown(samples, "errors"), "--chart-5", { area: true }),
      line("Client errors (4xx)", grown(samples, "refusals"), "--chart-3", { dashed: true }),
    ] },
  ].map((chart) => ({ ...chart, x }));
}

function Latency({ latency }) {
  return html`<div class="scroll-x" tabindex="0" role="region" aria-label="Latency"><table class="data">
    <thead><tr><th scope="col">Share of requests</th><th scope="col" class="number">50 %</th><th scope="col" class="number">95 %</th><th scope="col" class="number">99 %</th></tr></thead>
    <tbody>${Object.entries(LATENCIES).map(([name, words]) => html`<tr><th scope="row">${words}</th>
      ${PERCENTILES.map((one) => html`<td class="number">${duration(latency[name]?.[one])}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** Counts with their share of the whole, as words and as bars. */
function Shares({ of, name }) {
  const rows = Object.entries(of).filter(([, value]) => value > 0).sort(([, one], [, other]) => other - one);
  const all = sum(of);
  if (!rows.length) return html`<p class="soft small">None yet.</p>`;
  return html`<table class="data"><tbody>${rows.map(([key, value]) => html`<tr key=${key}><th scope="row">${name(key)}</th>
    <td class="wide-cell"><span class="share" style=${{ width: `${(100 * value) / all}%` }}></span></td>
    <td class="number">${count(value)}</td><td class="number soft">${percent(value, all)}</td></tr>`)}</tbody></table>`;
}

function Errors({ errors, showsRequests }) {
  if (!errors.length) return html`<p class="soft small">None yet.</p>`;
  const codeOf = (error) => html`<code>${error.code ?? "none"}</code>`;
  return html`<div class="scroll-x" tabindex="0" role="region" aria-label="Errors"><table class="data errors"><thead><tr><th scope="col">Code</th><th scope="col">Status</th><th scope="col" class="wide">Kind</th><th scope="col" class="number">How often</th></tr></thead>
    <tbody>${errors.map((error) => html`<tr key=${`${error.status} ${error.code}`}><th scope="row">${showsRequests
      ? html`<a href=${to(["requests"], { outcome: "error", status: error.status })} title="Requests with status ${error.status}">${codeOf(error)}</a>` : codeOf(error)}</th><td>${error.status}</td>
      <td class="wide">${error.status >= 500 ? html`<${Badge} kind="bad">failure<//>` : "client error"}</td><td class="number">${count(error.count)}</td></tr>`)}</tbody></table></div>`;
}

/** Failed calls by what became of them: 3 timeout, 2 rate limited */
const failuresOf = ({ failures }) => Object.entries(failures).map(([outcome, number]) => `${count(number)} ${outcome.replaceAll("_", " ")}`).join(", ");

function Models({ models }) {
  if (!models.length) return html`<p class="soft small">No model was asked yet.</p>`;
  return html`<div class="scroll-x" tabindex="0" role="region" aria-label="Models"><table class="data">
    <thead><tr><th scope="col">Model</th><th scope="col">Provider</th><th scope="col">State</th><th scope="col" class="number wide">Calls</th><th scope="col" class="number">Errors</th>
      ${["Tokens sent", "Cached", "Answered", "Cost"].map((head) => html`<th scope="col" class="number wide">${head}</th>`)}</tr></thead>
    <tbody>${models.map((model) => html`<tr key=${`${model.provider} ${model.model}`}>
      <th scope="row" class="break">${model.model}</th><td class="break">${model.provider}</td><td>${stateOf(model)}</td><td class="number wide">${count(model.requests)}</td>
      <td class="number">${model.errors ? html`<${Badge} kind="bad">${count(model.errors)}<//> <span class="small soft">${failuresOf(model)}</span>` : "0"}</td><td class="number wide">${count(model.prompt_tokens)}</td>
      <td class="number wide">${count(model.cached_tokens)}</td><td class="number wide">${count(model.completion_tokens)}</td><td class="number wide">${dollars(model.cost_usd)}</td></tr>`)}</tbody>
  </table></div>`;
}

function stateOf(model) {
  if (model.breaker_open) return html`<${Badge} kind="bad">no calls<//>`;
  if (isFailing(model)) return html`<${Badge} kind="bad">failing<//>`;
  return model.requests ? html`<${Badge} kind="good">called<//>` : "–";
}
