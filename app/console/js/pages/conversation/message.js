// A message of the log, and the summary that stands in front of those that it covers.
import { Fragment, html, memo, useMemo, useState } from "../../lib.js";
import { get } from "../../api.js";
import { to } from "../../router.js";
import { count } from "../../format.js";
import { useAction } from "../../ui/confirm.js";
import { indented } from "../../ui/json.js";
import { Markdown } from "../../ui/markdown.js";
import { Badge, Button, Copy, Failure, When } from "../../ui/parts.js";
import { placeOf } from "./place.js";

const LONG = { chars: 2_500, lines: 40, name: "" };
/** A summary must not push the message that it stands in front of out of the window. */
const TIGHT = { chars: 500, lines: 6, name: "tight" };
const KINDS = { model: ["", "by a model"], mechanical: ["warn", "without a model"], edited: ["kept", "edited"], part: ["", "a part, for checkpoints"] };

/** What was opened and closed, kept while rows come and go. @returns {[boolean, (isOpen: boolean) => void]} */
function useFold(folds, name, initial) {
  const [isOpen, setOpen] = useState(() => folds.get(name) ?? initial);
  const keep = (value) => {
    folds.set(name, value);
    setOpen(value);
  };
  return [isOpen, keep];
}

function Fold({ folds, name, initial = false, kind = "", summary, children }) {
  const [isOpen, setOpen] = useFold(folds, name, initial);
  return html`<details class="fold ${kind}" open=${isOpen} onToggle=${(event) => setOpen(event.target.open)}>
    <summary>${summary}</summary>
    ${isOpen && children}
  </details>`;
}

/** Text that is cut to a window of its own height until somebody wants all of it. */
function Long({ folds, name, text, limit = LONG, children }) {
  const [isOpen, setOpen] = useFold(folds, name, false);
  const isLong = text.length > limit.chars || text.split("\n", limit.lines + 1).length > limit.lines;
  if (!isLong) return children;
  return html`<div class="long ${limit.name} ${isOpen ? "open" : ""}">${children}</div>
    <${Button} small kind="plain" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>
      ${isOpen ? "Show less" : `Show all ${count(text.length)} characters`}
    <//>`;
}

/**
 * @param {object} props
 * @param {object} props.message  a row of the log
 * @param {string} props.conversation  its id
 * @param {Map<string, boolean>} props.folds
 * @param {string|null} props.callName  of a tool's result: which tool
 * @param {(what: "pin"|"unpin"|"delete"|"summary", message: object) => void} props.onAct
 */
export const Message = memo(function Message({ message, conversation, folds, isRaw, isFound, manages, callName, onAct }) {
  const { seq, role } = message;
  const isGone = message.deleted || message.erased;
  return html`<article class="message ${role} ${message.summary_id ? "summarized" : ""} ${isFound ? "found" : ""} ${isGone ? "gone" : ""}"
    aria-label="Message ${seq}, ${role}" aria-current=${isFound ? "true" : undefined}>
    <header>
      <strong class="role">${role}</strong>
      ${callName && html`<code class="small break">${callName}</code>`}
      <span class="small soft number"><a class="seq" href=${to(["conversations", conversation, "log"], { seq })}>#${seq}</a> · turn ${message.turn}</span>
      <span class="small soft"><${When} at=${message.created_at} /></span>
      <span class="small soft number">${count(message.tokens)} tokens</span>
      ${message.model && html`<span class="small soft break">${message.model}</span>`}
      <${Marks} message=${message} onAct=${onAct} />
      <${Actions} message=${message} conversation=${conversation} manages=${manages} onAct=${onAct} />
    </header>
    <${Body} message=${message} conversation=${conversation} folds=${folds} isRaw=${isRaw} isGone=${isGone} />
  </article>`;
});

