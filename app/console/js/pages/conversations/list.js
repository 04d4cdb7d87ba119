// Conversations page by page.
import { html, useCallback, useEffect, useRef, useState } from "../../lib.js";
import { get } from "../../api.js";
import { to } from "../../router.js";
import { count } from "../../format.js";
import { Badge, Button, Empty, Failure, Loading, MODES, When } from "../../ui/parts.js";
import { DeleteConversation } from "../conversation/head.js";
import { mayManage } from "../conversation/place.js";
import { listQuery } from "./filters.js";
import { FirstSteps } from "./first_steps.js";

const PAGE = 50;
const CLAMPED_CHARS = 60;

export function List({ wish, session, isFiltered, onClear }) {
  const list = usePages(listQuery(wish));
  const [deleting, setDeleting] = useState(null);
  const table = useRef(null);
  const more = async () => {
    const before = list.rows.length;
    await list.more();
    requestAnimationFrame(() => table.current?.querySelectorAll("tbody a.title")[before]?.focus());
  };
  if (list.rows === null) return list.error ? html`<${Failure} error=${list.error} retry=${list.reload} />` : html`<${Loading} />`;
  if (list.rows.length === 0 && list.error === null) {
    return isFiltered
      ? html`<${Empty}><p>No conversation is like that.</p><p><${Button} onClick=${onClear}>Clear the filters<//></p><//>`
      : html`<${FirstSteps} session=${session} />`;
  }
  return html`<div class="panel list" ref=${table} aria-busy=${list.loading}>
    <table class="data conversations">
      <caption class="visually-hidden">Conversations</caption>
      <thead><tr><th>Conversation</th><th class="number">Messages</th><th class="number wide">Tokens</th>
        <th class="number wide">Summaries</th><th class="wide">Created</th><th>Updated</th>
        ${mayManage(session) && html`<th class="wide"><span class="visually-hidden">Actions</span></th>`}</tr></thead>
      <tbody>${list.rows.map((one) => html`<${Row} key=${one.id} record=${one} manages=${mayManage(session)} onDelete=${setDeleting} />`)}</tbody>
    </table>
    <${Failure} error=${list.error} retry=${list.more} />
    <div class="row list-end">
      <span class="small soft number grow" role="status">${told(list)}</span>
      ${list.hasMore && html`<${Button} disabled=${list.loading} onClick=${more}>${list.loading ? "Loading…" : "Load more"}<//>`}
    </div>
    ${deleting && html`<${DeleteConversation} record=${deleting} title=${deleting.title} onClose=${() => setDeleting(null)}
      onDeleted=${() => { list.remove(deleting.id); setDeleting(null); }} />`}
  </div>`;
}

function told({ rows, hasMore }) {
  if (hasMore) return `The first ${count(rows.length)} conversations`;
  return rows.length === 1 ? "1 conversation" : `${count(rows.length)} conversations`;
}

function Row({ record, manages, onDelete }) {
  const name = record.title ?? record.external_id ?? "Untitled";
  return html`<tr>
    <td class="break"><a class="title" title=${name.length > CLAMPED_CHARS ? name : undefined} href=${to(["conversations", record.id])}>${name}</a>
      <div class="facts small soft">
        <code class="break">${record.external_id ?? `${record.id.slice(0, 14)}…`}</code>
        ${record.parent && html`<${Badge} title="It shares its beginning with another conversation">branch<//>`}
        ${MODES[record.mode] && html`<span class="wide">client ${MODES[record.mode]}</span>`}
        ${Object.entries(record.metadata).filter(([key]) => key !== "title").slice(0, 3).map(
          ([key, value]) => html`<span class="wide pair">${key}: ${value}</span>`)}
      </div></td>
    <td class="number">${count(record.messages)}</td>
    <td class="number wide">${count(record.tokens)}</td>
    <td class="number wide">${count(record.summaries)}</td>
    <td class="wide"><${When} at=${record.created_at} /></td>
    <td><${When} at=${record.updated_at} /></td>
    ${manages && html`<td class="number wide"><${Button} small kind="plain" aria-label=${`Delete ${name}…`} onClick=${() => onDelete(record)}>Delete…<//></td>`}
  </tr>`;
}

/** Pages one after the other; another question begins anew, and what was there stays until its answer comes. */
function usePages(query) {
  const [state, setState] = useState({ rows: null, hasMore: false, loading: true, error: null });
  const [round, setRound] = useState(0);
  const asked = JSON.stringify(query);
  const newest = useRef(null);
  const load = useCallback(async (after, before) => {
    const leaving = new AbortController();
    newest.current?.abort();
    newest.current = leaving;
    setState((was) => ({ ...was, loading: true }));
    try {
      const told = await get("v1/conversations", { ...JSON.parse(asked), limit: PAGE, after, "include[]": "title" }, { signal: leaving.signal });
      if (newest.current === leaving) setState({ rows: [...before, ...told.data], hasMore: told.has_more, loading: false, error: null });
    } catch (error) {
      if (newest.current === leaving) setState((was) => ({ ...was, loading: false, error }));
    }
  }, [asked]);
  useEffect(() => {
    load(null, []);
    return () => newest.current?.abort();
  }, [asked, round]);
  return {
    ...state,
    more: () => load(state.rows.at(-1)?.id, state.rows),
    reload: () => setRound((before) => before + 1),
    remove: (id) => setState((was) => ({ ...was, rows: was.rows.filter((one) => one.id !== id) })),
  };
}
