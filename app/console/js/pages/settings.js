// The settings as they are in force, with where each comes from, and the limits learned from refusals. Only an operator
// may see them.
import { html, useEffect, useMemo, useState } from "../lib.js";
import { get, send } from "../api.js";
import { count } from "../format.js";
import { useLoaded } from "../load.js";
import { go } from "../router.js";
import { useAction } from "../ui/confirm.js";
import { Badge, Button, Empty, Failure, Loading, When } from "../ui/parts.js";
import { NotShown } from "./operation/access.js";

export function Settings({ route, session }) {
  const settings = useLoaded((signal) => get("v1/admin/settings", {}, { signal }), []);
  const limits = useLoaded((signal) => get("v1/admin/learned-limits", {}, { signal }), []);
  const [typed, setTyped] = useState(route.query.get("q") ?? "");
  useEffect(() => setTyped(route.query.get("q") ?? ""), [route.query.get("q")]);
  const isChanged = route.query.get("changed") === "1";
  const ask = (changed) => go(["settings"], { q: typed, changed: isChanged ? "1" : "", ...changed }, { replace: true });
  const { data, error } = settings;
  const rows = useMemo(() => (data?.data ?? []).filter((row) => matches(row, typed) && (!isChanged || row.source !== "default")), [data, typed, isChanged]);
  return html`
    <div class="page-head"><h1 tabindex="-1">Settings</h1>${data && html`<span class="page-facts small soft number">${count(data.data.filter((row) => row.source !== "default").length)} of ${count(data.data.length)} are set</span>`}</div>
    ${error && !data && html`<${NotShown} error=${error} what="settings" retry=${settings.reload} />`}
    ${!data && !error && html`<${Loading}>Reading the settings…<//>`}
    ${data && html`
      <div class="request-filters" role="search">
        <input class="input" type="search" aria-label="Search settings" placeholder="Search: window, key, retention…" value=${typed}
          onInput=${(event) => { setTyped(event.target.value); ask({ q: event.target.value }); }} />
        <button type="button" class="choice" aria-pressed=${isChanged} onClick=${() => ask({ changed: isChanged ? "" : "1" })}>Only what is set</button>
      </div>
      ${session.simulated && html`<${NoProvider} />`}
      ${limits.data?.data.length > 0 && html`<${LearnedLimits} limits=${limits.data.data} onCleared=${limits.reload} />`}
      <p class="visually-hidden" role="status">${count(rows.length)} settings</p>
      ${rows.length === 0 ? html`<div class="panel"><${Empty}><p>No setting is like that.</p><//></div>` : html`<div class="stack settings">${groupsOf(rows).map(([name, group]) => html`<${Group} key=${name} name=${name} rows=${group} />`)}</div>`}`}
  `;
}

/** What to do for a model of one's own. */
function NoProvider() {
  return html`<section class="panel"><header><h2>No provider is configured: a simulated model answers</h2></header>
    <p><code>concertina init my.yaml</code> asks three questions and writes a configuration with your provider. Start the gateway with it: <code>make run CONFIG=my.yaml</code>,
      or <code>concertina serve --config my.yaml</code>.</p></section>`;
}

const matches = (row, typed) => typed.toLowerCase().split(/\s+/).every((word) => row.path.toLowerCase().includes(word) || String(shown(row)).toLowerCase().includes(word));

/** The section of a setting; each provider, model and policy is one of its own. */
function sectionOf(path) {
  const parts = path.split(".");
  if (parts.length === 1) return "general";
  return ["providers", "models", "policies"].includes(parts[0]) && parts.length > 2 ? parts.slice(0, 2).join(".") : parts[0];
}

function groupsOf(rows) {
  const groups = new Map();
  for (const row of rows) {
    const name = sectionOf(row.path);
    groups.set(name, [...(groups.get(name) ?? []), row]);
  }
  return [...groups];
}

function Group({ name, rows }) {
  return html`<section class="panel list"><header><h2><code>${name}</code></h2></header><table class="data settings-table">
    <thead class="visually-hidden"><tr><th scope="col">Setting</th><th scope="col">Value</th><th scope="col">Source</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.path} class=${row.source === "default" ? "default" : ""}>
      <th scope="row" class="break"><code>${row.path}</code></th><td class="break"><code>${shown(row)}</code></td>
      <td>${row.source === "default" ? html`<span class="soft small">default</span>` : html`<${Badge} title=${row.place ?? ""}>${row.source}<//>`}${row.place && html` <span class="soft small break">${row.place}</span>`}</td></tr>`)}</tbody>
  </table></section>`;
}

function LearnedLimits({ limits, onCleared }) {
  const { busy, error, run } = useAction((id) => send("DELETE", `v1/admin/learned-limits/${id.split("/").map(encodeURIComponent).join("/")}`), onCleared);
  return html`<section class="panel list"><header><h2>Limits learned from refusals</h2></header>
    <div class="scroll-x" tabindex="0" role="region" aria-label="Limits learned from refusals"><table class="data">
      <thead><tr><th scope="col">Provider and model</th><th scope="col" class="number">Tokens</th><th scope="col">Source</th><th scope="col">Learned</th>
        <th scope="col"><span class="visually-hidden">Actions</span></th></tr></thead>
      <tbody>${limits.map((limit) => html`<tr key=${limit.id}><th scope="row" class="break"><code>${limit.id}</code></th><td class="number">${count(limit.tokens)}</td>
        <td>${limit.stated ? "named by the provider" : "estimated"}</td><td><${When} at=${limit.learned_at} /></td>
        <td class="number"><${Button} small kind="plain" disabled=${busy} aria-label=${`Clear the limit of ${limit.id}`} onClick=${() => run(limit.id)}>Clear<//></td></tr>`)}</tbody>
    </table></div>
    <p class="small soft list-note">Where <code>context_window</code> is set, a limit changes no window: set the right one. A limit is forgotten after a day.</p>
    <${Failure} error=${error} /></section>`;
}

const shown = ({ value, secret }) => (secret && value === null ? "not set" : typeof value === "string" ? value : JSON.stringify(value));
