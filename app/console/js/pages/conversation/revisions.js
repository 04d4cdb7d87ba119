// All texts that a summary had, newest first, and what changed from each to the next.
import { html, useState } from "../../lib.js";
import { get } from "../../api.js";
import { useLoaded } from "../../load.js";
import { Diff } from "../../ui/diff.js";
import { Button, Loaded, When } from "../../ui/parts.js";
import { SummaryFacts } from "./message.js";
import { placeOf } from "./place.js";

export function Revisions({ id, summary, manages, onRollBack }) {
  const [isCompared, setCompared] = useState(true);
  const one = useLoaded((signal) => get(placeOf(id, "summaries", summary.id), {}, { signal }), [summary.id, summary.revision]);
  return html`<div class="revisions stack">
    <label class="row small"><input type="checkbox" checked=${isCompared} onChange=${(event) => setCompared(event.target.checked)} />
      Show what changed</label>
    <${Loaded} from=${one} waiting="Loading revisions…">${({ revisions }) => html`<ol reversed class="plain-list stack">
      ${revisions.toReversed().map((revision, place) => {
        const before = revisions[revisions.length - 2 - place];
        return html`<li key=${revision.revision} class="revision">
          <p class="row">
            <${SummaryFacts} summary=${revision} /><span class="small soft"><${When} at=${revision.created_at} /></span>
            ${manages && place > 0 && html`<${Button} small onClick=${() => onRollBack(revision.revision)}>Roll back to this<//>`}
          </p>
          ${isCompared && before ? html`<${Diff} before=${before.text} after=${revision.text} />` : html`<p class="text">${revision.text}</p>`}
        </li>`;
      })}
    </ol>`}<//>
  </div>`;
}
