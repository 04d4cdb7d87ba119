// The family of a conversation: what it branched from, and what branched from it.
import { html } from "../../lib.js";
import { get } from "../../api.js";
import { useLoaded } from "../../load.js";
import { to } from "../../router.js";
import { count } from "../../format.js";
import { Badge, Loaded, When } from "../../ui/parts.js";
import { placeOf } from "./place.js";

export function Branches({ id, record, round }) {
  const family = useLoaded((signal) => get(placeOf(id, "branches"), {}, { signal }), [id, record.updated_at, round]);
  return html`<${Loaded} from=${family} waiting="Looking for branches…">${(told) => html`
    ${told.data.length < 2 &&
    html`<p class="notice">This conversation has no branches. One begins when a client sends a history that ends inside the log: an edited
      or regenerated message.</p>`}
    <nav class="panel" aria-label="Branches">
      <${Tree} members=${rootsOf(told.data)} all=${told.data} />
    </nav>
    ${told.has_more && html`<p class="small soft">There are more; these are the oldest ${count(told.data.length)}.</p>`}
  `}<//>`;
}

/** Those whose parent is not here: the oldest, and what branched from something deleted. */
function rootsOf(all) {
  const ids = new Set(all.map((one) => one.id));
  return all.filter((one) => one.parent_id === null || !ids.has(one.parent_id));
}

function Tree({ members, all }) {
  return html`<ul class="tree">${members.map((one) => {
    const children = all.filter((other) => other.parent_id === one.id).sort((a, b) => a.fork_seq - b.fork_seq);
    return html`<li key=${one.id}>
      <${Member} member=${one} />
      ${children.length > 0 && html`<${Tree} members=${children} all=${all} />`}
    </li>`;
  })}</ul>`;
}

function Member({ member }) {
  const fork = member.fork_seq;
  return html`<div class="branch ${member.current ? "current" : ""}">
    <p class="row">
      <a class="break" aria-current=${member.current ? "true" : undefined} href=${to(["conversations", member.id, "log"])}>${member.title ?? member.id}</a>
      ${member.current && html`<${Badge} kind="good">this one<//>`}
    </p>
    <p class="facts small soft">
      ${member.parent_id &&
      html`<span>leaves <a href=${to(["conversations", member.parent_id, "log"], { seq: Math.max(0, fork - 1) })}>after message ${fork - 1}</a>,
        goes on <a aria-label=${`here, at message ${fork} of ${member.title ?? member.id}`} href=${to(["conversations", member.id, "log"], { seq: fork })}>here</a></span>`}
      <span class="number">${count(member.messages)} messages</span>
      <span class="number">${count(member.tokens)} tokens</span>
      <span>updated <${When} at=${member.updated_at} /></span>
      <code class="break">${member.id}</code>
    </p>
  </div>`;
}
