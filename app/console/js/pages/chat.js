// Talk to a model through the gateway and watch the context while it happens.
import { html, useCallback, useEffect, useLayoutEffect, useRef, useState } from "../lib.js";
import { get } from "../api.js";
import { useCommands } from "../commands.js";
import { useLoaded } from "../load.js";
import { go, here, to } from "../router.js";
import { count } from "../format.js";
import { Button, ContextBar, Empty, Failure, Field, Loading, Status } from "../ui/parts.js";
import { useAction } from "../ui/confirm.js";
import { useTalk } from "./chat/talk.js";
import { copyConversation, isOwn, placeOf } from "./conversation/place.js";
import { Said } from "./chat/words.js";

const MODEL = "concertina.model";
/** Its window can be filled in a minute. */
const SIMULATED_MODEL = "sim-8k";
const OTHER = "\u0000other";
const NEAR_END_PX = 60;
const SUGGESTIONS = [
  "The gate at Kestrel Yard opens at 06:40. When does it open?",
  "Write a short table of three ways to shorten a long text.",
];

/** The address follows the conversation without a new page; going elsewhere makes one. */
export function Chat({ route, session }) {
  const [round, setRound] = useState(0);
  const shown = useRef(route.parts[1] ?? "");
  useEffect(() => {
    const follow = () => {
      const { parts, query } = here();
      if (parts[0] !== "chat" || ((parts[1] ?? "") === shown.current && !query.has("model"))) return;
      shown.current = parts[1] ?? "";
      setRound((before) => before + 1);
    };
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  const onMoved = useCallback((id) => { shown.current = id; }, []);
  return html`<${Pane} key=${round} asked=${shown.current} model=${here().query.get("model")} session=${session} onMoved=${onMoved} />`;
}

function Pane({ asked, model, session, onMoved }) {
  const [wish, setWish] = useState(() => ({ model: model ?? sessionStorage.getItem(MODEL) ?? "", policy: "", system: "", temperature: "", maxTokens: "", summarize: "" }));
  const mayChat = session.scopes.includes("chat");
  const record = useLoaded(async (signal) => (asked && session.operator ? get(placeOf(asked), {}, { signal }) : null), []);
  const mayWrite = !asked || !session.operator || (record.data && isOwn(session, record.data));
  const models = useLoaded(async (signal) => (mayChat ? (await get("v1/models", {}, { signal })).data.map((one) => one.id) : []), []);
  const newestWish = useRef(wish);
  newestWish.current = wish;
  const options = useCallback(() => requestOptions(newestWish.current), []);
  const talk = useTalk(asked, options);
  const change = (part) => setWish((before) => ({ ...before, ...part }));
  useEffect(() => onMoved(talk.id), [talk.id]);
  useEffect(() => {
    const known = talk.said.findLast((one) => one.row?.model)?.row.model;
    const last = talk.context?.model ?? known;
    if (!wish.model && (last || (!asked && models.data?.length))) change({ model: last ?? firstModel(models.data, session) });
  }, [talk.context, talk.said.length > 0, models.data]);
  useEffect(() => { if (asked && talk.context?.model) change({ model: talk.context.model }); }, [talk.isLoading]);
  useEffect(() => { if (wish.model) sessionStorage.setItem(MODEL, wish.model); }, [wish.model]);
  useCommands([Boolean(talk.id) && { text: "Open the log of this chat", run: () => go(["conversations", talk.id]) }]);
  return html`<div class="chat">
    <div class="page-head chat-head">
      <h1 tabindex="-1">Chat</h1>
      ${talk.id && html`<a class="button small" href=${to(["conversations", talk.id])}>Open the conversation</a>`}
      <${Button} small onClick=${() => go(["chat"])} disabled=${!talk.id && !talk.said.length}>New chat<//>
    </div>
    ${mayChat && html`<${Options} wish=${wish} onChange=${change} models=${models} session=${session} />`}
    <${Context} context=${talk.context} said=${talk.said} />
    ${talk.error && html`<${Failure} error=${talk.error} retry=${talk.said.length ? null : talk.reopen} />`}
    <${Messages} talk=${talk} onSuggest=${mayChat && mayWrite && wish.model ? talk.send : null} />
    <p class="visually-hidden" role="status">${talk.announced}</p>
    ${record.data && !mayWrite ? html`<${Others} id=${asked} />` : mayChat
      ? html`<${Composer} isBusy=${talk.isBusy} isReady=${Boolean(wish.model) && Boolean(mayWrite) && !talk.isLoading} onSend=${talk.send} onStop=${talk.stop} />`
      : html`<div class="notice warn">This key may look but not chat: it lacks the scope <code>chat</code>.</div>`}
  </div>`;
}

/** In the place of the composer, where an operator looks at somebody's conversation. */
function Others({ id }) {
  const copying = useAction(() => copyConversation(id), (copy) => go(["chat", copy]));
  return html`<div class="notice warn row">
    <span class="grow">This conversation belongs to another tenant. What you try in a copy is stored in yours.</span>
    <${Button} kind="primary" onClick=${copying.run} disabled=${copying.busy}>Try in a copy<//>
    <${Failure} error=${copying.error} />
  </div>`;
}

const firstModel = (names, session) => (session.simulated && names.includes(SIMULATED_MODEL) ? SIMULATED_MODEL : names[0]);

/** What a request is made with, beside its messages. */
function requestOptions({ model, policy, system, temperature, maxTokens, summarize }) {
  const fields = {};
  if (temperature !== "" && !Number.isNaN(Number(temperature))) fields.temperature = Number(temperature);
  if (Number(maxTokens) > 0) fields.max_tokens = Number(maxTokens);
  if (summarize) fields.context = { summarize };
  return { model, policy, system, fields };
}

function Options({ wish, onChange, models, session }) {
  const names = models.data ?? [];
  const isOther = wish.model !== "" && !names.includes(wish.model);
  const [isTyping, setTyping] = useState(false);
  const pick = (value) => {
    setTyping(value === OTHER);
    onChange({ model: value === OTHER ? "" : value });
  };
  return html`<div class="panel chat-options">
    <div class="row">
      <label class="check">Model <select class="input small" aria-label="Model" value=${isTyping ? OTHER : wish.model} onChange=${(event) => pick(event.target.value)}>
        ${!wish.model && !isTyping && html`<option value="">choose…</option>`}
        ${isOther && !isTyping && html`<option value=${wish.model}>${wish.model}</option>`}
        ${names.map((name) => html`<option value=${name}>${name}</option>`)}
        <option value=${OTHER}>another…</option>
      </select></label>
      ${isTyping && html`<input class="input small" aria-label="Name of the model" spellcheck="false" autocomplete="off" value=${wish.model} onInput=${(event) => onChange({ model: event.target.value.trim() })} />`}
      <label class="check">Policy <select class="input small" aria-label="Policy" value=${wish.policy} onChange=${(event) => onChange({ policy: event.target.value })}>
        <option value="">default</option>
        ${(session.policies ?? []).map((name) => html`<option value=${name}>${name}</option>`)}
      </select></label>
    </div>
    ${models.error && html`<p class="small soft">The models cannot be listed: ${models.error.message}</p>`}
    <details class="small"><summary>Options</summary>
      <div class="chat-fields">
        <${Field} label="Instructions" hint="Sent as a system message with each request. Empty: those of before.">
          ${(id, hint) => html`<textarea id=${id} aria-describedby=${hint} class="input" rows="3" value=${wish.system} onInput=${(event) => onChange({ system: event.target.value })}></textarea>`}
        <//>
        <div class="row">
          <${Field} label="Temperature">${(id) => html`<input id=${id} class="input small" type="number" min="0" max="2" step="0.1" value=${wish.temperature} onInput=${(event) => onChange({ temperature: event.target.value })} />`}<//>
          <${Field} label="Most tokens of an answer">${(id) => html`<input id=${id} class="input small" type="number" min="1" step="1" value=${wish.maxTokens} onInput=${(event) => onChange({ maxTokens: event.target.value })} />`}<//>
          <${Field} label="Summarize">${(id) => html`<select id=${id} class="input small" value=${wish.summarize} onChange=${(event) => onChange({ summarize: event.target.value })}>
            <option value="">when it is needed</option><option value="now">before the next answer</option><option value="never">never, shorten instead</option>
          </select>`}<//>
        </div>
      </div>
    </details>
  </div>`;
}

/** How full the window is, by the newest answer. */
function Context({ context, said }) {
  if (!context) return null;
  const status = said.findLast((one) => one.answer?.status && one.state !== "coming")?.answer.status ?? context.status;
  return html`<div class="chat-context">
    <${ContextBar} tokens=${context.prompt_tokens} window=${context.window} threshold=${context.compacts_above ?? context.limit} />
    ${status && html`<${Status} of=${status} />`}
    <span class="small soft">${context.summaries?.length > 0 && `${count(context.summaries.length)} ${context.summaries.length === 1 ? "summary" : "summaries"}`}</span>
  </div>`;
}

/** What was said. It follows the newest words until somebody scrolls up. */
function Messages({ talk, onSuggest }) {
  const scroller = useRef(null);
  const follows = useRef(true);
  const followedTo = useRef(0);
  const [isAway, setAway] = useState(false);
  const toEnd = () => {
    const element = scroller.current;
    element.scrollTop = element.scrollHeight;
    followedTo.current = element.scrollTop;
  };
  // A busy browser tells of scrolling later than it scrolls: whoever has just scrolled up is left alone, too.
  const isFollowing = () => follows.current && scroller.current?.scrollTop >= followedTo.current;
  useLayoutEffect(() => { if (isFollowing()) toEnd(); }, [talk.said]);
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = scroller.current;
    follows.current = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    if (follows.current) followedTo.current = scrollTop;
    setAway(!follows.current);
  };
  const older = async () => {
    const element = scroller.current;
    const fromEnd = element.scrollHeight - element.scrollTop;
    follows.current = false;
    await talk.older();
    requestAnimationFrame(() => { element.scrollTop = element.scrollHeight - fromEnd; });
  };
  const first = talk.said.find((one) => one.row)?.row.seq ?? 0;
  return html`<div class="chat-scroll" ref=${scroller} onScroll=${onScroll} tabindex="0" role="region" aria-label="Messages" aria-busy=${talk.isBusy}>
    ${talk.isLoading && html`<${Loading}>Loading what was said…<//>`}
    ${!talk.isLoading && !talk.said.length && !talk.error && html`<${Welcome} onSuggest=${onSuggest} />`}
    ${first > 0 && html`<p class="row chat-older"><${Button} small onClick=${older}>Earlier messages<//><span class="small soft">${count(first)} before these</span></p>`}
    <ol class="chat-messages">
      ${talk.said.map((said, index) => html`<${Said} key=${said.key} said=${said} conversation=${talk.id} isBusy=${talk.isBusy && index === talk.said.length - 1}
        isLast=${index === talk.said.length - 1} onAgain=${talk.again} />`)}
    </ol>
    ${isAway && html`<p class="chat-newest"><${Button} small onClick=${toEnd}>↓ Newest<//></p>`}
  </div>`;
}

function Welcome({ onSuggest }) {
  return html`<${Empty}>
    <p>Say something. As the conversation grows, older turns are summarized; you see when, and what the model saw.</p>
    ${onSuggest && html`<p class="row chat-suggestions">${SUGGESTIONS.map((words) => html`<${Button} small onClick=${() => onSuggest(words)}>${words}<//>`)}</p>`}
  <//>`;
}

function Composer({ isBusy, isReady, onSend, onStop }) {
  const [text, setText] = useState("");
  const field = useRef(null);
  useEffect(() => field.current?.focus({ preventScroll: true }), []);
  useEffect(() => {
    if (!isBusy && document.activeElement === document.body) field.current?.focus({ preventScroll: true });
  }, [isBusy]);
  const canSend = isReady && !isBusy && text.trim() !== "";
  const submit = (event) => {
    event?.preventDefault();
    if (!canSend) return;
    onSend(text);
    setText("");
    field.current.focus();
  };
  const onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
    else if (event.key === "Escape" && isBusy) onStop();
  };
  return html`<form class="chat-composer" onSubmit=${submit}>
    <textarea ref=${field} class="input grow" rows=${Math.min(8, Math.max(2, text.split("\n").length))} aria-label="Message" placeholder="Enter sends, Shift + Enter begins a new line"
      value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${onKey}></textarea>
    ${isBusy
      ? html`<${Button} kind="danger" onClick=${onStop}>Stop<//>`
      : html`<${Button} kind="primary" type="submit" disabled=${!canSend}>Send<//>`}
  </form>`;
}
