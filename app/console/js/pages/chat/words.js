// Messages of a chat, and what happened to the context while one was written.
import { html, memo } from "../../lib.js";
import { count, duration } from "../../format.js";
import { to } from "../../router.js";
import { Elapsed } from "../../ui/elapsed.js";
import { Markdown } from "../../ui/markdown.js";
import { Badge, Button, Copy, Failure, Status } from "../../ui/parts.js";

const WHO = { user: "You", assistant: "Model", system: "Instructions", developer: "Instructions", tool: "Tool result" };

/** @param {{said: object, conversation: string, isLast: boolean, onAgain: () => void}} props */
export const Said = memo(function Said({ said, conversation, isLast, isBusy, onAgain }) {
  const { role, text, row, answer, state } = said;
  const isAnswer = role === "assistant";
  const calls = (row?.tool_calls ?? answer?.calls ?? []).filter(Boolean);
  const reasoning = row?.reasoning ?? answer?.reasoning;
  const refusal = row?.refusal ?? answer?.refusal;
  const compaction = answer?.compaction;
  const isEmpty = state === "coming" && !text && !calls.length && !reasoning;
  const isCompacting = isEmpty && compaction?.type === "running";
  return html`<li class="said ${role}">
    ${compaction && html`<${Compaction} compaction=${compaction} context=${answer.context} />`}
    ${!isCompacting && html`<article class="bubble" aria-label=${isAnswer ? "Answer" : role === "user" ? "Question" : (WHO[role] ?? role)} aria-busy=${state === "coming"}>
      <header class="row small soft">
        <strong>${WHO[role] ?? role}</strong>${isAnswer && html`<span class="break">${row?.model ?? said.model}</span>`}
        ${(state === "stopped" || row?.incomplete) && html`<${Badge} kind="warn">stopped<//>`}
        ${row?.finish_reason === "length" && html`<${Badge} kind="warn">cut off by its length<//>`}
      </header>
      ${reasoning && html`<details class="small"><summary>Reasoning</summary><div class="text soft">${reasoning}</div></details>`}
      ${isEmpty && html`<p class="soft"><span class="loading">Waiting for the model…</span></p>`}
      ${text && (role === "tool" ? html`<details class="small"><summary>${count(text.length)} characters</summary><pre class="plain text" tabindex="0">${text}</pre></details>`
        : isAnswer ? html`<${Markdown} text=${text} />` : html`<div class="text">${text}</div>`)}
      ${refusal && html`<div class="notice warn">${refusal}</div>`}
      ${calls.map((call) => html`<p class="small break">calls <code>${call.name}(${call.arguments})</code></p>`)}
      ${row?.attachments?.map((one) => html`<p class="small"><${Badge}>${one.type}<//> ${one.detail}</p>`)}
      ${state === "failed" && html`<${Failure} error=${said.error} retry=${isLast && !isBusy ? onAgain : null} />`}
      ${isAnswer && state !== "coming" && html`<footer class="row small">
        ${answer?.status && html`<${Status} of=${answer.status} />`}
        ${answer?.context && html`<span class="soft number">${count(answer.context.prompt_tokens)} / ${count(answer.context.window)} tokens</span>`}
        ${row && html`<a aria-label=${`What the model saw for message ${row.seq}`}
          href=${to(["conversations", conversation, "context"], { item: row.id })}>What the model saw</a>`}
        ${text && html`<${Copy} text=${text} name=${row ? `Copy answer ${row.seq}` : "Copy this answer"} />`}
        ${isLast && !isBusy && state !== "failed" && html`<${Button} small kind="plain" title="As a branch: this answer stays" onClick=${onAgain}>Ask again<//>`}
      </footer>`}
      ${[answer?.context?.warnings ?? []].flat().map((warning) => html`<div class="notice warn small">${warning}</div>`)}
    </article>`}
  </li>`;
});

/** That older turns are being summarized, and how that ended. */
function Compaction({ compaction, context }) {
  if (compaction.type === "running") {
    return html`<div class="compacting" role="group" aria-label="Compaction">
      <span class="loading"><strong>Compacting…</strong></span>
      <span class="small">Older turns are being summarized: ${count(compaction.inputTokens)} tokens in a window of ${count(compaction.window)}.</span>
      <${Elapsed} since=${compaction.since} />
    </div>`;
  }
  const failed = compaction.type === "failed";
  const summaries = context?.summaries ?? [];
  return html`<div class="compacting ${failed ? "failed" : "done"}" role="group" aria-label="Compaction">
    <strong>${failed ? "Compaction failed" : "Compacted"}</strong>
    <span class="small">${failed ? "The model that summarizes failed, so older turns were shortened by rule." : "Older turns are told by summaries now; the log is untouched."}
      ${context && ` ${count(compaction.inputTokens)} → ${count(context.prompt_tokens)} tokens`}${summaries.length > 0 && `, ${count(summaries.length)} ${summaries.length === 1 ? "summary" : "summaries"}`}</span>
    <span class="number soft">${duration(compaction.durationMs / 1000)}</span>
  </div>`;
}
