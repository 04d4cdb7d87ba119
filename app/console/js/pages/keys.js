// The gateway's API keys: made, listed, changed, revoked. Only an operator may see them.
import { html, useId, useState } from "../lib.js";
import { send } from "../api.js";
import { useCommands } from "../commands.js";
import { count, dollars, nameTenant } from "../format.js";
import { useLoaded } from "../load.js";
import { to } from "../router.js";
import { Confirm, useAction } from "../ui/confirm.js";
import { Badge, Button, Dialog, Empty, Failure, Field, Loading, When } from "../ui/parts.js";
import { readAllKeys } from "./operation/keys.js";
import { MakeKey } from "./keys/make.js";

export function Keys({ session }) {
  const keys = useLoaded(readNewestFirst, []);
  const [open, setOpen] = useState(null);
  const close = () => setOpen(null);
  const isRefused = [401, 403].includes(keys.error?.status);
  const make = () => setOpen({ name: "make" });
  useCommands([!isRefused && { text: "Make a key…", run: make }]);
  return html`
    <div class="page-head">
      <h1 tabindex="-1">Keys</h1>
      ${!isRefused && html`<${Button} kind="primary" disabled=${keys.data === null} onClick=${make}>Make a key…<//>`}
    </div>
    ${session.auth_mode === "open" && html`<div class="notice"><p><strong>Keys are not checked yet.</strong> This gateway runs with <code>auth.mode: open</code>: everyone who reaches it is let in. Keys that you make now count once <code>auth.mode: keys</code> is
      configured and the gateway is started again.</p></div>`}
    ${isRefused && html`<div class="notice"><p><strong>Only an operator may see keys.</strong></p>
      <p class="hint">Open the link that the gateway prints at its start, or look with a key that has the scope <code>admin</code>.</p></div>`}
    ${keys.error && !isRefused && html`<${Failure} error=${keys.error} retry=${keys.reload} />`}
    ${keys.data === null && !keys.error && html`<${Loading} />`}
    ${keys.data?.length === 0 && html`<div class="panel"><${Empty}><p>There is no key yet.</p>
      <p>A key names who asks: it has its own conversations, models and budget.</p><//></div>`}
    ${keys.data?.length > 0 && html`<${Table} keys=${keys.data} onBudget=${(key) => setOpen({ name: "budget", key })}
      onRevoke=${(key) => setOpen({ name: "revoke", key })} />`}
    ${open?.name === "make" && html`<${MakeKey} session=${session} tenants=${tenantsOf(keys.data)} onMade=${keys.reload} onClose=${close} />`}
    ${open?.name === "budget" && html`<${Budget} record=${open.key} onDone=${keys.reload} onClose=${close} />`}
    ${open?.name === "revoke" && html`<${Revoke} record=${open.key} onDone=${keys.reload} onClose=${close} />`}
  `;
}

const readNewestFirst = async (signal) => (await readAllKeys(signal)).reverse();

const tenantsOf = (keys) => [...new Set((keys ?? []).map((key) => key.tenant))];

function Table({ keys, onBudget, onRevoke }) {
  const hasBudgets = keys.some((key) => key.budget_usd !== undefined);
  // A tenant that was made for a key has the name of its oldest key.
  const names = new Map(keys.filter((key) => key.tenant.startsWith("ten_")).map((key) => [key.tenant, key.name]));
  return html`<div class="panel list"><div class="scroll-x" tabindex="0" role="region" aria-label="Keys"><table class="data keys-table">
    <thead><tr><th scope="col">Name</th><th scope="col" class="wide">Key</th><th scope="col" class="wide">State</th><th scope="col" class="wide">Tenant</th><th scope="col" class="wide">Scopes</th>
      <th scope="col" class="wide">Models</th>${hasBudgets && html`<th scope="col" class="number wide">Spent this month</th>`}<th scope="col" class="wide">Expires</th><th scope="col" class="wide">Created</th>
      <th scope="col"><span class="visually-hidden">Actions</span></th></tr></thead>
    <tbody>${keys.map((key) => html`<tr key=${key.id} class=${stateOf(key) === "valid" ? "" : "over"}>
      <th scope="row" class="break"><a class="quiet" href=${to(["requests"], { key_id: key.id })} title="Requests with ${key.name}">${key.name}</a>
        <div class="narrow facts small soft"><code>${key.hint}</code><${State} of=${stateOf(key)} />${hasBudgets && html`<span>${spentOf(key)}</span>`}</div></th>
      <td class="wide"><code title=${key.id}>${key.hint}</code></td>
      <td class="wide"><${State} of=${stateOf(key)} /></td>
      <td class="wide"><span title=${key.tenant}>${nameTenant({ ...key, tenant_name: names.get(key.tenant) })}</span></td>
      <td class="wide">${key.scopes.join(", ")}</td>
      <td class="break wide">${key.models.length ? key.models.join(", ") : html`<span class="soft">all</span>`}${key.policy && html`<div class="soft">policy ${key.policy}</div>`}
        ${key.retention_days && html`<div class="soft">kept ${count(key.retention_days)} days</div>`}</td>
      ${hasBudgets && html`<td class="number wide">${spentOf(key)}</td>`}
      <td class="wide">${key.expires_at ? html`<${When} at=${key.expires_at} />` : html`<span class="soft">never</span>`}</td>
      <td class="wide"><${When} at=${key.created_at} /></td>
      <td class="number">${!key.revoked_at && html`<${Button} small kind="plain" aria-label=${`Budget of ${key.name}…`} onClick=${() => onBudget(key)}>Budget…<//>
        <${Button} small kind="plain" aria-label=${`Revoke ${key.name}…`} onClick=${() => onRevoke(key)}>Revoke…<//>`}</td>
    </tr>`)}</tbody>
  </table></div></div>`;
}

const spentOf = (key) => html`${dollars(key.spent_usd)}${key.budget_usd !== null && html`<span class="soft"> of ${dollars(key.budget_usd)}</span>`}`;

function stateOf(key) {
  if (key.revoked_at) return "revoked";
  if (key.expires_at && key.expires_at * 1000 < Date.now()) return "expired";
  return typeof key.budget_usd === "number" && key.spent_usd >= key.budget_usd ? "over budget" : "valid";
}

const STATE_KINDS = { valid: "good", "over budget": "warn" };

const State = ({ of }) => html`<${Badge} kind=${STATE_KINDS[of] ?? ""}>${of}<//>`;

function Budget({ record, onDone, onClose }) {
  const [budget, setBudget] = useState(record.budget_usd ?? "");
  const { busy, error, run } = useAction(
    () => send("POST", `v1/admin/keys/${encodeURIComponent(record.id)}`, { budget_usd: budget === "" ? null : Number(budget) }),
    () => {
      onDone();
      onClose();
    },
  );
  const id = useId();
  const submit = (event) => {
    event.preventDefault();
    if (!busy) run();
  };
  return html`<${Dialog} title="Change the budget" onClose=${onClose} footer=${html`<${Button} onClick=${onClose}>Cancel<//>
    <${Button} kind="primary" type="submit" form=${id} disabled=${busy}>${busy ? "Changing…" : "Change"}<//>`}>
    <form id=${id} class="stack" onSubmit=${submit}>
      <p><strong class="break">${record.name}</strong> <code>${record.hint}</code> has spent ${dollars(record.spent_usd)} this month.</p>
      <${Field} label="Budget, $ a month" hint="Left empty: no limit. What was spent stays.">${(field, hintId) => html`<input id=${field} aria-describedby=${hintId} class="input"
        type="number" min="0" step="any" placeholder="none" value=${budget} onInput=${(event) => setBudget(event.target.value)} />`}<//>
      <${Failure} error=${error} />
    </form>
  <//>`;
}

function Revoke({ record, onDone, onClose }) {
  return html`<${Confirm} title="Revoke this key?" action="Revoke for good" onClose=${onClose}
    onConfirm=${async () => { await send("DELETE", `v1/admin/keys/${encodeURIComponent(record.id)}`); onDone(); }}>
    <p><strong class="break">${record.name}</strong> <code>${record.hint}</code></p>
    <p>Who sends it is refused from then on, on other machines after some seconds. Its conversations stay. This cannot be taken back.</p>
  <//>`;
}
