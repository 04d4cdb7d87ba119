// What is left of budgets, and what a month will have cost if it goes on as it began.
import { html } from "../../lib.js";
import { dollars } from "../../format.js";
import { to } from "../../router.js";
import { Badge } from "../../ui/parts.js";

const DAY_MS = 86_400_000;
/** Of a budget: from here on the bar warns. */
const WARNS_ABOVE = 0.8;

export function Budgets({ keys }) {
  if (!keys.length) return html`<p class="soft small">No key has a budget. <a href=${to(["keys"])}>Make one with a budget</a> to limit what a team spends in a month.</p>`;
  return html`<section class="panel list"><header><h2>Budgets of this month</h2></header><ul class="plain-list budgets">${keys.map((key) => html`<${Budget} key=${key.id} of=${key} />`)}</ul></section>`;
}

/** @param {{of: {key_name: string|null, budget_usd: number|null, spent_usd: number}}} props */
export function OwnBudget({ of: { key_name: name, budget_usd: budget, spent_usd: spent } }) {
  if (budget === null) return html`<p class="soft small">${dollars(spent)} were spent this month${name && html` with the key <strong>${name}</strong>, which has no budget`}.</p>`;
  return html`<section class="panel list"><header><h2>Budget of this month</h2></header><ul class="plain-list budgets"><${Budget} of=${{ name, budget_usd: budget, spent_usd: spent }} /></ul></section>`;
}

function Budget({ of: { name, hint, budget_usd: budget, spent_usd: spent = 0 } }) {
  const part = budget ? spent / budget : 1;
  const expected = forecast(spent);
  const isTooMuch = expected !== null && expected > budget;
  return html`<li>
    <p class="facts"><strong class="break">${name}</strong>${hint && html`<code class="soft">${hint}</code>`}<span class="number">${dollars(spent)} <span class="soft">of ${dollars(budget)}</span></span>
      ${part >= 1 ? html`<${Badge} kind="bad">refused until next month<//>` : isTooMuch && html`<${Badge} kind="warn">will not last<//>`}</p>
    <div class="track" role="meter" aria-label="Spent by ${name}" aria-valuemin="0" aria-valuemax=${budget} aria-valuenow=${spent} aria-valuetext="${dollars(spent)} of ${dollars(budget)}">
      <div class="fill ${part >= 1 ? "bad" : part > WARNS_ABOVE ? "warn" : ""}" style=${{ width: `${Math.min(100, 100 * part)}%` }}></div>
      ${expected !== null && !isTooMuch && html`<span class="expected" style=${{ left: `${(100 * expected) / budget}%` }}></span>`}</div>
    <p class="small soft">${expected === null ? "A forecast needs the month’s first day." : `About ${dollars(expected)} at the end of the month, if it goes on like this.`}</p>
  </li>`;
}

/** What a month will have cost at the same pace; null on its first day. */
export function forecast(spent, now = new Date()) {
  const begin = Date.UTC(now.getUTCFullYear(), now.getUTCMonth(), 1);
  const elapsed = now - begin;
  return elapsed < DAY_MS ? null : (spent * (Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + 1, 1) - begin)) / elapsed;
}
