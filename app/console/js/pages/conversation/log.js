// All that was said, however long: rows come as they are looked at, and summaries stand where they stand in.
import { html, useCallback, useEffect, useMemo, useReducer, useRef, useState } from "../../lib.js";
import { get, send } from "../../api.js";
import { useLoaded } from "../../load.js";
import { go } from "../../router.js";
import { count } from "../../format.js";
import { Confirm, useAction } from "../../ui/confirm.js";
import { marked } from "../../ui/marks.js";
import { Button, Empty, Failure } from "../../ui/parts.js";
import { VirtualList } from "../../ui/virtual.js";
import { Find } from "./find.js";
import { LogPages } from "./log_pages.js";
import { Band, Message } from "./message.js";
import { mayManage, placeOf } from "./place.js";
import { allSummaries } from "./summary_list.js";

const ROW_PX = 132;
const LOOK_BACK = 40;
const HEIGHT = "max(24rem, calc(100dvh - 8.5rem))";

export function Log({ id, record, route, session, round, onChange }) {
  const pages = useLogPages(id, record, round);
  const summaries = useLoaded((signal) => allSummaries(id, { signal }), [id, record.summaries, record.updated_at, round]);
  const [isRaw, setRaw] = useState(false);
  const [asking, setAsking] = useState(null);
  const folds = useRef(new Map()).current;
  const box = useRef(null);
  const { target, at, jump } = useTarget(route, pages.total);
  const pinning = useAction((method, message) => send(method, placeOf(id, "items", message.id, "pin")), onChange);
  const byStart = useMemo(() => new Map((summaries.data ?? []).map((one) => [one.from_seq, one])), [summaries.data]);
  const words = route.query.get("q") ?? "";
  useEffect(() => marked(box.current, words));

  const act = useCallback((what, message) => {
    if (what === "pin") pinning.run("POST", message);
    else if (what === "unpin") pinning.run("DELETE", message);
    else if (what === "delete") setAsking(message);
    else jump(summaryOver(byStart, message)?.from_seq ?? message.seq);
  }, [byStart, jump]);
  const row = (seq) => {
    const message = pages.at(seq);
    const summary = byStart.get(seq);
    return html`
      ${summary && html`<${Band} summary=${summary} conversation=${id} folds=${folds} isRaw=${isRaw} />`}
      ${message === null
        ? html`<div class="message waiting" aria-busy="true"><span class="small soft number">#${seq}</span></div>`
        : html`<${Message} message=${message} conversation=${id} folds=${folds} isRaw=${isRaw} isFound=${seq === at}
            manages=${mayManage(session)} callName=${callNameOf(pages, message)} onAct=${act} />`}
    `;
  };
  if (pages.total === 0) {
    return html`<${Empty}>Nothing was said yet. What is said under this conversation’s id stands here.<//>`;
  }
  return html`<div class="log" ref=${box}>
    <div class="row log-tools">
      <${Find} id=${id} asked=${words} at=${at} onGo=${jump}
        onAsk=${(q) => go(["conversations", route.parts[1], "log"], { q, seq: at }, { replace: true })} />
      <${Jump} total=${pages.total} onJump=${jump} />
      <label class="row small"><input type="checkbox" checked=${isRaw} onChange=${(event) => setRaw(event.target.checked)} /> Plain text</label>
    </div>
    <p class="visually-hidden" role="status">${target ? `Message ${target.index} of ${count(pages.total)}` : ""}</p>
    <${Failure} error=${pinning.error ?? pages.error} retry=${pages.error ? pages.refresh : undefined} />
    <${Failure} error=${summaries.error} retry=${summaries.reload} />
    <${VirtualList} count=${pages.total} row=${row} estimate=${ROW_PX} height=${HEIGHT} target=${target}
      label="Messages" onRange=${pages.want} onVisible=${() => marked(box.current, words)} />
    ${asking && html`<${DeleteMessage} id=${id} message=${asking} onClose=${() => setAsking(null)} onDone=${onChange} />`}
  </div>`;
}

