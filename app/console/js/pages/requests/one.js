// One request: in a sentence what took its time, its steps on one time axis, and the same as a table.
import { html } from "../../lib.js";
import { ROOT, get } from "../../api.js";
import { count, dollars, milliseconds, moment, nameTenant, percent } from "../../format.js";
import { useLoaded } from "../../load.js";
import { to } from "../../router.js";
import { Copy, Failure, Loading, Status } from "../../ui/parts.js";
import { NotShown } from "../operation/access.js";
import { Outcome, seenAt } from "./parts.js";
import { adviceOn, story } from "./story.js";
import { KINDS, SpentKey, kindOf, spentByKind } from "./time_spent.js";

const SETTING = html`<code>telemetry.recent_requests</code> above 0`;
/** A step shorter than this share of the axis is drawn this wide, so that it can be seen. */
const LEAST_SHARE = 0.4;
const NAMES = { read: "Read and parse", queue: "Wait for a free slot", join: "Wait for an equal request", resolve: "Find model and conversation", recall: "Search old messages", lease: "Wait for a lease", plan: "Plan the view", quotations: "Choose quotations", compaction: "Compact", summary: "Summary call", attempt: "Call of the provider", store: "Store", cache_lost: "The provider's cache was lost", first_byte: "First byte", end: "End" };
const TICKS = [0, 0.25, 0.5, 0.75, 1];

