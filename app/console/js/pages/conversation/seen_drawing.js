// The log from its first message to its last, and below it what was sent for each stretch: a drawing, and the same as a table.
import { html, useMemo, useState } from "../../lib.js";
import { count, countOf } from "../../format.js";
import { to } from "../../router.js";
import { entriesOf } from "./seen_view.js";

/**
 * @param {object} props
 * @param {string} props.id  of the conversation
 * @param {object} props.view  with `sent`
 * @param {object} [props.turn]  of the answer
 * @param {object[]} props.turns
 */
export function SeenDrawing({ id, view, turn, turns }) {
  const end = (view.messages.data[0]?.seq ?? -1) + 1;
  const lanes = useMemo(() => lanesOf(id, view, turn, end), [id, view, turn, end]);
  const [told, setTold] = useState("");
  return html`<figure class="drawn" aria-label="What was sent for which messages">
    <p>${inWords(view, end, sinceOf(turn, turns))}</p>
    <div class="drawn-lanes">${lanes.map((lane) => html`<div class="drawn-lane" key=${lane.name}>
      <span class="small"><strong>${lane.name}</strong> <span class="soft">${lane.note}</span></span>
      <div class="drawn-track">${lane.blocks.map((block) => html`<a key=${block.from_seq} class="drawn-block ${lane.family}" href=${block.href} aria-label=${block.words}
        tabindex=${lane.isFocusable ? undefined : -1} style=${{ left: `${(100 * block.from_seq) / end}%`, width: `${(100 * (block.to_seq - block.from_seq)) / end}%` }}
        onMouseEnter=${() => setTold(block.words)} onFocus=${() => setTold(block.words)}></a>`)}</div>
    </div>`)}
      <div class="drawn-lane small soft" aria-hidden="true"><span></span><span class="drawn-scale"><span>#0</span><span>the log</span><span>#${count(end - 1)}</span></span></div>
    </div>
    <figcaption class="small soft" aria-live="polite">${told || "Point at a block, or move to it with Tab, to see which messages it stands for."}</figcaption>
    <details class="small"><summary>As a table</summary><div class="scroll-x" tabindex="0" role="region" aria-label="Table: what was sent for which messages"><table class="data">
      <thead><tr><th scope="col">Sent</th><th scope="col">For</th></tr></thead>
      <tbody>${lanes.flatMap((lane) => lane.blocks.map((block) => html`<tr key=${`${lane.name} ${block.from_seq}`}><td>${lane.name}</td><td><a href=${block.href}>${block.words}</a></td></tr>`))}</tbody>
    </table></div></details>
  </figure>`;
}

const nameRange = ({ from_seq, to_seq }) => (to_seq - from_seq > 1 ? `messages #${count(from_seq)} to #${count(to_seq - 1)}` : `message #${count(from_seq)}`);
const lengthOf = (ranges) => ranges.reduce((sum, { from_seq, to_seq }) => sum + to_seq - from_seq, 0);

/** The turn since which each view has had these summaries; null while it is not known. */
function sinceOf(turn, turns) {
  const isAlike = (other) => other.boundary_seq === turn.boundary_seq && other.summaries === turn.summaries;
  return turn ? (turns.find(isAlike)?.turn ?? null) : null;
}

function inWords(view, end, since) {
  if (!view.summaries.length) return view.reason ?? "Shortened without a summary.";
  const stands = `${countOf(view.summaries.length, "summary").replace("summarys", "summaries")} ${view.summaries.length > 1 ? "stand" : "stands"} for ${count(lengthOf(view.summaries))} of ${countOf(end, "message")}`;
  const whole = view.would_have_been_tokens;
  const first = since === null ? `${stands}.` : `Since turn ${count(since)}, ${stands}.`;
  if (!whole) return first;
  return `${first} The whole history has ${count(whole)} tokens, the compaction threshold is ${count(view.compacts_above)}${whole > view.compacts_above ? "." : ": what was summarized comes back only when there is more room."}`;
}

/** What was sent, by its kind: each with its blocks from the oldest to the newest. */
function lanesOf(id, view, turn, end) {
  const entries = entriesOf(view, []);
  const rangesOf = (kind) => joined(entries.filter((entry) => entry.kind === kind).flatMap((entry) => entry.ranges));
  const log = (range) => to(["conversations", id, "log"], { seq: range.from_seq });
  const plain = (ranges, words) => ranges.map((range) => ({ ...range, href: log(range), words: `${words} ${nameRange(range)}` }));
  const summaries = view.summaries.map((summary) => ({
    from_seq: summary.from_seq, to_seq: summary.to_seq, href: to(["conversations", id, "summaries"], { summary: summary.id }),
    words: `Summary ${summary.id} (${countOf(summary.tokens, "token")}) stands for ${nameRange(summary)}${summary.replaced_tokens ? ` (${countOf(summary.replaced_tokens, "token")})` : ""}`,
  }));
  const userText = rangesOf("user_text");
  const quotations = rangesOf("quotation");
  const messages = rangesOf("message");
  const gaps = between(joined([...view.summaries, ...userText, ...quotations, ...messages]), end);
  const tokens = (name) => (turn?.parts?.[name] ? ` · ${countOf(turn.parts[name], "token")}` : "");
  return [
    { name: "Summaries", family: "folded", isFocusable: true, blocks: summaries, note: `${count(summaries.length)}${tokens("summaries")}` },
    { name: "Kept user text", family: "kept", blocks: plain(userText, "What the user said in"), note: `of ${countOf(lengthOf(userText), "message")}${tokens("user_text")}` },
    { name: "Quotations", family: "trimmed", blocks: plain(quotations, "Quoted from"), note: `from ${countOf(lengthOf(quotations), "message")}${tokens("quotations")}` },
    { name: "Messages", family: "verbatim", isFocusable: true, blocks: plain(messages, "Sent as"), note: `${count(lengthOf(messages))}${tokens("verbatim")}` },
    { name: "Left out", family: "gone", isFocusable: true, blocks: plain(gaps, "Nothing stands for"), note: countOf(lengthOf(gaps), "message") },
  ].filter((lane) => lane.blocks.length);
}

/** Ranges in order, those that touch as one. */
function joined(ranges) {
  const found = [];
  for (const { from_seq, to_seq } of [...ranges].sort((one, other) => one.from_seq - other.from_seq)) {
    const last = found.at(-1);
    if (last && from_seq <= last.to_seq) last.to_seq = Math.max(last.to_seq, to_seq);
    else found.push({ from_seq, to_seq });
  }
  return found;
}

/** What lies between joined ranges, from 0 to `end`. */
function between(ranges, end) {
  const edges = [0, ...ranges.flatMap(({ from_seq, to_seq }) => [from_seq, to_seq]), end];
  return edges.flatMap((from_seq, at) => (at % 2 === 0 && edges[at + 1] > from_seq ? [{ from_seq, to_seq: edges[at + 1] }] : []));
}