function useLogPages(id, record, round) {
  const [, draw] = useReducer((before) => before + 1, 0);
  const held = useRef(null);
  if (held.current?.id !== id) {
    held.current?.pages.close();
    const load = (from_seq, limit, signal) => get(placeOf(id, "log"), { from_seq, limit }, { signal });
    const pages = new LogPages(load, draw);
    held.current = { id, pages, want: (...range) => pages.want(...range), refresh: () => pages.refresh() };
  }
  const { pages, want, refresh } = held.current;
  const isFirst = useRef(true);
  useEffect(() => {
    if (isFirst.current) isFirst.current = false;
    else pages.refresh();
  }, [round, record.updated_at, record.messages]);
  useEffect(() => () => held.current.pages.close(), []);
  const total = Math.max(pages.total, record.messages);
  return { total, at: (seq) => pages.at(seq), error: pages.error, want, refresh };
}

/** Where the address points: `?seq=`. Going to the same place twice goes there twice. */
function useTarget(route, total) {
  const asked = route.query.get("seq");
  const at = asked === null || !/^\d+$/.test(asked) ? null : Math.min(Number(asked), Math.max(0, total - 1));
  const [target, setTarget] = useState(null);
  const focus = useRef(false);
  const newest = useRef(null);
  newest.current = { at, route };
  useEffect(() => {
    if (at !== null) setTarget({ index: at, focus: focus.current });
    focus.current = false;
  }, [at]);
  const jump = useCallback((seq, { focus: wantsFocus = false } = {}) => {
    const { at: before, route: now } = newest.current;
    focus.current = wantsFocus;
    if (before === seq) setTarget({ index: seq, focus: wantsFocus });
    else go(now.parts, { q: now.query.get("q"), seq }, { replace: true });
  }, []);
  return { target, at, jump };
}

function Jump({ total, onJump }) {
  const [seq, setSeq] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (seq !== "") onJump(Math.max(0, Math.min(total - 1, Math.floor(Number(seq)))), { focus: true });
  };
  return html`<form class="row jump" onSubmit=${submit}>
    <${Button} small onClick=${() => onJump(0, { focus: true })}>First<//>
    <${Button} small onClick=${() => onJump(total - 1, { focus: true })}>Last<//>
    <input class="input number" type="number" min="0" max=${total - 1} aria-label="Number of a message" placeholder="#"
      value=${seq} onInput=${(event) => setSeq(event.target.value)} />
    <${Button} small type="submit">Go<//>
    <span class="wide small soft number">of ${count(total)}</span>
  </form>`;
}

function DeleteMessage({ id, message, onClose, onDone }) {
  const [erase, setErase] = useState(message.deleted);
  const remove = () => send("DELETE", placeOf(id, "items", message.id), undefined, { query: { erase: erase || null } });
  return html`<${Confirm} title=${`Delete message ${message.seq}?`} action=${erase ? "Erase for good" : "Delete"} onClose=${onClose}
    onConfirm=${async () => { await remove(); onClose(); onDone(); }}>
    <blockquote class="text excerpt">${message.text.slice(0, 300) || "(no text)"}</blockquote>
    <fieldset class="stack choices">
      <legend class="visually-hidden">How</legend>
      ${!message.deleted && html`<label class="row"><input type="radio" name="how" checked=${!erase} onChange=${() => setErase(false)} />
        <span><strong>Take it out</strong> of every list and every prompt.</span></label>`}
      <label class="row"><input type="radio" name="how" checked=${erase} onChange=${() => setErase(true)} />
        <span><strong>Erase it</strong>: its words are also overwritten in the database. This cannot be taken back.</span></label>
    </fieldset>
    <p class="small soft">It goes from every branch that shares it. Summaries that covered it are made again without it.
      ${message.tool_calls.length > 0 && message.text && " Its tool calls are items of their own, and stay."}</p>
  <//>`;
}

/** Of a tool's result: what was called. */
function callNameOf(pages, message) {
  if (message.role !== "tool" || !message.tool_call_id) return message.name;
  for (let seq = message.seq - 1; seq >= Math.max(0, message.seq - LOOK_BACK); seq -= 1) {
    const call = pages.at(seq)?.tool_calls.find((one) => one.id === message.tool_call_id);
    if (call) return call.name;
  }
  return message.name;
}

function summaryOver(byStart, message) {
  return [...byStart.values()].find((one) => one.id === message.summary_id);
}
