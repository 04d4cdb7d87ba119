// Conversations page by page.
import { html, useCallback, useEffect, useRef, useState } from "../../lib.js";
import { get } from "../../api.js";
import { to } from "../../router.js";
import { count, nameTenant, shortId } from "../../format.js";
import { Badge, Button, Empty, Failure, Loading, Status, When } from "../../ui/parts.js";
import { DeleteConversation } from "../conversation/head.js";
import { mayManage } from "../conversation/place.js";
import { arrangeFamilies, foldShortRuns } from "./families.js";
import { listQuery } from "./filters.js";
import { FirstSteps } from "./first_steps.js";

const PAGE = 50;
const CLAMPED_CHARS = 40;
const SHOWN_PAIRS = 2;
const SHOWN_TITLES = 6;
/** Of the table, without those that not everybody sees. */
const COLUMNS = 8;
const SHOWN_FIELDS = ["title", "last_answer"];

export function List({ wish, session, isFiltered, onClear, onAsk }) {
  const list = usePages(listQuery(wish), wish.tenant);
  const [deleting, setDeleting] = useState(null);
  const [toggled, setToggled] = useState(new Map());
  const [opened, setOpened] = useState(new Set());
  const table = useRef(null);
  const more = async () => {
    const before = new Set(list.rows.map((one) => one.id));
    await list.more();
    requestAnimationFrame(() => [...(table.current?.querySelectorAll("tbody tr[data-id]") ?? [])].find((row) => !before.has(row.dataset.id))?.querySelector("a.title").focus());
  };
  if (list.rows === null) return list.error ? html`<${Failure} error=${list.error} retry=${list.reload} />` : html`<${Loading} />`;
  if (list.rows.length === 0 && list.error === null) {
    return isFiltered
      ? html`<${Empty}><p>No conversation is like that.</p><p><${Button} onClick=${onClear}>Clear the filters<//></p><//>`
      : html`<${FirstSteps} session=${session} />`;
  }
  const manages = mayManage(session);
  const hasTenants = list.rows.some((one) => one.tenant);
  return html`<div class="panel list" ref=${table} aria-busy=${list.loading}>
    <table class="data conversations">
      <caption class="visually-hidden">Conversations</caption>
      <thead><tr><th scope="col">Conversation</th>${hasTenants && html`<th scope="col" class="wide">Tenant</th>`}<th scope="col" class="wide">Model</th><th scope="col" class="wide">Status</th>
        <th scope="col" class="number wide">Messages</th><th scope="col" class="number wide">Tokens</th>
        <th scope="col" class="number wide">Summaries</th><th scope="col" class="number wide">Created</th><th scope="col" class="number wide">Updated</th>
        ${manages && html`<th scope="col" class="wide"><span class="visually-hidden">Actions</span></th>`}</tr></thead>
      <tbody>${foldShortRuns(arrangeFamilies(list.rows, toggled), opened).map((row) => row.run ? html`<${ShortRun} key=${`run ${row.id}`} ...${row} columns=${COLUMNS + manages + hasTenants}
        onToggle=${() => setOpened(new Set(row.isOpen ? [...opened].filter((id) => id !== row.id) : [...opened, row.id]))} />` : html`<${Row} key=${row.record.id} ...${row} manages=${manages} hasTenants=${hasTenants}
        onDelete=${setDeleting} onTenant=${(tenant) => onAsk({ tenant })} onToggle=${() => setToggled(new Map(toggled).set(row.record.id, !row.isOpen))} />`)}</tbody>
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

/** A row that stands for many conversations of one exchange. */
function ShortRun({ run, isOpen, columns, onToggle }) {
  const titles = run.map(({ record }) => record.title ?? record.external_id ?? "Untitled");
  return html`<tr class="short-run"><td class="name"><div class="name-line"><button type="button" class="twig" aria-expanded=${isOpen} onClick=${onToggle}>
    <span aria-hidden="true">${isOpen ? "▾" : "▸"}</span> ${count(run.length)} conversations of one exchange</button>
    ${!isOpen && html`<span class="small soft run-titles">${[...new Set(titles)].slice(0, SHOWN_TITLES).join(" · ")}</span>`}</div></td><td class="wide" colspan=${columns - 1}></td></tr>`;
}

function told({ rows, hasMore }) {
  if (hasMore) return `The first ${count(rows.length)} conversations`;
  return rows.length === 1 ? "1 conversation" : `${count(rows.length)} conversations`;
}

function Row({ record, depth, branches, isOpen, manages, hasTenants, onDelete, onTenant, onToggle }) {
  const name = record.title ?? record.external_id ?? "Untitled";
  const model = record.last_answer?.model;
  return html`<tr data-id=${record.id} class=${depth > 0 ? "branched" : ""}>
    <td class="name"><div class="name-line" style=${{ "--depth": depth }}>
      <a class="title" title=${name.length > CLAMPED_CHARS ? name : undefined} href=${to(["conversations", record.id])}>${name}</a>
      ${branches > 0 && html`<button type="button" class="twig" aria-expanded=${isOpen} aria-label=${`${branches} ${branches === 1 ? "branch" : "branches"} of ${name}`}
        onClick=${onToggle}><span aria-hidden="true">${isOpen ? "▾" : "▸"}</span> ${count(branches)} ${branches === 1 ? "branch" : "branches"}</button>`}
      ${record.parent && (depth > 0 ? html`<span class="visually-hidden">branch</span>`
        : html`<a class="small" href=${to(["conversations", record.parent.conversation_id])}>branch of <code>${shortId(record.parent.conversation_id)}</code></a>`)}
      <code class="wide small soft" title=${record.id}>${record.external_id ?? shortId(record.id)}</code>
      ${Object.entries(record.metadata).filter(([key]) => key !== "title").slice(0, SHOWN_PAIRS).map(
        ([key, value]) => html`<span class="wide pair small soft">${key}: ${value}</span>`)}
      <span class="narrow facts small soft number"><${LastStatus} of=${record} /><span class="model">${model}</span>
        <span>${count(record.messages)} messages</span><${When} at=${record.updated_at} isShort /></span>
    </div></td>
    ${hasTenants && html`<td class="wide"><button type="button" class="tenant" title=${`Only tenant ${record.tenant}`} onClick=${() => onTenant(record.tenant)}><span>${nameTenant(record)}</span></button></td>`}
    <td class="wide model" title=${model}>${model ?? html`<span class="soft">–</span>`}</td>
    <td class="wide"><${LastStatus} of=${record} /></td>
    <td class="number wide">${count(record.messages)}</td>
    <td class="number wide">${count(record.tokens)}</td>
    <td class="number wide">${record.summaries ? count(record.summaries) : html`<span class="soft">–</span>`}</td>
    <td class="number wide"><${When} at=${record.created_at} isShort /></td>
    <td class="number wide"><${When} at=${record.updated_at} isShort /></td>
    ${manages && html`<td class="number wide"><${Button} small kind="plain" aria-label=${`Delete ${name}…`} onClick=${() => onDelete(record)}>Delete…<//></td>`}
  </tr>`;
}

/** How the newest message fared: no answer yet, an answer that broke off, or what the model saw for it. */
function LastStatus({ of: { last_answer: answer, unanswered } }) {
  if (unanswered > 0) return html`<${Badge} kind="warn" title="The newest message has no answer: a request is running, or it failed">no answer<//>`;
  if (answer?.incomplete) return html`<${Badge} kind="warn" title="The answer is not whole: its client or its provider went away">broke off<//>`;
  if (answer?.context_status === "full") return html`<span class="soft" title="The model saw everything word for word">full</span>`;
  if (answer?.context_status) return html`<${Status} of=${answer.context_status} />`;
  return html`<span class="soft">–</span>`;
}

/** A conversation that became active meanwhile is on two pages. */
function joined(before, rows) {
  const known = new Set(before.map((one) => one.id));
  return [...before, ...rows.filter((one) => !known.has(one.id))];
}

/** Pages one after the other; another question begins anew, and what was there stays until its answer comes. */
function usePages(query, tenant) {
  const [state, setState] = useState({ rows: null, hasMore: false, loading: true, error: null });
  const [round, setRound] = useState(0);
  const asked = JSON.stringify({ query, tenant });
  const newest = useRef(null);
  const load = useCallback(async (after, before) => {
    const leaving = new AbortController();
    newest.current?.abort();
    newest.current = leaving;
    setState((was) => ({ ...was, loading: true }));
    try {
      const told = await get("v1/conversations", { ...query, limit: PAGE, after, "include[]": SHOWN_FIELDS }, { signal: leaving.signal, tenant });
      if (newest.current === leaving) setState({ rows: joined(before, told.data), hasMore: told.has_more, loading: false, error: null });
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
