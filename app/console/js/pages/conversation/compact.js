// Summarize now: first what it would do, then its progress, then what came of it.
import { html, useEffect, useRef, useState } from "../../lib.js";
import { ApiError, events, send } from "../../api.js";
import { count, duration, percent } from "../../format.js";
import { useLoaded, useSettled } from "../../load.js";
import { to } from "../../router.js";
import { Button, ContextBar, Dialog, Failure, Field, Loading } from "../../ui/parts.js";
import { Elapsed } from "../../ui/elapsed.js";

/**
 * @param {object} props
 * @param {string} props.id  of the conversation
 * @param {string} [props.throughItem]  the last item that is to be summarized
 * @param {() => void} props.onClose
 * @param {() => void} [props.onDone]  called when summaries were written
 */
export function Compact({ id, throughItem = "", onClose, onDone }) {
  const [wish, setWish] = useState({ instructions: "", through: throughItem });
  const [running, setRunning] = useState(null);
  const place = `v1/conversations/${encodeURIComponent(id)}/compact`;
  const through = useSettled(wish.through.trim(), 400);
  const trial = useLoaded(async (signal) => ({ through, ...(await send("POST", place, bodyOf({ through, instructions: "" }, { dry_run: true }), { signal })) }), [id, through]);
  // What was worked out for another message is not shown: the button would be enabled, and disabled in the middle of a click.
  const estimate = trial.data?.through === wish.through.trim() ? trial.data : null;
  const leaving = useRef(null);
  useEffect(() => () => leaving.current?.abort(), []);

  const begin = async () => {
    leaving.current = new AbortController();
    const { signal } = leaving.current;
    setRunning({ state: "waiting", since: Date.now(), done: 0, ranges: estimate?.to_summarize?.length ?? 1, made: [] });
    try {
      let result = null;
      for await (const { data } of events(place, bodyOf(wish, { stream: true }), { signal })) {
        if (data.error) throw new ApiError(200, data);
        if (data.type === "compaction_completed" || data.object === "conversation.compaction") result = data;
        else setRunning((before) => advanced(before, data));
      }
      if (result === null) throw new ApiError(0, { error: { message: "The connection broke off. The compaction goes on in the gateway; look at the summaries in a moment." } });
      setRunning((before) => ({ ...before, state: "done", result }));
      if (result.summaries.length) onDone?.();
    } catch (error) {
      if (error.name !== "AbortError") setRunning((before) => ({ ...before, state: "failed", error }));
    }
  };

  if (running) return html`<${Dialog} title="Compact" onClose=${onClose} footer=${html`<${Button} kind=${running.state === "done" ? "primary" : ""} onClick=${onClose}>${running.state === "done" ? "Done" : "Close"}<//>`}>
    <${Running} id=${id} running=${running} retry=${begin} onLeave=${onClose} />
  <//>`;
  const nothing = estimate && !estimate.to_summarize?.length;
  return html`<${Dialog} title="Compact" onClose=${onClose} footer=${html`
    <${Button} onClick=${onClose}>Cancel<//>
    <${Button} kind="primary" disabled=${!estimate || nothing || Boolean(trial.error)} onClick=${begin}>Summarize now<//>`}>
    <p class="soft">A model writes a summary of the older turns. Nothing is deleted: the whole log stays readable, and summaries can be edited and rolled back.</p>
    <${Field} label="What the summary should focus on" hint="Optional, such as: keep every error message and its fix.">
      ${(field, hint) => html`<textarea id=${field} aria-describedby=${hint} class="input" rows="2" maxlength="4000" value=${wish.instructions}
        onInput=${(event) => setWish({ ...wish, instructions: event.target.value })}></textarea>`}
    <//>
    <${Field} label="Up to message" hint="The last message to be summarized, as the log shows it: #12, or its id. Left empty: all but the newest turns.">
      ${(field, hint) => html`<input id=${field} aria-describedby=${hint} class="input" spellcheck="false" autocomplete="off" value=${wish.through}
        onInput=${(event) => setWish({ ...wish, through: event.target.value })} />`}
    <//>
    <section class="stack" aria-label="What it would do" aria-live="polite">
      ${trial.error ? html`<${Refusal} error=${trial.error} retry=${trial.reload} />`
        : !estimate ? html`<${Loading}>Working out what would be summarized…<//>`
        : nothing ? html`<div class="notice"><strong>There is nothing to summarize.</strong> ${estimate.reason}</div>`
        : html`<${Estimate} id=${id} trial=${estimate} onLeave=${onClose} />`}
    </section>
  <//>`;
}

function bodyOf({ instructions, through }, rest) {
  return { ...rest, ...(instructions.trim() && { instructions: instructions.trim() }), ...(through.trim() && { through_item: through.trim() }) };
}

