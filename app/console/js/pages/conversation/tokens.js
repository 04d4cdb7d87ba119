// The sawtooth: tokens sent per turn, against what the whole log would have cost.
import { html, useMemo, useState } from "../../lib.js";
import { get } from "../../api.js";
import { count, duration, moment, percent, short } from "../../format.js";
import { useLoaded } from "../../load.js";
import { go } from "../../router.js";
import { Chart } from "../../ui/chart.js";
import { Button, Empty, Loaded, Status } from "../../ui/parts.js";
import { Numbers } from "../../ui/numbers.js";

const PAGE = 1000;
const STRETCHES = [50, 200, 1000];
/** A log so many windows long would press the sawtooth flat. */
const TALL = 6;

/** @param {{id: string, round?: number}} props  `id` of the conversation; `round` changes when it did */
export function Tokens({ id, round = 0 }) {
  const turns = useLoaded((signal) => allTurns(id, signal), [id, round]);
  return html`<${Loaded} from=${turns} waiting="Reading the turns…">${(all) =>
    all.length ? html`<${Sawtooth} id=${id} turns=${all} reload=${turns.reload} />` : html`<${Empty}>No answer of this conversation came through the gateway yet.<//>`}<//>`;
}

/** Every turn that a model was asked in, oldest first. */
export async function allTurns(id, signal) {
  const all = [];
  for (let after = null; ; ) {
    const page = await get(`v1/conversations/${encodeURIComponent(id)}/turns`, { limit: PAGE, after }, { signal });
    all.push(...page.data);
    if (!page.has_more || !page.data.length) return all.filter((turn) => turn.prompt_tokens !== null);
    after = page.last_id ?? page.data.at(-1).id;
  }
}

/** What a prompt is made of, from the top of the stack to its bottom. */
const PARTS = [
  ["verbatim", "Verbatim", "--chart-2"],
  ["quotations", "Quotations", "--chart-3"],
  ["user_text", "Kept user text", "--chart-4"],
  ["summaries", "Summaries", "--chart-1"],
  ["instructions", "Instructions", "--gone"],
];

/** A compaction in words; null where there was none. */
export function told(compaction) {
  if (compaction?.prepared) return "summary made ahead, no waiting";
  if (!compaction?.ran) return null;
  const ended = compaction.outcome === "failed" ? "compaction failed, shortened without a model" : "compaction";
  return compaction.duration_ms ? `${ended} in ${duration(compaction.duration_ms / 1000)}` : ended;
}

const MARKS = {
  "--chart-4": "compaction, the client waited",
  "--chart-2": "summary made ahead",
  "--chart-5": "compaction failed, shortened without a model",
};

function colorOf(compaction) {
  if (compaction.prepared) return "--chart-2";
  return compaction.outcome === "failed" ? "--chart-5" : "--chart-4";
}

function Sawtooth({ id, turns: all, reload }) {
  const [stretch, setStretch] = useState(Infinity);
  const [withLog, setWithLog] = useState(() => all.at(-1).log_tokens <= TALL * all.at(-1).window);
  const [withReported, setWithReported] = useState(false);
  const sums = useMemo(() => summed(all), [all]);
  const turns = useMemo(() => (stretch < all.length ? all.slice(-stretch) : all), [all, stretch]);
  const x = useMemo(() => turns.map((_, index) => all.length - turns.length + index + 1), [turns]);
  const lines = useMemo(() => linesOf(turns, { withLog, withReported }), [turns, withLog, withReported]);
  const marks = useMemo(
    () => turns.flatMap((turn, index) => (told(turn.compaction) ? [{ index, color: colorOf(turn.compaction) }] : [])),
    [turns],
  );
  const columns = useMemo(() => [
    { label: "Turn", value: (index) => count(turns[index].turn) },
    { label: "Status", value: (index) => turns[index].status },
    { label: "Model", value: (index) => turns[index].model },
    { label: "Compaction", value: (index) => told(turns[index].compaction) ?? "–" },
  ], [turns]);
  const open = (index) => go(["conversations", id, "context"], { item: turns[index].id });
  return html`<div class="stack">
    <${Numbers} label="Tokens of this conversation" of=${[
      { label: "Tokens sent", value: short(sums.sent), title: count(sums.sent) },
      { label: "Tokens saved", value: short(sums.saved), title: count(sums.saved), note: `${percent(sums.saved, sums.log)} of what the whole log would have cost`, kind: sums.saved > 0 ? "good" : "" },
      { label: "Compactions", value: count(sums.compactions), note: compactionsInWords(sums) },
      { label: "Cache hits", value: sums.reported ? percent(sums.cached, sums.reported) : "–", note: sums.reported ? `${short(sums.cached)} of ${short(sums.reported)} reported tokens` : "the provider reported none" },
    ]} />
    <section class="panel">
      <header>
        <h2 class="grow">Tokens sent per turn</h2>
        ${all.length > STRETCHES[0] && html`<label class="check">Show <select class="input small" aria-label="Turns shown" value=${String(stretch)}
          onChange=${(event) => setStretch(Number(event.target.value))}>
          <option value="Infinity">all ${count(all.length)} turns</option>
          ${STRETCHES.filter((turnsShown) => turnsShown < all.length).map((turnsShown) => html`<option value=${turnsShown}>the last ${count(turnsShown)}</option>`)}
        </select></label>`}
        <label class="check"><input type="checkbox" checked=${withLog} onChange=${(event) => setWithLog(event.target.checked)} /> Without compaction</label>
        <label class="check"><input type="checkbox" checked=${withReported} onChange=${(event) => setWithReported(event.target.checked)} /> Reported and cached</label>
        <${Button} small onClick=${reload}>Refresh<//>
      </header>
      <${Chart} label="Tokens sent per turn, ${count(turns.length)} turns" x=${x} xLabel="Answer" lines=${lines} marks=${marks} columns=${columns}
        formatX=${(value) => `Answer ${count(value)}`} formatY=${short} height=${340} onPick=${open}
        pickHint="Click an answer, or press Enter on it, to see what the model saw."
        more=${(index) => html`<${TurnFacts} turn=${turns[index]} />`} />
      <ul class="chart-key small soft" aria-label="Upright lines">
        ${Object.entries(MARKS).filter(([color]) => marks.some((mark) => mark.color === color)).map(([color, words]) => html`<li><span
          class="swatch upright" style=${{ borderColor: `var(${color})` }}></span>${words}</li>`)}
      </ul>
      ${isRaised(turns) && html`<p class="small soft">The compaction threshold rises with kept user text and quotations, which no compaction frees, and until a further compaction pays;
        at most to ${count(turns.at(-1).limit)} tokens, which leaves the answer its room.</p>`}
    </section>
  </div>`;
}

