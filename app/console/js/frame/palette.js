// The palette: pages, commands, conversations, models, keys, tenants and settings by a few letters, what an id names, and
// what was said anywhere.
import { drawnNow, html, useEffect, useId, useMemo, useRef, useState } from "../lib.js";
import { get } from "../api.js";
import { pageCommands } from "../commands.js";
import { useLoaded, useSettled } from "../load.js";
import { lookUp } from "../named.js";
import { readAllKeys } from "../pages/operation/keys.js";
import { nameTenant, shortId } from "../format.js";
import { go } from "../router.js";
import { credentials, isOperator, signOut } from "../session.js";
import { matchText } from "../ui/fuzzy.js";
import { useModal } from "../ui/parts.js";
import { THEMES, setTheme } from "../ui/theme.js";
import { pagesOf } from "./pages.js";

const RECENT = 50;
const SHOWN_UNASKED = 6;
const SHOWN = 8;
const MIN_SEARCH_CHARS = 3;
const SEARCH_SETTLE_MS = 200;
const FOUND = 6;
const THEME_NOTES = { system: "as the system says" };

/**
 * @typedef {object} Entry
 * @property {string} key
 * @property {string} text  what is matched and shown
 * @property {string} [note]  shown beside it, and matched as well
 * @property {string} [also]  matched, and not shown
 * @property {() => void} run
 */

export function Palette({ session, show, onClose }) {
  const dialog = useModal((element) => element.querySelector("input"));
  const [typed, setTyped] = useState("");
  const [chosen, setChosen] = useState(0);
  const id = useId();
  const groups = useEntries(session, show, typed.trim());
  const entries = groups.flatMap((group) => group.entries);
  const current = entries[Math.min(chosen, entries.length - 1)];
  const list = useRef(null);
  useEffect(() => {
    list.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" });
  }, [current?.key]);
  const run = (entry) => {
    drawnNow(onClose);
    entry.run();
  };
  const onKey = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: SHOWN, PageUp: -SHOWN }[event.key];
    if (step && entries.length) {
      event.preventDefault();
      const at = entries.indexOf(current);
      const isStep = Math.abs(step) === 1;
      setChosen(isStep ? (at + step + entries.length) % entries.length : Math.max(0, Math.min(entries.length - 1, at + step)));
    } else if (event.key === "Enter" && !event.isComposing && current) {
      event.preventDefault();
      run(current);
    }
  };
  return html`<dialog class="dialog palette" ref=${dialog} aria-label="Search and commands" onCancel=${(event) => { event.preventDefault(); onClose(); }}
    onClick=${(event) => event.target === dialog.current && onClose()}>
    <input class="palette-input" role="combobox" aria-label="Search and commands" aria-expanded="true" aria-autocomplete="list" aria-controls="${id}-list"
      aria-activedescendant=${current ? `${id}-${entries.indexOf(current)}` : undefined} autocomplete="off" spellcheck="false" placeholder="A page, a conversation, an id, a model, a command, words that were said"
      value=${typed} onInput=${(event) => { setTyped(event.target.value); setChosen(0); }} onKeyDown=${onKey} />
    <div class="palette-list" id="${id}-list" role="listbox" aria-label="Results" ref=${list}>
      ${groups.map((group) => html`<div role="group" key=${group.name} aria-label=${group.name}>
        <div class="palette-group" aria-hidden="true">${group.name}</div>
        ${group.entries.map((entry) => html`<div class="palette-entry" role="option" key=${entry.key} id="${id}-${entries.indexOf(entry)}" aria-selected=${entry === current}
          onPointerMove=${() => entry !== current && setChosen(entries.indexOf(entry))} onClick=${() => run(entry)}>
          <span class="palette-text">${withMarks(entry)}</span>${entry.note && html`<span class="palette-note">${entry.note}</span>`}
        </div>`)}
      </div>`)}
    </div>
    <p class="visually-hidden" role="status">${entries.length === 0 ? "Nothing found" : `${entries.length} results`}</p>
    ${entries.length === 0 && html`<p class="empty">Nothing is called like that.</p>`}
    <footer class="palette-foot small soft" aria-hidden="true"><span><kbd>↑</kbd> <kbd>↓</kbd> choose</span><span><kbd>Enter</kbd> open</span><span><kbd>Esc</kbd> close</span></footer>
  </dialog>`;
}

