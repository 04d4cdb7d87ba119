// On what a request spent its time: each moment belongs to one kind of work.
import { html } from "../../lib.js";
import { milliseconds } from "../../format.js";

/** The kinds, in the order in which they are drawn; the names are also classes that have the colours. */
export const KINDS = {
  queue: "waiting for a free slot",
  gateway: "the gateway’s own work",
  summary: "waiting for a summary",
  failed: "calls that failed",
  waiting: "waiting for the first byte",
  writing: "the answer being written",
  other: "between steps, such as the pause before a further call",
};

/** What a moment counts as if several steps run in it: the first that fits. */
const ORDER = ["summary", "failed", "writing", "waiting", "queue", "gateway", "other"];
const GATEWAY_STEPS = new Set(["read", "resolve", "recall", "plan", "quotations"]);
const QUEUE_STEPS = new Set(["queue", "join"]);

/** Whether a call of a provider brought no answer. */
export const isFailed = (detail) => Boolean(detail.error) || (detail.status ?? 0) >= 400;

/** The kind of a step, for its colour. */
export function kindOf({ name, detail }) {
  if (name === "attempt") return isFailed(detail) ? "failed" : "waiting";
  if (name === "summary") return isFailed(detail) ? "failed" : "summary";
  if (name === "compaction") return "summary";
  if (QUEUE_STEPS.has(name)) return "queue";
  if (name === "first_byte" || name === "end") return "mark";
  return GATEWAY_STEPS.has(name) || name === "store" ? "gateway" : "other";
}

/**
 * The milliseconds of each kind of one request with its timeline; together they are its duration.
 * @returns {Record<string, number>}
 */
export function spentByKind({ timeline, duration_ms: whole, first_byte_ms: firstByte }) {
  const parts = timeline.flatMap((step) => partsOf(step, firstByte));
  const borders = [...new Set([0, whole, ...parts.flatMap((part) => [part.from, part.to])])].filter((at) => at <= whole).sort((one, other) => one - other);
  const spent = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, 0]));
  for (let at = 1; at < borders.length; at += 1) {
    const running = new Set(parts.filter((part) => part.from <= borders[at - 1] && part.to >= borders[at]).map((part) => part.kind));
    spent[ORDER.find((kind) => running.has(kind)) ?? "other"] += borders[at] - borders[at - 1];
  }
  return spent;
}

/** A step as one part, the call that answered as two: before the first byte and after it. Storing runs beside others, or alone at the end. */
function partsOf(step, firstByte) {
  const { start_ms: from, end_ms: to } = step;
  const kind = kindOf(step);
  if (kind === "mark") return [];
  if (kind === "waiting" && firstByte !== null && firstByte > from && firstByte < to) {
    return [{ kind, from, to: firstByte }, { kind: "writing", from: firstByte, to }];
  }
  return [{ kind, from, to }];
}

/**
 * What a row of the list says of the same, without a timeline.
 * @returns {Record<string, number>|null}  null if nothing is known
 */
export function roughlySpent({ duration_ms: whole, first_byte_ms: firstByte, queue_ms: queue, compaction_ms: compaction, status }) {
  if (!whole) return null;
  const known = (queue ?? 0) + (compaction ?? 0);
  const begun = Math.max(known, firstByte ?? whole);
  return {
    queue: queue ?? 0, summary: compaction ?? 0,
    [status >= 400 ? "failed" : "waiting"]: begun - known, writing: Math.max(0, whole - begun),
  };
}

/** The kinds side by side on a bar. `most`: the milliseconds that fill it. */
export function SpentBar({ spent, most }) {
  return html`<span class="spent-bar" aria-hidden="true">${Object.keys(KINDS).map((kind) => spent[kind] > 0 && html`<span key=${kind} class="kind-${kind}"
    style=${{ width: `${Math.min(100, (100 * spent[kind]) / most)}%` }}></span>`)}</span>`;
}

/** What the colours mean, with the time of each. */
export function SpentKey({ spent }) {
  const whole = Object.values(spent).reduce((sum, ms) => sum + ms, 0);
  const kinds = Object.keys(KINDS).filter((kind) => spent[kind] > 0).sort((one, other) => spent[other] - spent[one]);
  return html`<ul class="spent-key small" aria-label="Where the time went">${kinds.map((kind) => html`<li key=${kind}>
    <span class="spent-swatch kind-${kind}"></span>${KINDS[kind]} <strong class="number">${milliseconds(spent[kind])}</strong>${" "}<span class="number soft">${shareOf(spent[kind], whole)}</span></li>`)}</ul>`;
}

const shareOf = (part, whole) => (part / whole < 0.01 ? "<1 %" : `${Math.round((100 * part) / whole)} %`);