function advanced(before, event) {
  if (event.type === "compaction_started") return { ...before, state: "running", ranges: event.ranges, inputTokens: event.input_tokens };
  const made = event.type === "summary_completed" ? [...before.made, event] : before.made;
  return { ...before, state: "running", done: event.done ?? before.done, ranges: event.ranges ?? before.ranges, made };
}

function Estimate({ id, trial, onLeave }) {
  return html`<div class="panel stack">
    <p>Would summarize ${trial.to_summarize.map((range, at) => html`${at > 0 && ", "}<a
      onClick=${onLeave} href=${to(["conversations", id, "log"], { seq: range.from_seq })}>messages
      #${range.from_seq} to #${range.to_seq - 1}</a>${range.folds.length > 0 && ` (${range.folds.length} summaries become one)`}`)} with ${trial.model}.</p>
    <${Change} before=${trial.tokens_before} after=${trial.tokens_after} window=${trial.window} isEstimate />
  </div>`;
}

function Change({ before, after, window: size, isEstimate = false }) {
  return html`<dl class="change">
    <dt>${isEstimate ? "Now" : "Before"}</dt><dd><${ContextBar} tokens=${before} window=${size} label="Tokens before" /></dd>
    <dt>After</dt><dd><${ContextBar} tokens=${after} window=${size} label="Tokens after" /></dd>
  </dl>
  <p class="small soft">${before > after ? `${isEstimate ? "About " : ""}${count(before - after)} tokens less per turn, ${percent(before - after, before)} of what ${isEstimate ? "is sent now" : "was sent"}.` : isEstimate ? "It would not send less." : "No less is sent than before."}</p>`;
}

function Running({ id, running, retry, onLeave }) {
  if (running.state === "failed") return html`<${Refusal} error=${running.error} retry=${retry} />`;
  if (running.state === "done") return html`<${Result} id=${id} result=${running.result} onLeave=${onLeave} />`;
  return html`<div class="stack">
    <p class="row" role="status"><span class="loading">${running.state === "waiting" ? "Waiting for the conversation to be free…" : "Summarizing…"}</span>
      <${Elapsed} since=${running.since} /></p>
    <progress class="wide" aria-label="Summaries written" max=${running.ranges} value=${running.done || undefined}></progress>
    <p class="small soft">${count(running.done)} of ${count(running.ranges)} ${running.ranges === 1 ? "summary" : "summaries"} written${running.inputTokens ? `, from ${count(running.inputTokens)} tokens` : ""}. It goes on when this is closed.</p>
    <${Made} made=${running.made} />
  </div>`;
}

function Made({ made }) {
  return made.length > 0 && html`<ul class="small">${made.map((one) => html`<li key=${one.id}>#${one.from_seq} to #${one.to_seq - 1}: ${count(one.tokens)} tokens${one.kind === "mechanical" && ", written without a model"}</li>`)}</ul>`;
}

function Result({ id, result, onLeave }) {
  const failed = result.outcome === "failed" || result.summaries.some((one) => one.kind === "mechanical");
  const heading = !result.summaries.length ? "Nothing was summarized." : failed ? "Shortened without a model." : "Done.";
  return html`<div class="stack" role="status">
    <p><strong>${heading}</strong> ${result.summaries.length > 0 && html`${count(result.summaries.length)} ${result.summaries.length === 1 ? "summary" : "summaries"} by ${result.model} in ${duration(result.duration_ms / 1000)}.`} ${result.reason}</p>
    ${failed && result.summaries.length > 0 && html`<div class="notice warn">The summarizing model failed, so the summary was made from the messages by rule. It can be written anew under <a
      onClick=${onLeave} href=${to(["conversations", id, "summaries"])}>Summaries</a>.</div>`}
    ${result.warnings.filter((warning) => warning !== result.reason).map((warning) => html`<div class="notice warn">${warning}</div>`)}
    ${result.summaries.length > 0 && html`<${Change} before=${result.tokens_before} after=${result.tokens_after} window=${result.window} />
      <p><a onClick=${onLeave} href=${to(["conversations", id, "summaries"])}>Read ${result.summaries.length === 1 ? "the summary" : "the summaries"}</a>${result.usage?.total_tokens && html`
        <span class="soft small"> · took ${count(result.usage.prompt_tokens)} + ${count(result.usage.completion_tokens)} tokens</span>`}</p>`}
  </div>`;
}

const REMEDIES = {
  conversation_busy: "Another request or compaction of this conversation is under way. Wait until it is done, then try again.",
  model_required: "No answer of this conversation came through the gateway yet, so no model is known that could summarize it.",
  insufficient_permissions: "Look with a key that has the scope “manage”.",
};

function Refusal({ error, retry }) {
  const remedy = REMEDIES[error.code] ?? (error.status >= 502 ? "The summarizing model could not be reached. Nothing was changed." : error.hint);
  return html`<${Failure} error=${Object.assign(Object.create(error), { message: error.message, code: error.code, hint: remedy })} retry=${retry} />`;
}