/** What the palette shows for `query`, by group: what an id names, then the group with the best match; what was said is last. */
function useEntries(session, show, query) {
  const recent = useLoaded((signal) => get("v1/conversations", { limit: RECENT, "include[]": "title" }, { signal }), []);
  const models = useLoaded((signal) => (session.scopes.includes("chat") ? get("v1/models", {}, { signal }) : null), []);
  const isAll = isOperator(session);
  const keys = useLoaded((signal) => (isAll ? readAllKeys(signal) : []), []);
  const settings = useLoaded(async (signal) => (isAll ? (await get("v1/admin/settings", {}, { signal })).data : []), []);
  const groups = useMemo(() => [
    { name: "This page", entries: pageCommands().map((command, index) => ({ key: `here${index}`, ...command })) },
    { name: "Pages", entries: pageEntries(session) },
    { name: "Conversations", entries: (recent.data?.data ?? []).map(conversationEntry) },
    { name: "Commands", entries: commandEntries(session, show) },
    { name: "Models", entries: (models.data?.data ?? []).map(modelEntry) },
    { name: "Keys", entries: (keys.data ?? []).map(keyEntry), isAsked: true },
    { name: "Tenants", entries: tenantEntries(keys.data ?? []), isAsked: true },
    { name: "Settings", entries: (settings.data ?? []).map(settingEntry), isAsked: true },
  ], [recent.data, models.data, keys.data, settings.data]);
  const settled = useSettled(query, SEARCH_SETTLE_MS);
  const said = useLoaded((signal) => searchMessages(settled, signal), [settled]);
  const named = useLoaded(async (signal) => (await lookUp(settled, session, signal)).map(namedEntry), [settled]);
  if (!query) return groups.filter((group) => !group.isAsked).map((group) => ({ ...group, entries: group.entries.slice(0, SHOWN_UNASKED) })).filter(isFilled);
  const matched = groups.map((group) => matchGroup(group, query)).filter(isFilled).sort((one, other) => other.score - one.score);
  const ids = { name: "By its id", entries: settled === query && named.data ? named.data : [] };
  return [...[ids].filter(isFilled), ...matched, { name: "Messages", entries: [...(settled === query && said.data ? said.data : []), searchEntry(query)] }];
}

const isFilled = (group) => group.entries.length > 0;

function matchGroup({ name, entries }, query) {
  const found = entries.flatMap((entry) => {
    const inText = matchText(query, entry.text);
    const match = inText ?? matchText(query, `${entry.text} ${entry.note ?? ""} ${entry.also ?? ""}`);
    return match ? [{ ...entry, score: match.score - (inText ? 0 : 1), places: inText?.places }] : [];
  });
  found.sort((one, other) => other.score - one.score);
  return { name, entries: found.slice(0, SHOWN), score: found[0]?.score ?? 0 };
}

async function searchMessages(words, signal) {
  if (words.length < MIN_SEARCH_CHARS) return [];
  const found = await get("v1/search", { q: words, limit: FOUND, "include[]": "title" }, { signal });
  return found.data.map((hit) => ({
    key: `said-${hit.id}`,
    text: hit.title ?? "Untitled",
    note: hit.text,
    run: () => go(["conversations", hit.conversation_id, "log"], { q: words, seq: hit.seq }),
  }));
}

const searchEntry = (query) => ({
  key: "search",
  text: `Search all conversations for “${query}”`,
  run: () => go(["conversations"], { q: query }),
});

function pageEntries(session) {
  return pagesOf(session).map((page) => ({ key: `page-${page.name}`, text: page.text, run: () => go([page.name]) }));
}

const conversationEntry = (record) => ({
  key: record.id,
  text: record.title ?? record.external_id ?? "Untitled",
  note: record.external_id ?? shortId(record.id),
  also: record.id,
  run: () => go(["conversations", record.id]),
});

const modelEntry = ({ id }) => ({ key: `model-${id}`, text: id, note: "begin a chat", run: () => go(["chat"], { model: id }) });

const namedEntry = ({ text, note, href }) => ({ key: href, text, note, run: () => (location.hash = href) });

const keyEntry = (key) => ({
  key: key.id,
  text: key.name,
  note: `key ${key.hint}: its requests`,
  also: key.id,
  run: () => go(["requests"], { key_id: key.id }),
});

/** Tenants that have keys. One that was made for a key has the name of its oldest key. */
function tenantEntries(keys) {
  const oldest = new Map([...keys].reverse().map((key) => [key.tenant, key]));
  return [...oldest].map(([tenant, { name }]) => ({
    key: `tenant-${tenant}`,
    text: nameTenant({ tenant, tenant_name: tenant.startsWith("ten_") ? name : null }),
    note: "tenant: its conversations",
    also: tenant,
    run: () => go(["conversations"], { tenant }),
  }));
}

const settingEntry = ({ path, value }) => ({
  key: `setting-${path}`,
  text: path,
  note: JSON.stringify(value) ?? "",
  run: () => go(["settings"], { q: path }),
});

function commandEntries(session, show) {
  const themes = Object.entries(THEMES).map(([theme, text]) => ({
    key: `theme-${theme}`, text: `Colours: ${text.toLowerCase()}`, note: THEME_NOTES[theme], run: () => setTheme(theme),
  }));
  return [
    session.scopes.includes("chat") && { key: "new-chat", text: "New chat", run: () => go(["chat"]) },
    { key: "change-key", text: "Change key", run: show.changeKey },
    credentials().key && { key: "sign-out", text: "Sign out", run: signOut },
    { key: "keyboard", text: "Keyboard help", note: "?", run: show.keyboard },
    ...themes,
  ].filter(Boolean);
}

/** The text with the matched letters marked. */
function withMarks({ text, places }) {
  if (!places?.size) return text;
  const parts = [];
  for (const [index, letter] of [...text.split("")].entries()) {
    const isMarked = places.has(index);
    if (parts.at(-1)?.isMarked === isMarked) parts.at(-1).text += letter;
    else parts.push({ text: letter, isMarked });
  }
  return parts.map((part) => (part.isMarked ? html`<mark>${part.text}</mark>` : part.text));
}
