// What the model saw at a turn, beside the whole log: on the left what became of each message, on the right what was sent.
import { html, useEffect, useMemo, useRef, useState } from "../../lib.js";
import { count, countOf } from "../../format.js";
import { get } from "../../api.js";
import { useLoaded } from "../../load.js";
import { go, to } from "../../router.js";
import { Badge, Button, ContextBar, DISPOSITIONS, Disposition, Empty, Failure, Loading, Status } from "../../ui/parts.js";
import { VirtualList } from "../../ui/virtual.js";
import { SeenDrawing } from "./seen_drawing.js";
import { counted, entriesOf, loadView, olderRows } from "./seen_view.js";
import { allTurns, told } from "./tokens.js";

const ROW_PX = 96;
const ENTRY_PX = 150;
const MAX_CHARS = 6000;
const ANSWER_CHARS = 300;

/** @param {{id: string, route: object, session: object, round?: number}} props  `id` of the conversation */
export function Seen({ id, route, session, round = 0 }) {
  const item = route.query.get("item") ?? "";
  const [wish, setWish] = useState({ policy: "", model: "" });
  const asked = useMemo(() => (item ? {} : wish), [item, wish]);
  const turns = useLoaded((signal) => allTurns(id, signal), [id, round]);
  const view = useLoaded((signal) => loadView(id, item, asked, signal), [id, item, asked, round]);
  const isStale = view.loading || (view.data && (view.data.item_id ?? "") !== item);
  return html`<div class="stack seen">
    <section class="panel stack seen-top" aria-label="Which view">
      <${Chooser} id=${id} item=${item} turns=${turns.data ?? []}>
        ${!item && html`<${WhatIf} session=${session} wish=${wish} onWish=${setWish} view=${view.data} />`}
      <//>
      ${item && html`<${Answer} key=${item} id=${id} turn=${turns.data?.find((turn) => turn.id === item)} />`}
      ${view.data && !view.error && html`<${Budget} id=${id} view=${view.data} turn=${turns.data?.find((turn) => turn.id === item)} turns=${turns.data ?? []} />`}
    </section>
    ${view.error?.code === "model_required" && html`<p class="soft">Name a model above to see what it would be sent.</p>`}
    ${view.error && html`<${Failure} error=${view.error} retry=${view.reload} />`}
    ${!view.data && !view.error && html`<${Loading}>Putting the view together…<//>`}
    ${view.data && !view.error && html`<div class=${isStale ? "stack stale" : "stack"} aria-busy=${isStale}>
      <${SideBySide} key=${`${view.data.item_id ?? "now"} ${view.data.policy} ${view.data.model} ${round}`} id=${id} item=${view.data.item_id ?? ""} asked=${asked} view=${view.data} />
    </div>`}
  </div>`;
}

/** Which answer: previous, next, any, or what would be sent now. */
function Chooser({ id, item, turns, children }) {
  const at = item ? turns.findIndex((turn) => turn.id === item) : turns.length;
  const show = (index) => go(["conversations", id, "context"], { item: turns[index]?.id }, { replace: true });
  const turn = turns[at];
  const words = !item ? "Now: what the next request would bring to the model"
    : turn ? `Turn ${count(turn.turn)} of ${count(turns.at(-1).turn)}: what the model saw for this answer` : "What the model saw for an answer";
  return html`<div class="seen-chooser stack">
    <div class="row">
      <${Button} small disabled=${at <= 0} onClick=${() => show(at - 1)}>← Earlier<//>
      <input type="range" class="grow" aria-label="Turn" aria-valuetext=${words} min="0" max=${turns.length} value=${at < 0 ? turns.length : at}
        onInput=${(event) => show(Number(event.target.value))} />
      <${Button} small disabled=${!item || at >= turns.length} onClick=${() => show(at + 1)}>Later →<//>
      <label class="check">Turn <${Draft} aria-label="Number of the turn" type="number" min="1" max=${turns.at(-1)?.turn ?? 1} value=${turn?.turn ?? ""} placeholder="now"
        onDone=${(number) => showTurn(turns, Number(number), show)} /></label>
      <${Button} small aria-pressed=${!item} onClick=${() => show(turns.length)}>Now<//>
    </div>
    <div class="row"><p class="grow" role="status"><strong>${words}</strong>${told(turn?.compaction) && html` <span class="soft">· ${told(turn.compaction)}</span>`}</p>${children}</div>
  </div>`;
}

/** A field that is told when it is left or Enter is pressed; what is being typed outlives a new drawing. */
function Draft({ value, onDone, ...rest }) {
  const [draft, setDraft] = useState(value);
  useEffect(() => setDraft(value), [value]);
  return html`<input class="input small" ...${rest} value=${draft} onInput=${(event) => setDraft(event.target.value)}
    onChange=${(event) => onDone(event.target.value)} />`;
}

function showTurn(turns, number, show) {
  const at = turns.findLastIndex((turn) => turn.turn <= number);
  if (number && at >= 0) show(at);
}

/** The same conversation under another policy, or for another model; none is called. */
function WhatIf({ session, wish, onWish, view }) {
  return html`<label class="check" title="No model is called">With policy <select class="input small" aria-label="With policy" value=${wish.policy} onChange=${(event) => onWish({ ...wish, policy: event.target.value })}>
    <option value="">${view && !wish.policy ? `${view.policy}, as a request would have it` : "as a request would have it"}</option>
    ${(session.policies ?? []).map((name) => html`<option value=${name}>${name}</option>`)}
  </select></label>
  <label class="check" title="No model is called">for model <${Draft} aria-label="For model" spellcheck="false" autocomplete="off" placeholder=${view?.model ?? "its name"} value=${wish.model}
    onDone=${(model) => onWish({ ...wish, model: model.trim() })} /></label>`;
}

/** How the answer begins that the view is of. */
function Answer({ id, turn }) {
  const answer = useLoaded(async (signal) => (turn ? (await get(`v1/conversations/${encodeURIComponent(id)}/log`, { from_seq: turn.seq, limit: 1 }, { signal })).data[0] : null), [id, turn?.seq]);
  if (!answer.data) return null;
  const { text, seq, tool_calls: calls } = answer.data;
  const words = [text, ...calls.map((call) => `calls ${call.name}`)].filter(Boolean).join(" ");
  return html`<p class="break"><span class="soft">Its answer:</span> ${words.length > ANSWER_CHARS ? `${words.slice(0, ANSWER_CHARS)}…` : words || html`<span class="soft">no text</span>`}
    ${" "}<a class="small" href=${to(["conversations", id, "log"], { seq })}>In the log</a></p>`;
}

function Budget({ id, view, turn, turns }) {
  const threshold = view.compacts_above ?? turn?.threshold_tokens;
  return html`<div class="seen-budget">
    ${view.status === "full" ? view.reason && html`<p>${view.reason}</p>` : html`<${SeenDrawing} id=${id} view=${view} turn=${turn} turns=${turns} />`}
    <${ContextBar} tokens=${view.prompt_tokens} window=${view.window} threshold=${threshold} label="Prompt in the window" />
    <div class="row small">
      <${Status} of=${view.status} />
      <span>limit ${count(view.limit)}</span>
      ${threshold && html`<span>· compaction threshold ${count(threshold)}</span>`}
      <span>· policy ${view.policy} · ${view.model}</span>
      ${view.user_text?.messages > 0 && html`<span>· user text ${count(view.user_text.tokens)}: ${count(view.user_text.verbatim)} whole, ${count(view.user_text.shortened)} shortened, ${count(view.user_text.left_out)} left out</span>`}
      ${view.dropped_messages > 0 && html`<${Badge} kind="warn">${count(view.dropped_messages)} dropped<//>`}
      ${!view.fits && html`<${Badge} kind="bad">does not fit<//>`}
      ${view.exact === false && html`<${Badge} kind="warn" title=${view.inexact_reason}>not byte for byte<//>`}
    </div>
    ${view.to_summarize?.length > 0 && html`<p class="small">Would be summarized first: ${view.to_summarize.map((range, at) => html`${at > 0 && ", "}<a
      href=${to(["conversations", id, "log"], { seq: range.from_seq })}>#${range.from_seq} to #${range.to_seq - 1}</a>${range.folds.length > 0 && ` (folds ${range.folds.length} summaries)`}`)}</p>`}
    ${view.notes?.length > 0 && html`<details class="small"><summary>How this was decided</summary><ul>${view.notes.map((note) => html`<li><code>${note.code}</code> ${factsOf(note)}</li>`)}</ul></details>`}
  </div>`;
}

const factsOf = ({ code, ...facts }) => Object.entries(facts).map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value === "number" ? count(value) : JSON.stringify(value)}`).join(", ");

function SideBySide({ id, item, asked, view }) {
  const { rows, isWhole, error } = useRows(id, item, asked, view);
  const [kind, setKind] = useState("");
  const [picked, setPicked] = useState(null);
  const entries = useMemo(() => entriesOf(view, rows), [view, rows]);
  const counts = useMemo(() => counted(rows), [rows]);
  const seqs = useMemo(() => listed(rows, kind), [rows, kind]);
  const pickRow = (seq) => setPicked({ ranges: [{ from_seq: seq, to_seq: seq + 1 }], from: "log" });
  const pickEntry = (entry, index) => setPicked({ ranges: entry.ranges, from: "sent", index });
  const logTarget = useMemo(() => {
    if (picked?.from !== "sent" || picked.ranges.length === 0) return null;
    const index = seqs.findIndex((seq) => seq >= picked.ranges[0].from_seq);
    return index < 0 ? null : { index, align: "start" };
  }, [picked]);
  const sentTarget = useMemo(() => {
    if (picked?.from !== "log") return null;
    const index = entries.findIndex((entry) => touches(entry, picked));
    return index < 0 ? null : { index, align: "start" };
  }, [picked]);
  const start = useRef(null);
  if (start.current === null && seqs.length) start.current = { index: seqs.length - 1, align: "end", isStart: true };
  return html`<div class="seen-sides">
    <section class="panel" aria-label="The whole log">
      <header><h2>The whole log</h2><span class="soft small">${countOf(rows.length, "message")}${!isWhole && !error && html` · <span class="loading">reading</span>`}</span></header>
      ${error && html`<${Failure} error=${error} />`}
      <${Legend} counts=${counts} kind=${kind} onKind=${setKind} />
      ${seqs.length
        ? html`<${VirtualList} key=${kind} label="Messages of the log" count=${seqs.length} estimate=${ROW_PX} height="62vh" target=${logTarget ?? start.current}
            row=${(index) => html`<${LogRow} row=${rows[seqs[index]]} isPicked=${covers(picked, seqs[index])} onPick=${pickRow} />`} />`
        : html`<${Empty}>Nothing was stored before this answer.<//>`}
    </section>
    <section class="panel" aria-label="What was sent">
      <header><h2>${view.object === "context.seen" ? "What the model saw" : "What would be sent"}</h2><span class="soft small">${countOf(view.sent?.length ?? 0, "message")}, ${count(view.prompt_tokens)} tokens</span></header>
      <p class="small soft seen-note">${view.object === "context.seen" ? view.instructions === null ? "Its instructions are not kept: the answer is older than this version, or they were erased." : "" : "A new message would follow."}${picked && picked.from === "log" && !sentTarget && " The message that you chose was not sent, and nothing stands for it."}</p>
      <${VirtualList} label="Messages as they are sent" count=${entries.length} estimate=${ENTRY_PX} height="62vh" target=${sentTarget}
        row=${(index) => html`<${SentRow} id=${id} entry=${entries[index]} isPicked=${picked?.from === "sent" ? picked.index === index : Boolean(picked) && touches(entries[index], picked)} onPick=${() => pickEntry(entries[index], index)} />`} />
    </section>
  </div>`;
}

const covers = (picked, seq) => Boolean(picked) && picked.ranges.some((range) => seq >= range.from_seq && seq < range.to_seq);
const touches = (entry, picked) => entry.ranges.some((range) => covers(picked, range.from_seq) || picked.ranges.some((one) => one.from_seq >= range.from_seq && one.from_seq < range.to_seq));

/** The seqs that the list shows. */
function listed(rows, kind) {
  const seqs = rows.map((_, seq) => seq);
  return kind ? seqs.filter((seq) => rows[seq]?.disposition === kind) : seqs;
}

/** Rows by seq: the newest at once, the others as they come. */
function useRows(id, item, asked, view) {
  const [state, setState] = useState(() => ({ rows: placed([], view.messages.data), isWhole: !view.messages.has_more, error: null }));
  useEffect(() => {
    const leaving = new AbortController();
    const read = async () => {
      for await (const page of olderRows(id, item, asked, view.messages, leaving.signal)) {
        setState((before) => ({ ...before, rows: placed(before.rows, page) }));
      }
      setState((before) => ({ ...before, isWhole: true }));
    };
    read().catch((error) => leaving.signal.aborted || setState((before) => ({ ...before, error })));
    return () => leaving.abort();
  }, [view]);
  return state;
}

function placed(before, page) {
  const length = Math.max(before.length, (page[0]?.seq ?? -1) + 1);
  const rows = Array.from({ length }, (_, seq) => before[seq]);
  for (const row of page) rows[row.seq] = row;
  return rows;
}

function Legend({ counts, kind, onKind }) {
  return html`<div class="seen-legend" role="group" aria-label="Show only">
    ${counts.map(([name, number]) => html`<button type="button" class="badge ${DISPOSITIONS[name]?.[0] ?? "gone"}" aria-pressed=${kind === name}
      onClick=${() => onKind(kind === name ? "" : name)}>${DISPOSITIONS[name]?.[1] ?? name} <strong class="number">${count(number)}</strong></button>`)}
  </div>`;
}

function LogRow({ row, isPicked, onPick }) {
  if (!row) return html`<div class="seen-row"><span class="loading soft small">Reading…</span></div>`;
  const [family] = DISPOSITIONS[row.disposition] ?? ["gone"];
  return html`<div class="seen-row ${family} ${isPicked ? "picked" : ""}">
    <div class="row small">
      <${Button} small kind="plain" aria-pressed=${isPicked} aria-label="Message ${row.seq}: show what was sent for it" onClick=${() => onPick(row.seq)}>#${row.seq}<//>
      <strong>${row.role}</strong> <${Disposition} of=${row.disposition} />
      ${row.pinned && row.disposition !== "pinned" && html`<${Badge}>pinned<//>`}${row.quoted && html`<${Badge}>quoted<//>`}
      <span class="soft number seen-tokens">${row.shown_tokens === row.tokens ? `${count(row.tokens)} tokens` : `${count(row.tokens)} → ${count(row.shown_tokens)} tokens`}</span>
    </div>
    <p class="seen-text break">${row.text || html`<span class="soft">no text</span>`}</p>
    ${row.disposition !== "verbatim" && html`<p class="small soft">${row.reason}</p>`}
  </div>`;
}

const KINDS = { instructions: "instructions", introduction: "how summaries are introduced", summary: "summary", note: "note", user_text: "what the user said", quotation: "quoted for what follows" };

function SentRow({ id, entry, isPicked, onPick }) {
  const [isOpen, setOpen] = useState(false);
  const family = entry.kind === "message" ? (DISPOSITIONS[entry.row?.disposition]?.[0] ?? "verbatim") : entry.kind === "summary" ? "folded" : "kept";
  const isLong = entry.text.length > MAX_CHARS;
  const place = entry.ranges.map(({ from_seq, to_seq }) => (to_seq - from_seq > 1 ? `#${from_seq} to #${to_seq - 1}` : `#${from_seq}`)).join(", ");
  return html`<div class="seen-row ${family} ${isPicked ? "picked" : ""}">
    <div class="row small">
      ${place && html`<${Button} small kind="plain" aria-pressed=${isPicked} aria-label="${place}: show in the log" onClick=${onPick}>${place}<//>`}
      <strong>${entry.role}</strong>
      ${entry.kind === "message" ? entry.row && html`<${Disposition} of=${entry.row.disposition} />` : html`<span class="badge ${family}">${KINDS[entry.kind]}</span>`}
      ${entry.summary && html`<a class="small" href=${to(["conversations", id, "summaries"], { summary: entry.summary.id })}>${count(entry.summary.tokens)} tokens, revision ${entry.summary.revision}</a>`}
    </div>
    <div class="text">${isLong && !isOpen ? `${entry.text.slice(0, MAX_CHARS)}…` : entry.text || html`<span class="soft">no text</span>`}</div>
    ${isLong && html`<${Button} small onClick=${() => setOpen(!isOpen)}>${isOpen ? "Less" : `All ${count(entry.text.length)} characters`}<//>`}
  </div>`;
}
