// In words: why a request took its time, and what became of it.
import { milliseconds } from "../../format.js";
import { to } from "../../router.js";
import { isFailed } from "./time_spent.js";

/** Waits shorter than this are not worth a word. */
const WORTH_TELLING_MS = 5;
const ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth"];
const REASONS = { timeout: "did not answer in time", dropped: "broke off", unreachable: "could not be reached", rate_limited: "was over its rate limit", server_error: "failed", refused: "refused the request", interrupted: "was interrupted" };
const CLIENT_LEFT = "client_disconnected";

/** @param {object} request  of `GET /v1/admin/requests/{id}` @returns {string} one to four sentences */
export function story(request) {
  const { timeline, error, status } = request;
  const attempts = timeline.filter((step) => step.name === "attempt");
  const told = [...waits(request), ...attempts.map((step, at) => tellAttempt(step, at, attempts.length, request))];
  if (error === CLIENT_LEFT) told.push("The client left before the end of the answer");
  else if (!attempts.length && error) told.push(`The gateway refused it with ${status} ${error} and asked no model`);
  else if (error) told.push(`The client got ${status} ${error}`);
  else if (!attempts.length) told.push("No model was asked: the answer was there already");
  const sentences = told.map((one) => one[0].toUpperCase() + one.slice(1));
  return `${sentences.join(". ")}.`;
}

const OVERVIEW = { link: "How the providers do", href: to(["overview"]) };

/** What an operator can do about an error; null where there is nothing to say. @returns {{words: string, link?: string, href?: string}|null} */
export function adviceOn({ error, provider, key_id: key, conversation_id: conversation }) {
  const failed = { link: "Other requests that failed there", href: to(["requests"], { outcome: "error", provider }) };
  const advice = {
    upstream_unavailable: { words: `Nothing answers at the address of ${provider ?? "the provider"}, or it was too slow. A second deployment or a fallback of the model takes over in such a case.`, ...OVERVIEW },
    upstream_refused: { words: `${provider ?? "The provider"} answered with an error of its own; its status is above. The gateway called again as often as it may.`, ...failed },
    budget_exceeded: { words: "The key has spent its budget of this month.", link: "Change the budget", href: to(["keys"]) },
    rate_limit_exceeded: { words: "The key sent more than its rate limit allows.", link: "Its requests", href: to(["requests"], { key_id: key }) },
    context_length_exceeded: { words: "Instructions, tools, pins and the newest message alone do not fit into the window.", ...(conversation && { link: "What is pinned", href: to(["conversations", conversation, "summaries"]) }) },
    model_not_found: { words: "No configured model has this name.", link: "The configured models", href: to(["settings"], { q: "models." }) },
    invalid_api_key: { words: "The key is wrong, revoked or expired.", link: "All keys", href: to(["keys"]) },
  };
  return advice[error] ?? null;
}

function waits({ queue_ms: queue, compaction_ms: compaction, timeline }) {
  const told = [];
  if (queue >= WORTH_TELLING_MS) told.push(`waited ${milliseconds(queue)} for a free slot`);
  if (compaction >= WORTH_TELLING_MS || timeline.some((step) => step.name === "compaction")) {
    const calls = timeline.filter((step) => step.name === "summary").length;
    told.push(`waited ${milliseconds(compaction)} for ${calls > 1 ? `${calls} summaries` : "a summary"}, because the history was longer than the compaction threshold`);
  }
  for (const step of timeline) {
    if (step.name === "lease" && step.end_ms - step.start_ms >= WORTH_TELLING_MS) told.push(`waited ${milliseconds(step.end_ms - step.start_ms)} for another request of the conversation`);
  }
  return told;
}

function tellAttempt({ detail, start_ms: start, end_ms: end }, at, all, { first_byte_ms: firstByte, stream }) {
  const who = all > 1 ? `the ${ORDINALS[at] ?? `${at + 1}th`} call, ${detail.provider},` : detail.provider ?? "the provider";
  if (isFailed(detail)) {
    const how = detail.status ? `answered ${detail.status}` : (REASONS[detail.error] ?? `failed (${detail.error})`);
    return `${who} ${how} after ${milliseconds(end - start)}`;
  }
  const isLast = at === all - 1;
  if (isLast && stream && firstByte !== null && firstByte > start) return `${who} began to answer after ${milliseconds(firstByte - start)} and ended after ${milliseconds(end - start)}`;
  return `${who} answered after ${milliseconds(end - start)}`;
}