function Marks({ message, onAct }) {
  const ended = message.finish_reason;
  return html`
    ${message.pinned && html`<${Badge} kind="kept" title="Always shown word for word">pinned<//>`}
    ${message.erased && html`<${Badge} kind="bad">erased<//>`}
    ${message.deleted && !message.erased && html`<${Badge} kind="bad">deleted<//>`}
    ${message.incomplete && html`<${Badge} kind="warn" title="The answer broke off">incomplete<//>`}
    ${ended && !["stop", "tool_calls"].includes(ended) && html`<${Badge} kind="warn">ended: ${ended}<//>`}
    ${message.summary_id &&
    html`<button type="button" class="badge folded as-button" title="Go to the summary that stands for it"
      aria-label=${`Message ${message.seq} is summarized: go to its summary`}
      onClick=${() => onAct("summary", message)}>summarized</button>`}
  `;
}

function Actions({ message, conversation, manages, onAct }) {
  const isGone = message.deleted || message.erased;
  const calls = message.tool_calls.map((call) => `${call.name}(${call.arguments})`);
  return html`<div class="message-actions">
    ${message.role === "assistant" && message.model &&
    html`<a class="button small plain seen-link" aria-label=${`What the model saw for message ${message.seq}`}
      href=${to(["conversations", conversation, "context"], { item: message.id })}>What the model saw</a>`}
    ${!isGone && html`<${Copy} name=${`Copy message ${message.seq}`} text=${[message.text, ...calls].filter(Boolean).join("\n\n")} />`}
    ${manages && !isGone &&
    html`<${Button} small kind="plain" aria-label=${`${message.pinned ? "Unpin" : "Pin"} message ${message.seq}`}
        onClick=${() => onAct(message.pinned ? "unpin" : "pin", message)}>${message.pinned ? "Unpin" : "Pin"}<//>
      <${Button} small kind="plain" aria-label=${`Delete message ${message.seq}…`} onClick=${() => onAct("delete", message)}>Delete…<//>`}
    ${manages && message.deleted && !message.erased &&
    html`<${Button} small kind="plain" aria-label=${`Erase message ${message.seq}…`} onClick=${() => onAct("delete", message)}>Erase…<//>`}
  </div>`;
}

function Body({ message, conversation, folds, isRaw, isGone }) {
  const name = (part) => `${message.id} ${part}`;
  return html`<${Fragment}>
    ${message.reasoning &&
    html`<${Fold} folds=${folds} name=${name("reasoning")} summary="Reasoning">
      <div class="text soft">${message.reasoning}</div>
    <//>`}
    ${message.text &&
    html`<${Long} folds=${folds} name=${name("text")} text=${message.text}><${Text} message=${message} isRaw=${isRaw} /><//>`}
    ${message.refusal && html`<p class="text"><${Badge} kind="warn">refused<//> ${message.refusal}</p>`}
    ${isGone && !message.text && html`<p class="soft"><em>${message.erased ? "Its words were overwritten." : "It is in no list and no prompt any more."}</em></p>`}
    ${message.tool_calls.map(
      (call, place) => html`<${Fold} folds=${folds} name=${name(`call ${place}`)} initial=${call.arguments.length < LONG.chars} kind="call"
        summary=${html`calls <code class="break">${call.name}</code>${call.id && html` <span class="small soft break">${call.id}</span>`}`}>
        <pre class="plain" tabindex="0">${indented(call.arguments) ?? call.arguments}</pre>
      <//>`,
    )}
    ${message.attachments.length > 0 &&
    html`<ul class="attachments small">${message.attachments.map(
      (one) => html`<li><${Badge}>${one.type}<//> <span class="break">${one.detail}</span></li>`,
    )}</ul>`}
    ${message.truncated && html`<${Whole} message=${message} conversation=${conversation} />`}
  <//>`;
}

function Text({ message, isRaw }) {
  const isTool = message.role === "tool" || message.role === "function";
  return useMemo(() => {
    const json = isRaw ? null : indented(message.text);
    if (json !== null) return html`<pre class="plain" tabindex="0">${json}</pre>`;
    if (isRaw || isTool) return html`<div class="text ${isTool ? "mono" : ""}">${message.text}</div>`;
    return html`<${Markdown} text=${message.text} />`;
  }, [message.text, isRaw]);
}

/** A log has the beginning of very long texts; the item has all of it. */
function Whole({ message, conversation }) {
  const [text, setText] = useState(null);
  const loading = useAction(() => get(placeOf(conversation, "items", message.id)), (item) => setText(wholeText(item)));
  if (text !== null) return html`<pre class="plain whole text" tabindex="0">${text}</pre>`;
  return html`<p class="row"><span class="small soft">Only its first 20,000 characters are shown.</span>
    <${Button} small onClick=${loading.run} disabled=${loading.busy}>Load all of it<//></p>
    <${Failure} error=${loading.error} />`;
}

function wholeText(item) {
  const parts = Array.isArray(item.content) ? item.content.map((part) => part.text).filter(Boolean) : [];
  return parts.join("\n\n") || item.arguments || item.input || (typeof item.output === "string" ? item.output : JSON.stringify(item, null, 2));
}

/** A summary where it stands in for messages: `summary` as the API tells it. */
export const Band = memo(function Band({ summary, conversation, folds, isRaw }) {
  const messages = summary.to_seq - summary.from_seq;
  const head = html`<strong>Summary of messages ${summary.from_seq}–${summary.to_seq - 1}</strong>
    <${SummaryFacts} summary=${summary} />`;
  return html`<aside class="band" aria-label="Summary of messages ${summary.from_seq} to ${summary.to_seq - 1}">
    <${Fold} folds=${folds} name=${summary.id} initial=${true} summary=${head}>
      <${Long} folds=${folds} name=${`${summary.id} text`} text=${summary.text} limit=${TIGHT}>
        ${isRaw ? html`<div class="text">${summary.text}</div>` : html`<${Markdown} text=${summary.text} />`}
      <//>
      <p class="small soft">Stands for the ${count(messages)} messages below it, turns through ${summary.through_turn}, whenever
        they have no room. <a href=${to(["conversations", conversation, "summaries"], { summary: summary.id })}>Revise it</a></p>
    <//>
  </aside>`;
});

export function SummaryFacts({ summary }) {
  const [kind, words] = KINDS[summary.kind] ?? ["", summary.kind];
  return html`<span class="facts small soft">
    <${Badge} kind=${kind}>${words}<//>
    ${summary.model && html`<span class="break">${summary.model}</span>`}
    <span class="number">${count(summary.tokens)} tokens</span>
    <span class="number">revision ${summary.revision}</span>
  </span>`;
}
