// A new key: what it may do, and then the key itself, which is shown once.
import { html, useId, useState } from "../../lib.js";
import { send } from "../../api.js";
import { moment } from "../../format.js";
import { useAction } from "../../ui/confirm.js";
import { Button, Copy, Dialog, Failure, Field } from "../../ui/parts.js";

const SCOPES = {
  chat: "ask models",
  read: "see its conversations",
  manage: "change and erase them",
  admin: "operate the gateway: sees all tenants, makes keys",
};
const BEGUN_WITH = { name: "", tenant: "", scopes: ["chat", "read", "manage"], policy: "", models: "", expires: "", budget: "", retention: "" };

/**
 * @param {object} props
 * @param {string[]} props.tenants  those that have a key already
 * @param {() => void} props.onMade
 * @param {() => void} props.onClose
 */
export function MakeKey({ session, tenants, onMade, onClose }) {
  const [wish, setWish] = useState(BEGUN_WITH);
  const [made, setMade] = useState(null);
  const { busy, error, run } = useAction(
    () => send("POST", "v1/admin/keys", bodyOf(wish)),
    (key) => {
      setMade(key);
      onMade();
    },
  );
  const id = useId();
  const change = (part) => setWish((before) => ({ ...before, ...part }));
  if (made) return html`<${Made} key="made" record=${made} onClose=${onClose} />`;
  const isReady = wish.name.trim() !== "" && wish.scopes.length > 0;
  const submit = (event) => {
    event.preventDefault();
    if (isReady && !busy) run();
  };
  return html`<${Dialog} key="form" title="Make a key" onClose=${onClose} footer=${html`<${Button} onClick=${onClose}>Cancel<//>
    <${Button} kind="primary" type="submit" form=${id} disabled=${!isReady || busy}>${busy ? "Making…" : "Make the key"}<//>`}>
    <form id=${id} class="stack" onSubmit=${submit}>
      <${Text} name="name" label="Name" hint="Who or what uses it: shop, staging, Ann." wish=${wish} onChange=${change} maxlength="100" required />
      <${Scopes} of=${wish.scopes} onChange=${change} />
      <${Text} name="tenant" label="Tenant" hint="Keys of one tenant see the same conversations. Left empty: a tenant of its own." wish=${wish} onChange=${change} list="${id}-tenants" />
      <datalist id="${id}-tenants">${tenants.map((tenant) => html`<option value=${tenant} />`)}</datalist>
      <${Text} name="models" label="Models" hint="Names with commas between them; * and ? stand for any letters. Left empty: all." wish=${wish} onChange=${change} placeholder="gpt-*, small" />
      <div class="key-fields">
        <${Text} name="budget" label="Budget, $ a month" type="number" min="0" step="any" wish=${wish} onChange=${change} placeholder="none" />
        <${Text} name="expires" label="Expires on" type="date" wish=${wish} onChange=${change} />
        <${Text} name="retention" label="Erase after days at rest" type="number" min="1" max="36500" step="1" wish=${wish} onChange=${change} placeholder="never" />
        <${Field} label="Policy">${(field) => html`<select id=${field} class="input" value=${wish.policy} onChange=${(event) => change({ policy: event.target.value })}>
          <option value="">default</option>${(session.policies ?? []).map((policy) => html`<option value=${policy}>${policy}</option>`)}</select>`}<//>
      </div>
      <${Failure} error=${error} />
    </form>
  <//>`;
}

function Text({ name, label, hint, wish, onChange, ...rest }) {
  return html`<${Field} label=${label} hint=${hint}>${(id, hintId) => html`<input id=${id} aria-describedby=${hintId} class="input" autocomplete="off" spellcheck="false"
    value=${wish[name]} onInput=${(event) => onChange({ [name]: event.target.value })} ...${rest} />`}<//>`;
}

function Scopes({ of, onChange }) {
  const toggle = (scope) => onChange({ scopes: of.includes(scope) ? of.filter((one) => one !== scope) : [...of, scope] });
  return html`<fieldset class="choices stack"><legend class="small"><strong>Scopes</strong></legend>
    ${Object.entries(SCOPES).map(([scope, words]) => html`<label class="row"><input type="checkbox" checked=${of.includes(scope)} onChange=${() => toggle(scope)} />
      <span><code>${scope}</code> <span class="soft small">${words}</span></span></label>`)}
  </fieldset>`;
}

/** What `POST /v1/admin/keys` takes; what is empty is left out. A key expires at the end of the day that was chosen. */
function bodyOf(wish) {
  const body = { name: wish.name.trim(), scopes: Object.keys(SCOPES).filter((scope) => wish.scopes.includes(scope)) };
  const models = wish.models.split(",").map((name) => name.trim()).filter(Boolean);
  const end = wish.expires ? new Date(`${wish.expires}T00:00`) : null;
  end?.setDate(end.getDate() + 1);
  return {
    ...body,
    tenant: wish.tenant.trim() || undefined,
    policy: wish.policy || undefined,
    models: models.length ? models : undefined,
    expires_at: end ? Math.floor(end.getTime() / 1000) : undefined,
    budget_usd: wish.budget === "" ? undefined : Number(wish.budget),
    retention_days: wish.retention === "" ? undefined : Number(wish.retention),
  };
}

/** The only moment at which the key can be read. */
function Made({ record, onClose }) {
  return html`<${Dialog} title="The key was made" onClose=${onClose} footer=${html`<${Button} kind="primary" onClick=${onClose}>Done<//>`}>
    <p>Copy it now: <strong>it is shown this once.</strong> The gateway keeps only its digest.</p>
    <p class="row made-key"><code class="break grow">${record.key}</code><${Copy} text=${record.key} name="Copy the key" /></p>
    <p class="small soft break">${record.name} · tenant <code>${record.tenant}</code> · ${record.scopes.join(", ")}${record.expires_at ? ` · until ${moment(record.expires_at)}` : ""}</p>
  <//>`;
}
