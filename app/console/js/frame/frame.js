// The frame around a page: the bar, the palette, the keyboard help.
import { html, useEffect, useErrorBoundary, useRef, useState } from "../lib.js";
import { useRoute } from "../router.js";
import { SignIn } from "../pages/sign_in.js";
import { Failure } from "../ui/parts.js";
import { Bar } from "./bar.js";
import { KeyboardHelp } from "./keyboard_help.js";
import { Palette } from "./palette.js";
import { findPage } from "./pages.js";

const TYPING = "input, textarea, select, [contenteditable]";

export function Frame({ session }) {
  const route = useRoute();
  const [name = "conversations"] = route.parts;
  const [open, setOpen] = useState(null);
  const main = useRef(null);
  const isFirst = useRef(true);
  const place = route.parts.join("/");
  const close = () => setOpen(null);
  const show = { palette: () => setOpen("palette"), keyboard: () => setOpen("keyboard"), changeKey: () => setOpen("key") };
  useEffect(() => {
    document.title = `${findPage(name)?.text ?? "Not found"} · Concertina`;
    if (isFirst.current) isFirst.current = false;
    else if (!document.activeElement?.closest(".tabs")) main.current?.querySelector("h1")?.focus();
  }, [place]);
  useShortcuts(show);
  return html`
    <a class="skip-link" href="#main" onClick=${(event) => { event.preventDefault(); main.current?.focus(); }}>
      Skip to content
    </a>
    <${Bar} session=${session} current=${name} onPalette=${show.palette} onKeyboard=${show.keyboard} onChangeKey=${show.changeKey} />
    <main id="main" class="page" tabindex="-1" ref=${main}><${Page} key=${name} route=${route} name=${name} session=${session} /></main>
    ${open === "palette" && html`<${Palette} session=${session} show=${show} onClose=${close} />`}
    ${open === "keyboard" && html`<${KeyboardHelp} onClose=${close} />`}
    ${open === "key" && html`<${SignIn} session=${session} onClose=${close} />`}
  `;
}

/** Ctrl or Cmd with K opens the palette, `?` the help; neither while another dialog is open. */
function useShortcuts(show) {
  const newest = useRef(show);
  newest.current = show;
  useEffect(() => {
    const follow = (event) => {
      if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
      if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey) {
        event.preventDefault();
        newest.current.palette();
      } else if (event.key === "?" && !event.ctrlKey && !event.metaKey && !event.target.closest?.(TYPING)) {
        newest.current.keyboard();
      }
    };
    addEventListener("keydown", follow);
    return () => removeEventListener("keydown", follow);
  }, []);
}

function Page({ route, name, session }) {
  const [error, forget] = useErrorBoundary();
  if (error) return html`<${Failure} error=${error} retry=${forget} />`;
  const page = findPage(name);
  if (!page) return html`<h1 tabindex="-1">There is no such page</h1><p><a href="#/conversations">To the conversations</a></p>`;
  const View = page.view({ route });
  return html`<${View} key=${`${name}/${route.parts[1] ?? ""}`} route=${route} session=${session} />`;
}
