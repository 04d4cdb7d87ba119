// Looking for words in one conversation: hits in the order of the log, one after the other.
import { html, useEffect, useRef, useState } from "../../lib.js";
import { get } from "../../api.js";
import { useLoaded, useSettled } from "../../load.js";
import { count } from "../../format.js";
import { Button } from "../../ui/parts.js";
import { placeOf } from "./place.js";

const MOST_HITS = 100;
const SETTLE_MS = 300;

/**
 * @param {{id: string, asked: string, at: number|null, onAsk: (words: string) => void, onGo: (seq: number) => void}} props
 *   `asked` as the address has it; `at` the message that is shown
 */
export function Find({ id, asked, at, onAsk, onGo }) {
  const [words, setWords] = useState(asked);
  const settled = useSettled(words.trim(), SETTLE_MS);
  const isFirst = useRef(true);
  const found = useLoaded(
    async (signal) => (settled ? get(placeOf(id, "search"), { q: settled, limit: MOST_HITS }, { signal }) : null),
    [id, settled],
  );
  useEffect(() => {
    if (!isFirst.current) onAsk(settled);
    isFirst.current = false;
  }, [settled]);
  const seqs = found.data && settled ? found.data.data.map((hit) => hit.seq).sort((a, b) => a - b) : [];
  const place = seqs.indexOf(at);
  const step = (by) => {
    if (seqs.length === 0) return;
    const next = by > 0 ? seqs.find((seq) => seq > (at ?? -1)) ?? seqs[0] : seqs.findLast((seq) => seq < (at ?? Infinity)) ?? seqs.at(-1);
    onGo(next);
  };
  const submit = (event) => {
    event.preventDefault();
    step(1);
  };
  const keys = (event) => {
    if (event.key !== "Enter" || !event.shiftKey) return;
    event.preventDefault();
    step(-1);
  };
  return html`<form class="row find" role="search" onSubmit=${submit}>
    <input class="input" type="search" aria-label="Find in this conversation" placeholder="Find in this conversation"
      value=${words} onInput=${(event) => setWords(event.target.value)} onKeyDown=${keys} />
    <${Button} small aria-label="Previous hit" disabled=${seqs.length === 0} onClick=${() => step(-1)}>↑<//>
    <${Button} small aria-label="Next hit" disabled=${seqs.length === 0} onClick=${() => step(1)}>↓<//>
    <span class="small soft number" role="status">${told(found, settled, seqs, place)}</span>
  </form>`;
}

function told(found, asked, seqs, place) {
  if (!asked) return "";
  if (found.error) return found.error.message;
  if (found.data === null) return "Searching…";
  if (seqs.length === 0) return found.data.terms.length === 0 ? "Only small words" : "Nothing found";
  const all = `${count(seqs.length)}${seqs.length === MOST_HITS ? " best" : ""}`;
  const part = found.data.complete ? "" : ", not all searched";
  return (place < 0 ? `${all} found` : `${place + 1} of ${all}`) + part;
}
