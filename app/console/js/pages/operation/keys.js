// All keys of the gateway by their names, for pages that filter by them.
import { html } from "../../lib.js";
import { get } from "../../api.js";
import { useLoaded } from "../../load.js";

const MOST = 100;

/** @param {AbortSignal} signal  @returns {Promise<object[]>} oldest first */
export async function readAllKeys(signal) {
  const found = [];
  for (;;) {
    const page = await get("v1/admin/keys", { limit: MOST, after: found.at(-1)?.id }, { signal });
    found.push(...page.data);
    if (!page.has_more) return found;
  }
}

/** A choice of one key, or of none. The other properties are those of a Choice. */
export function KeyChoice({ value, ...rest }) {
  const keys = useLoaded(readAllKeys, []);
  return html`<${Choice} value=${value} choices=${keyChoices(keys.data ?? [], value)} ...${rest} />`;
}

/** Keys by their names; of two with one name the characters that end the key tell them apart. */
function keyChoices(keys, chosen) {
  const isShared = (key) => keys.some((other) => other !== key && other.name === key.name);
  const choices = keys.map((key) => [key.id, isShared(key) ? `${key.name} (${key.hint})` : key.name]);
  const isUnknown = chosen && !keys.some((key) => key.id === chosen);
  return [["", "any key"], ...choices, ...(isUnknown ? [[chosen, chosen]] : [])];
}

/**
 * One of several values; the first stands for no filter.
 * @param {{value: string, choices: [string, string][], onChoose: (value: string) => void}} props
 */
export function Choice({ value, choices, onChoose, ...rest }) {
  return html`<select class="input" data-set=${value ? "" : undefined} value=${value} onChange=${(event) => onChoose(event.target.value)} ...${rest}>
    ${choices.map(([one, text]) => html`<option key=${one} value=${one}>${text}</option>`)}</select>`;
}

/** What `context_status` may be, as choices. */
export const CONTEXT_CHOICES = ["", "full", "summarized", "trimmed", "bypassed", "degraded"].map((one) => [one, one || "any context"]);
