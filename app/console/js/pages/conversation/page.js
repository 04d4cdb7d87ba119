// One conversation: its head, and the view that the address names.
import { html, useCallback, useEffect, useRef, useState } from "../../lib.js";
import { get } from "../../api.js";
import { useCommands } from "../../commands.js";
import { useEvery, useLoaded } from "../../load.js";
import { go, to } from "../../router.js";
import { Failure, Loading, Tabs } from "../../ui/parts.js";
import { Branches } from "./branches.js";
import { Head } from "./head.js";
import { Log } from "./log.js";
import { placeOf } from "./place.js";
import { Seen } from "./seen.js";
import { Summaries } from "./summaries.js";
import { Tokens } from "./tokens.js";

const LOOK_AGAIN_SECONDS = 10;
const VIEWS = [
  { name: "log", text: "Log", view: Log },
  { name: "context", text: "Context", view: Seen },
  { name: "tokens", text: "Tokens", view: Tokens },
  { name: "summaries", text: "Summaries", view: Summaries },
  { name: "branches", text: "Branches", view: Branches },
];

export function Conversation({ route, session }) {
  const [, named, asked = "log"] = route.parts;
  const record = useLoaded((signal) => get(placeOf(named), { "include[]": "title" }, { signal }), [named]);
  const [round, setRound] = useState(0);
  useEvery(LOOK_AGAIN_SECONDS, record.reload);
  useCommands(VIEWS.map(({ name, text }) => ({ text: `View: ${text}`, run: () => go(["conversations", named, name]) })));
  const changed = useCallback(() => {
    record.reload();
    setRound((before) => before + 1);
  }, []);
  const isAwaited = useRef(false);
  const isLoaded = record.data !== null;
  useEffect(() => {
    if (isLoaded && isAwaited.current) document.querySelector("h1")?.focus();
  }, [isLoaded]);
  if (!isLoaded) {
    return record.error
      ? html`<${Missing} named=${named} error=${record.error} retry=${record.reload} />`
      : html`<h1 class="visually-hidden" tabindex="-1" onFocus=${() => (isAwaited.current = true)}>Conversation</h1>
          <${Loading}>Loading the conversation…<//>`;
  }
  const { id } = record.data;
  const current = VIEWS.find((one) => one.name === asked) ?? VIEWS[0];
  const tabs = VIEWS.map(({ name, text }) => ({ name, text, href: to(["conversations", named, name]) }));
  return html`
    <${Head} record=${record.data} session=${session} round=${round} onChange=${changed} />
    ${record.error && html`<${Failure} error=${record.error} retry=${record.reload} />`}
    <${Tabs} label="Views of the conversation" tabs=${tabs} current=${current.name} />
    <${current.view} key=${current.name} id=${id} record=${record.data} route=${route} session=${session}
      round=${round} onChange=${changed} />
  `;
}

function Missing({ named, error, retry }) {
  if (error.status !== 404) {
    return html`<h1 tabindex="-1">Conversation</h1><${Failure} error=${error} retry=${retry} />`;
  }
  return html`<div class="page-head"><h1 tabindex="-1">There is no such conversation</h1></div>
    <div class="panel stack">
      <p>Nothing is known here under <code class="break">${named}</code>. It was deleted, or it belongs to another key or
        end user than the one you look with.</p>
      <p><a href="#/conversations">To the conversations</a></p>
    </div>`;
}
