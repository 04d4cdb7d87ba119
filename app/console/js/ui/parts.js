// Small parts that every page uses.
import { html, useEffect, useId, useRef, useState } from "../lib.js";
import { ago, count, moment } from "../format.js";

/** What became of a message: its family (which has the colour) and the word for it. */
export const DISPOSITIONS = {
  verbatim: ["verbatim", "verbatim"],
  anchor: ["kept", "anchor"],
  pinned: ["kept", "pinned"],
  told: ["kept", "instructions"],
  masked: ["trimmed", "masked"],
  truncated: ["trimmed", "truncated"],
  cleared: ["trimmed", "cleared"],
  summarized: ["folded", "summarized"],
  dropped: ["gone", "dropped"],
};

export function Disposition({ of }) {
  const [family, word] = DISPOSITIONS[of] ?? ["gone", of];
  return html`<span class="badge ${family}">${word}</span>`;
}

/** `kind`: "", "good", "warn" or "bad". */
export function Badge({ kind = "", title, children }) {
  return html`<span class="badge ${kind}" title=${title}>${children}</span>`;
}

/** How a client sends its conversation. Of one that is unknown there is nothing to say. */
export const MODES = { resend: "sends the whole history", append: "sends new messages only" };

const STATUS_KINDS = { full: "good", summarized: "folded", trimmed: "warn", bypassed: "warn", degraded: "bad" };

const STATUS_WORDS = {
  full: "The model saw everything word for word",
  summarized: "Summaries stand for some messages",
  trimmed: "Some messages were left out or shortened by rule",
  bypassed: "Not part of this conversation: nothing of it was kept",
  degraded: "The database was away: answered from what the client sent",
};

/** What `context_status` says. */
export function Status({ of }) {
  return html`<span class="badge ${STATUS_KINDS[of] ?? ""}" title=${STATUS_WORDS[of]}>${of}</span>`;
}

export function Button({ kind = "", small = false, children, ...rest }) {
  return html`<button type="button" class="button ${kind} ${small ? "small" : ""}" ...${rest}>${children}</button>`;
}

/** A labelled control: `children` is a function of the control's id. */
export function Field({ label, hint, children }) {
  const id = useId();
  return html`<div class="field">
    <label for=${id}><span>${label}</span></label>
    ${children(id, hint ? `${id}-hint` : undefined)}
    ${hint && html`<small id="${id}-hint">${hint}</small>`}
  </div>`;
}

/** An error as the gateway tells it: what happened, and what to change. */
export function Failure({ error, retry }) {
  if (!error) return null;
  return html`<div class="notice bad" role="alert">
    <p><strong>${error.message}</strong>${error.code && html` <code class="small">${error.code}</code>`}</p>
    ${error.hint && html`<p class="hint">${error.hint}</p>`}
    ${retry && html`<p><${Button} small onClick=${retry}>Try again<//></p>`}
  </div>`;
}

export function Loading({ children = "Loading…" }) {
  return html`<p class="empty" role="status"><span class="loading">${children}</span></p>`;
}

export function Empty({ children }) {
  return html`<div class="empty">${children}</div>`;
}

/** Something loaded by `useLoaded`, or why it is not there. `children` is a function of the data. */
export function Loaded({ from, children, waiting }) {
  if (from.data !== null) return html`${from.error && html`<${Failure} error=${from.error} />`}${children(from.data)}`;
  return from.error ? html`<${Failure} error=${from.error} retry=${from.reload} />` : html`<${Loading}>${waiting}<//>`;
}

/** `isShort`: in as few letters as there are, for tables. */
export function When({ at, isShort = false }) {
  if (!at) return html`<span class="soft">–</span>`;
  return html`<time datetime=${new Date(at * 1000).toISOString()} title=${moment(at)}>${ago(at, isShort)}</time>`;
}

/**
 * The context bar: `6,240 / 8,192 tokens`.
 * @param {{tokens: number, window: number, threshold?: number, label?: string}} props
 */
