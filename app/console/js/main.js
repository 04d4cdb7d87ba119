// The frame: who is looking, where they are, and the page that belongs there.
import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./lib.js";
import { get, nameEndUserHeader } from "./api.js";
import { onSession, signOut, credentials } from "./session.js";
import { to, useRoute } from "./router.js";
import { useLoaded } from "./load.js";
import { Badge, Button, Failure, Loaded } from "./ui/parts.js";
import { Theme } from "./ui/theme.js";
import { SignIn } from "./pages/sign_in.js";
import { Conversations } from "./pages/conversations.js";
import { Conversation } from "./pages/conversation/page.js";
import { Chat } from "./pages/chat.js";
import { Overview } from "./pages/overview.js";

const PAGES = [
  { name: "conversations", text: "Conversations", title: "Conversations" },
  { name: "chat", text: "Chat", title: "Chat" },
  { name: "overview", text: "Overview", title: "Overview" },
];

function App() {
  const [round, setRound] = useState(0);
  useEffect(() => onSession(() => setRound((before) => before + 1)), []);
  const session = useLoaded(async (signal) => {
    const told = await get("console/session", {}, { signal });
    nameEndUserHeader(told.end_user_header);
    return told;
  }, [round]);
  const { key, endUser } = credentials();
  const isRefused = [401, 403].includes(session.error?.status);
  if (isRefused || (session.error && session.data === null && (key || endUser))) return html`<${SignIn} error=${session.error} />`;
  if (session.error && session.data === null) {
    return html`<main class="page stack"><h1>Concertina</h1><${Failure} error=${session.error} retry=${session.reload} /></main>`;
  }
  return html`<${Loaded} from=${session}>${(told) => html`<${Frame} key=${round} session=${told} />`}<//>`;
}

function Frame({ session }) {
  const route = useRoute();
  const [name = "conversations"] = route.parts;
  const main = useRef(null);
  const isFirst = useRef(true);
  const page = PAGES.find((one) => one.name === name);
  const place = route.parts.join("/");
  useEffect(() => {
    document.title = `${page?.title ?? "Not found"} · Concertina`;
    if (isFirst.current) isFirst.current = false;
    else if (!document.activeElement?.closest(".tabs")) main.current?.querySelector("h1")?.focus();
  }, [place]);
  return html`
    <a class="skip-link" href="#main" onClick=${(event) => { event.preventDefault(); main.current?.focus(); }}>
      Skip to content
    </a>
    <header class="bar">
      <a class="brand" href="#/conversations"><img src="icon.svg" alt="" />Concertina</a>
      <nav aria-label="Pages">
        ${PAGES.map(
          (one) => html`<a href=${to([one.name])} aria-current=${one.name === name ? "page" : undefined}>${one.text}</a>`,
        )}
      </nav>
      ${session.simulated && html`<${Badge} kind="warn" title="No provider is configured: answers are made up">Simulated model<//>`}
      <span class="version soft small">${session.version}</span>
      <${Theme} />
      <${Who} session=${session} />
    </header>
    <main id="main" class="page" tabindex="-1" ref=${main}><${Page} route=${route} name=${name} session=${session} /></main>
  `;
}

function Page({ route, name, session }) {
  const [error, forget] = useErrorBoundary();
  if (error) return html`<${Failure} error=${error} retry=${forget} />`;
  if (name === "conversations" && route.parts.length > 1) return html`<${Conversation} key=${route.parts[1]} route=${route} session=${session} />`;
  if (name === "conversations") return html`<${Conversations} route=${route} session=${session} />`;
  if (name === "chat") return html`<${Chat} key=${route.parts[1] ?? ""} route=${route} session=${session} />`;
  if (name === "overview") return html`<${Overview} session=${session} />`;
  return html`<h1 tabindex="-1">There is no such page</h1><p><a href="#/conversations">To the conversations</a></p>`;
}

/** Whose conversations these are, and the way to look as somebody else. */
function Who({ session }) {
  const [isOpen, setOpen] = useState(false);
  const { key, endUser } = credentials();
  const shown = key ? `key …${key.slice(-4)}` : "no key";
  return html`
    <span class="who small soft">${shown}${endUser && html` · ${endUser}`}</span>
    <${Button} small onClick=${() => setOpen(true)}>Change key<//>
    ${key && html`<${Button} small kind="plain" onClick=${signOut}>Sign out<//>`}
    ${isOpen && html`<${SignIn} session=${session} onClose=${() => setOpen(false)} />`}
  `;
}

render(html`<${App} />`, document.getElementById("app"));
