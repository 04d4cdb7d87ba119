// What a search in all conversations found: what an id names, and the best message of each conversation.
import { html, useEffect, useRef } from "../../lib.js";
import { get } from "../../api.js";
import { useLoaded } from "../../load.js";
import { lookUp } from "../../named.js";
import { to } from "../../router.js";
import { count } from "../../format.js";
import { marked } from "../../ui/marks.js";
import { Badge, Empty, Loaded, When } from "../../ui/parts.js";

const MOST = 20;
/** An id of the gateway or of its clients' protocols: nobody looks for its letters in messages. */
const OWN_ID = /^(req|chatcmpl|resp|msg|conv|sum)[_-]\w+$/;

export function Found({ words, tenant, session }) {
  const named = useLoaded((signal) => lookUp(words, session, signal), [words]);
  const found = useLoaded((signal) => get("v1/search", { q: words, limit: MOST, "include[]": "title" }, { signal, tenant }), [words, tenant]);
  const box = useRef(null);
  useEffect(() => {
    marked(box.current, words);
    return () => marked(null, "");
  });
  return html`<div ref=${box} class="stack">
    ${named.data?.length > 0 && html`<section class="panel list named" aria-label="By its id"><header><h2>By its id</h2></header><ul class="plain-list">${named.data.map(({ text, note, href }) => html`<li key=${href} class="facts">
      <a href=${href}>${text}</a><span class="small soft">${note}</span></li>`)}</ul></section>`}
    ${!(named.data?.length > 0 && OWN_ID.test(words)) && html`<${Loaded} from=${found} waiting="Searching…">${(told) => html`
      <p class="small soft" role="status">${summed(told)}</p>
      ${told.data.length === 0
        ? !named.data?.length && html`<${Empty}>No message has these words. Words are looked for, not meanings.<//>`
        : html`<ol class="plain-list stack found">${told.data.map(
            (hit) => html`<li key=${hit.id + hit.conversation_id} class="panel hit">
              <p class="row">
                <a class="break" href=${to(["conversations", hit.conversation_id, "log"], { q: words, seq: hit.seq })}>${hit.title ?? "Untitled"}</a>
                <code class="small soft break">${hit.conversation_id}</code>
              </p>
              <p class="break">${hit.text}</p>
              <p class="facts small soft"><${Badge}>${hit.role}<//><span class="number">#${hit.seq}</span><${When} at=${hit.created_at} /></p>
            </li>`,
          )}</ol>`}
    `}<//>`}
  </div>`;
}

function summed(told) {
  const number = told.data.length;
  const said = number === MOST ? `The ${MOST} best conversations` : `${count(number)} ${number === 1 ? "conversation" : "conversations"}`;
  const limits = [
    told.terms.length === 0 && "only small words, which are not looked for",
    !told.complete && "not all messages are searchable yet; search again in a moment",
  ].filter(Boolean);
  return [said, ...limits].join(" · ");
}
