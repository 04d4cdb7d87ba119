// The bar at the top: one line at any width, and it stays while the page scrolls.
import { html } from "../lib.js";
import { to } from "../router.js";
import { credentials, isOperator, signOut } from "../session.js";
import { ICONS } from "../ui/icons.js";
import { Menu } from "../ui/menu.js";
import { Badge } from "../ui/parts.js";
import { Theme } from "../ui/theme.js";
import { pagesOf } from "./pages.js";

export const PALETTE_KEYS = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘K" : "Ctrl K";
const SIMULATED = "No provider is configured: answers are made up";

/** Also without a session, so that nothing moves once it is there. */
export function Bar({ session, current, onPalette, onKeyboard, onChangeKey }) {
  return html`<header class="bar">
    ${session && html`<${Menu} kind="menu-pages" label="Menu" face=${ICONS.menu}>${() => html`<nav aria-label="Pages"><${Links} session=${session} current=${current} /></nav>`}<//>`}
    <a class="brand" href="#/conversations"><img src="icon.svg" alt="" width="24" height="24" />Concertina</a>
    ${session && html`
      <nav class="bar-pages" aria-label="Pages"><${Links} session=${session} current=${current} /></nav>
      ${session.simulated && html`<${Simulated} session=${session} />`}
      <button type="button" class="bar-button palette-opener" aria-label="Search and commands" aria-keyshortcuts="Control+K Meta+K" onClick=${onPalette}>
        ${ICONS.search}<span class="palette-words">Search or do…</span><kbd>${PALETTE_KEYS}</kbd></button>
      <${Account} session=${session} onKeyboard=${onKeyboard} onChangeKey=${onChangeKey} />
    `}
  </header>`;
}

/** What it means, and for who may see them the settings, where it says how to change it. */
function Simulated({ session }) {
  const badge = html`<${Badge} kind="warn" title=${SIMULATED}>Simulated model<//>`;
  return isOperator(session) ? html`<a class="bar-note" href=${to(["settings"])}>${badge}</a>` : html`<span class="bar-note">${badge}</span>`;
}

function Links({ session, current }) {
  return pagesOf(session).map(
    (page) => html`<a key=${page.name} href=${to([page.name])} aria-current=${page.name === current ? "page" : undefined}>${page.text}</a>`,
  );
}

/** Who looks, as the bar says it. */
export function nameViewer(session) {
  const { key, endUser } = credentials();
  const name = session.operator ? "operator" : key ? `key …${key.slice(-4)}` : "no key";
  return endUser ? `${name} · ${endUser}` : name;
}

/** Whose conversations these are, and the way to look as somebody else. */
function Account({ session, onKeyboard, onChangeKey }) {
  const name = nameViewer(session);
  const { key } = credentials();
  return html`<${Menu} kind="menu-account" label=${`Account: ${name}`} face=${html`${ICONS.person}<span class="who">${name}</span>`}>${(close) => {
    const leading = (act) => () => { close(); act(); };
    return html`
      <p class="menu-facts"><strong class="break">${name}</strong>
        <span class="soft small">${describeViewer(session, key)}</span></p>
      <button type="button" class="menu-item" onClick=${leading(onChangeKey)}>Change key</button>
      ${key && html`<button type="button" class="menu-item" onClick=${signOut}>Sign out</button>`}
      <div class="menu-item still"><${Theme} /></div>
      <button type="button" class="menu-item" onClick=${leading(onKeyboard)}>Keyboard <kbd>?</kbd></button>
      <p class="menu-facts soft small">Concertina ${session.version}${session.simulated && html`<br />${SIMULATED}.`}</p>`;
  }}<//>`;
}

function describeViewer(session, key) {
  if (isOperator(session)) return "Sees all tenants and the operation of the gateway.";
  if (key) return "Sees what was said with this key.";
  return "Sees what was said without a key.";
}