export function RequestPage({ id }) {
  const request = useLoaded((signal) => get(`v1/admin/requests/${encodeURIComponent(id)}`, {}, { signal }), [id]);
  const { data, error } = request;
  return html`
    <p class="small"><a href=${to(["requests"])}>← All requests</a></p>
    <div class="page-head"><h1 tabindex="-1">Request</h1>${data && html`<span class="page-facts small soft number">${moment(data.started_at)}</span>`}</div>
    ${error && !data && (error.code === "request_not_found" ? html`<${Failure} error=${error} />` : html`<${NotShown} error=${error} what="requests" setting=${error.code ? null : SETTING} retry=${request.reload} />`)}
    ${!data && !error && html`<${Loading}>Reading the request…<//>`}
    ${data && html`<${One} of=${data} />`}`;
}

function One({ of: request }) {
  const spent = spentByKind(request);
  return html`<div class="stack request-page">
    <p class="story" role="status">${story(request)}</p>
    <${Advice} of=${request} />
    <${Facts} of=${request} />
    <section class="panel"><header><h2>Where the time went</h2><span class="small soft number">${milliseconds(request.duration_ms)}</span></header>
      <${Axis} of=${request} />
      <${SpentKey} spent=${spent} />
    </section>
    <section class="panel list"><header><h2>Steps</h2></header><${Steps} of=${request} /></section>
  </div>`;
}

/** What to do about an error. */
function Advice({ of: request }) {
  const advice = adviceOn(request);
  if (!advice) return null;
  return html`<p class="advice">${advice.words}${advice.href && html` <a href=${advice.href}>${advice.link}</a>`}</p>`;
}

function Facts({ of: request }) {
  const isOther = request.answered_by && request.answered_by !== request.model;
  const rows = [
    ["Status", html`<${Outcome} of=${request} />`],
    ["Model", html`<span class="break">${request.model ?? "–"}${isOther && html` <span class="soft">answered by ${request.answered_by}</span>`}</span>`],
    ["Provider", html`${request.provider ?? "–"}${request.attempts > 1 && html` <span class="soft">${count(request.attempts)} calls</span>`}`],
    ["Endpoint", html`<code class="break">${request.endpoint}</code>${request.stream && html` <span class="soft">streamed</span>`}`],
    ["Context", request.context_status ? html`<${Status} of=${request.context_status} />` : "–"],
    ["Prompt", html`<span class="number">${count(request.prompt_tokens)} tokens${request.cached_tokens ? html`, <span class="soft">${percent(request.cached_tokens, request.prompt_tokens)} cached</span>` : ""}</span>`],
    ["Answer", html`<span class="number">${count(request.completion_tokens)} tokens</span>`],
    ["Cost", html`<span class="number">${dollars(request.cost_usd)}</span>`],
    ["Tenant", request.tenant ? html`<a href=${to(["requests"], { tenant: request.tenant })} title=${request.tenant}>${nameTenant(request)}</a>` : "–"],
    ["Key", request.key_id ? html`<a class="break" href=${to(["requests"], { key_id: request.key_id })} title=${request.key_id}>${request.key_name ?? request.key_id}</a>` : "–"],
    ["Conversation", request.conversation_id ? html`<a class="break" href=${seenAt(request)}>What the model saw</a> · <a href=${to(["conversations", request.conversation_id, "log"])}>Log</a>` : "–"],
    ["Id", html`<code class="break">${request.id}</code> <${Copy} text=${request.id} name="Copy the id" /> <${Copy} text=${new URL(`v1/admin/requests/${request.id}`, ROOT).href} label="Copy address" name="Copy the address of its JSON" />`],
  ];
  return html`<dl class="request-facts panel">${rows.map(([name, value]) => html`<div key=${name}><dt class="small soft">${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** The steps as bars over each other, on one axis. The table below has the same in numbers, so this is hidden from screen readers. */
function Axis({ of: { timeline, duration_ms: whole, first_byte_ms: firstByte } }) {
  const most = Math.max(whole ?? 0, ...timeline.map((step) => step.end_ms), 1);
  const at = (ms) => `${(100 * ms) / most}%`;
  const steps = timeline.filter((step) => !["first_byte", "end"].includes(step.name));
  return html`<div class="axis" aria-hidden="true">
    <div class="axis-ticks number small soft">${TICKS.map((share) => html`<span key=${share} style=${{ left: `${100 * share}%` }}>${milliseconds(most * share)}</span>`)}</div>
    <div class="axis-rows">
      ${steps.map((step, number) => html`<div class="axis-row" key=${number}>
        <span class="axis-name small">${NAMES[step.name] ?? step.name}</span>
        <span class="axis-track"><span class="axis-bar kind-${kindOf(step)}" title="${NAMES[step.name] ?? step.name}: ${milliseconds(step.end_ms - step.start_ms)}"
          style=${{ left: at(step.start_ms), width: `${Math.max(LEAST_SHARE, (100 * (step.end_ms - step.start_ms)) / most)}%` }}></span>
          ${firstByte !== null && html`<span class="axis-mark" style=${{ left: at(firstByte) }}></span>`}</span>
      </div>`)}
    </div>
    ${firstByte !== null && html`<p class="small soft axis-note">The line marks the first byte, after ${milliseconds(firstByte)}.</p>`}
  </div>`;
}

function Steps({ of: { timeline } }) {
  return html`<div class="scroll-x" tabindex="0" role="region" aria-label="Steps"><table class="data steps">
    <thead><tr><th scope="col">Step</th><th scope="col" class="number">Begins</th><th scope="col" class="number">Takes</th><th scope="col">Details</th></tr></thead>
    <tbody>${timeline.map((step, number) => html`<tr key=${number}>
      <th scope="row"><span class="spent-swatch kind-${kindOf(step)}" title=${KINDS[kindOf(step)]}></span>${NAMES[step.name] ?? step.name}</th>
      <td class="number">${milliseconds(step.start_ms)}</td>
      <td class="number">${step.end_ms > step.start_ms ? milliseconds(step.end_ms - step.start_ms) : ""}</td>
      <td class="break small">${Object.entries(step.detail).filter(([, value]) => value !== null).map(([name, value]) => html`<span class="detail" key=${name}><span class="soft">${name}</span> ${String(value)}</span> `)}</td>
    </tr>`)}</tbody></table></div>`;
}