export function ContextBar({ tokens, window: size, threshold, label = "Context" }) {
  const part = size ? tokens / size : 0;
  const kind = threshold && tokens >= threshold ? (part > 0.95 ? "bad" : "warn") : "";
  const text = `${count(tokens)} / ${count(size)} tokens`;
  return html`<div class="context-bar">
    <div class="track" role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax=${size} aria-valuenow=${tokens}
      aria-valuetext=${text}>
      <div class="fill ${kind}" style=${{ width: `${Math.min(100, 100 * part)}%` }}></div>
      ${threshold && html`<div class="mark" style=${{ left: `${(100 * threshold) / size}%` }}></div>`}
    </div>
    <span class="number small">${text}</span>
  </div>`;
}

/**
 * Tabs are links: every view has an address.
 * @param {{label: string, tabs: {name: string, text: string, href: string}[], current: string}} props
 */
export function Tabs({ label, tabs, current }) {
  const element = useRef(null);
  useEffect(() => {
    const tab = element.current.querySelector("[aria-current]");
    if (tab) element.current.scrollLeft = tab.offsetLeft - element.current.offsetLeft;
  }, [current]);
  return html`<nav class="tabs" aria-label=${label} ref=${element}>
    ${tabs.map(
      (tab) => html`<a href=${tab.href} aria-current=${tab.name === current ? "page" : undefined}>${tab.text}</a>`,
    )}
  </nav>`;
}

const FIELDS = ".body :is(input:not([type=checkbox], [type=radio]), textarea)";

/**
 * A modal dialog: focus stays inside, Escape closes. It begins at the first field, or where nothing is to be written at
 * the first button below, which is the one that does nothing.
 */
export function Dialog({ title, onClose, footer, children }) {
  const element = useModal((dialog) => dialog.querySelector(FIELDS) ?? dialog.querySelector("footer button"));
  const id = useId();
  return html`<dialog class="dialog" ref=${element} aria-labelledby=${id}
    onCancel=${(event) => { event.preventDefault(); onClose(); }}>
    <header><h2 id=${id}>${title}</h2><${Button} kind="plain" aria-label="Close" onClick=${onClose}>✕<//></header>
    <div class="body stack">${children}</div>
    ${footer && html`<footer>${footer}</footer>`}
  </dialog>`;
}

/**
 * Open a `<dialog>` as long as its component is shown, and then give the focus back.
 * @param {(dialog: HTMLElement) => HTMLElement|null} findFirst  what gets the focus
 * @returns the reference for the dialog
 */
export function useModal(findFirst) {
  const element = useRef(null);
  useEffect(() => {
    const dialog = element.current;
    const openers = ancestorsOf(document.activeElement);
    dialog.showModal();
    findFirst(dialog)?.focus();
    return () => {
      dialog.close();
      giveBack(openers);
    };
  }, []);
  return element;
}

function ancestorsOf(element) {
  return element ? [element, ...ancestorsOf(element.parentElement)] : [];
}

/** Focus what had it. What opened a dialog may go with what was deleted in it: then what that was in. */
function giveBack(openers) {
  openers[0]?.focus?.();
  requestAnimationFrame(() => {
    if (document.activeElement !== document.body) return;
    openers.find((one) => one.isConnected && one !== document.body && (one.focus({ preventScroll: true }), document.activeElement === one));
  });
}

/** Copies `text`; says so. @param {{text: string, label?: string, name?: string}} props  `name`: what the button is called */
export function Copy({ text, label = "Copy", name }) {
  const [told, setTold] = useState(null);
  const copy = async ({ currentTarget }) => {
    setTold((await copied(text, currentTarget)) ? "Copied" : "Not allowed");
    setTimeout(() => setTold(null), 1500);
  };
  return html`<${Button} small kind="plain" aria-label=${name} onClick=${copy}><span aria-live="polite">${told ?? label}</span><//>`;
}

/** Browsers have no clipboard on pages that came over plain HTTP from another host; there a selection is copied. */
async function copied(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = Object.assign(document.createElement("textarea"), { value: text, className: "visually-hidden", ariaHidden: "true" });
    button.after(field);
    field.select();
    const isDone = document.execCommand("copy");
    field.remove();
    button.focus();
    return isDone;
  }
}