/** Whether the threshold of a view with summaries is above that of one without. */
const isRaised = (turns) => turns.some((turn) => turn.summaries && turn.window === turns[0].window && turn.threshold_tokens > turns[0].threshold_tokens);

function TurnFacts({ turn }) {
  const compaction = told(turn.compaction);
  return html`turn ${count(turn.turn)} · <${Status} of=${turn.status} /> ${turn.model} · ${moment(turn.created_at)}
    ${compaction && html` · ${compaction}`}${turn.recovered && " · sent again, smaller: the provider said it was too long"}
    ${turn.incomplete && " · broken off"}`;
}

function linesOf(turns, { withLog, withReported }) {
  const line = (label, name, color, rest = {}) => ({ label, color, values: turns.map((turn) => turn[name]), ...rest });
  const isOneWindow = new Set(turns.map((turn) => turn.window)).size === 1;
  return [
    ...stackOf(turns),
    ...(withLog ? [line("Whole log", "log_tokens", "--chart-3", { dashed: true })] : []),
    ...(withReported ? [line("Reported", "reported_tokens", "--ink-soft"), line("Cached", "cached_tokens", "--gone")] : []),
    line("Sent", "prompt_tokens", "--ink"),
    line("Compaction threshold", "threshold_tokens", "--chart-5", { dashed: true, stepped: true }),
    ...(isOneWindow ? [] : [line("Limit", "limit", "--gone", { dashed: true, stepped: true })]),
    line("Window", "window", "--ink-soft", { dashed: true, stepped: true }),
  ].filter((one) => one.values.some((value) => value !== null && value !== undefined));
}

/** The parts of each prompt, each on top of those below it; none that no prompt has. */
function stackOf(turns) {
  const tokens = (turn, [name]) => turn.parts?.[name] ?? 0;
  const used = PARTS.filter((part) => turns.some((turn) => tokens(turn, part)));
  return used.map((part, at) => ({
    label: part[1], color: part[2], filled: true,
    values: turns.map((turn) => (turn.parts ? used.slice(at).reduce((sum, below) => sum + tokens(turn, below), 0) : null)),
    told: turns.map((turn) => turn.parts?.[part[0]] ?? null),
  }));
}

function summed(turns) {
  const sum = (name) => turns.reduce((before, turn) => before + (turn[name] ?? 0), 0);
  const ran = turns.filter((turn) => turn.compaction?.ran);
  return {
    sent: sum("prompt_tokens"), saved: sum("saved_tokens"), log: sum("log_tokens"), cached: sum("cached_tokens"), reported: sum("reported_tokens"),
    prepared: turns.filter((turn) => turn.compaction?.prepared).length,
    failed: ran.filter((turn) => turn.compaction.outcome === "failed").length,
    waitedMs: ran.reduce((before, turn) => before + (turn.compaction.duration_ms ?? 0), 0),
    compactions: ran.length + turns.filter((turn) => turn.compaction?.prepared).length,
  };
}

function compactionsInWords({ compactions, prepared, failed, waitedMs }) {
  if (!compactions) return "none was needed";
  return [waitedMs > 0 && `waited ${duration(waitedMs / 1000)}`, prepared && `${count(prepared)} made ahead`, failed && `${count(failed)} failed`].filter(Boolean).join(", ");
}
