// The state of a chat: what was said, the answer that is coming, and what can be done.
import { useCallback, useEffect, useRef, useState } from "../../lib.js";
import { to } from "../../router.js";
import { ask, nothingYet } from "./answering.js";
import { SHOWN, historyBefore, newest, preview, stretch } from "./stored.js";

const DRAW_MS = 80;
const SLOW_DRAW_MS = 300;
const SLOW_CHARS = 6000;
const STORED_AFTER_MS = [150, 600, 2000];

/**
 * @typedef {object} Said  a message that is shown
 * @property {string} key
 * @property {string} role
 * @property {string} text
 * @property {object} [row]  of the stored log
 * @property {object} [answer]  as it came
 * @property {"coming"|"whole"|"stopped"|"failed"} [state]
 * @property {Error} [error]
 */

/**
 * @param {string} asked  id of the conversation to go on with, or ""
 * @param {() => object} options  what the next request is made with
 */
export function useTalk(asked, options) {
  const [id, setId] = useState(asked);
  const [said, setSaid] = useState([]);
  const [context, setContext] = useState(null);
  const [error, setError] = useState(null);
  const [isLoading, setLoading] = useState(Boolean(asked));
  const [announced, announce] = useState("");
  const running = useRef(null);
  const current = useRef(asked);
  const [isBusy, setBusy] = useState(false);

  useEffect(() => {
    const leaving = new AbortController();
    if (asked) open(asked, leaving.signal);
    return () => {
      leaving.abort();
      running.current?.abort();
    };
  }, []);

  async function open(conversation, signal) {
    setLoading(true);
    setError(null);
    try {
      const found = await newest(conversation, signal);
      setSaid(found.messages.map(fromRow));
      setContext(found.context);
    } catch (failure) {
      if (failure.name !== "AbortError") setError(failure);
    }
    if (!signal.aborted) setLoading(false);
  }

  async function older() {
    const first = said.find((one) => one.row)?.row.seq ?? 0;
    const fromSeq = Math.max(0, first - SHOWN);
    const { data } = await stretch(current.current, fromSeq, first - fromSeq);
    setSaid((before) => [...data.map(fromRow), ...before]);
  }

  function moved(conversation) {
    if (!conversation || conversation === current.current) return;
    current.current = conversation;
    setId(conversation);
    history.replaceState(null, "", to(["chat", conversation]));
  }

  /** Ask, with `messages` behind what is stored or (`isHistory`) as the whole history. */
  async function request(messages, { isHistory = false } = {}) {
    const { model, policy, system, fields } = options();
    const stopper = new AbortController();
    running.current = stopper;
    setBusy(true);
    announce("");
    const key = `answer ${Date.now()}`;
    const draw = throttled((answer) => setSaid((before) => replaced(before, key, { answer: { ...answer }, text: answer.text })));
    let newestAnswer = nothingYet();
    setSaid((before) => [...before, { key, role: "assistant", text: "", answer: newestAnswer, state: "coming", model }]);
    const body = {
      model,
      messages: [...(system.trim() ? [{ role: "system", content: system.trim() }] : []), ...messages],
      stream: true,
      stream_options: { include_usage: true },
      ...fields,
    };
    const headers = { "X-Context-Mode": isHistory ? "resend" : "append", "X-Context-Events": "chunk", "X-Context-Detail": "full" };
    if (current.current && !isHistory) headers["X-Conversation-Id"] = current.current;
    if (policy) headers["X-Context-Policy"] = policy;
    let end;
    try {
      const answer = await ask(body, headers, stopper.signal, (so_far, isEvent) => {
        newestAnswer = so_far;
        moved(so_far.conversation);
        if (isEvent) announceCompaction(so_far.compaction);
        draw(so_far, isEvent);
      });
      end = { state: "whole" };
      setContext(answer.context ?? null);
      announce(`${model} answered: ${answer.text || answer.refusal || "a call of a tool"}`);
    } catch (failure) {
      const isStopped = failure.name === "AbortError";
      end = isStopped ? { state: "stopped" } : { state: "failed", error: failure };
      announce(isStopped ? "Stopped." : "");
    }
    draw.end();
    const shown = newestAnswer;
    setSaid((before) => replaced(before, key, { ...end, answer: { ...shown }, text: shown.text }));
    running.current = null;
    setBusy(false);
    if (current.current) await settle(end.state, shown);
  }

  const told = useRef("");
  function announceCompaction(compaction) {
    if (!compaction || told.current === compaction.type) return;
    told.current = compaction.type;
    if (compaction.type === "running") announce("Compacting: older turns are being summarized.");
    else announce(compaction.type === "failed" ? "The compaction failed; the answer goes on without." : "Compacted.");
  }

  /** Take over how the newest messages are stored, and where the next request would begin. */
  async function settle(state, answer) {
    told.current = "";
    let rows = [];
    for (const ms of state === "whole" ? [0] : STORED_AFTER_MS) {
      if (ms) await new Promise((wake) => setTimeout(wake, ms));
      try {
        const { total } = await stretch(current.current, 0, 1);
        const { data } = await stretch(current.current, Math.max(0, total - SHOWN), SHOWN);
        rows = data;
        const last = data.at(-1);
        setSaid((before) => (before.some((one) => one.state === "coming") ? before : settled(before, data)));
        if (state === "whole" || (last?.role === "assistant" && (!answer.text || answer.text.startsWith(last.text.slice(0, 40))))) break;
      } catch {
        return;
      }
    }
    if (state !== "whole") setContext(await preview(current.current, rows));
  }

  const send = useCallback((text) => {
    setSaid((before) => [...before.filter((one) => one.state !== "failed" || one.text), { key: `question ${Date.now()}`, role: "user", text }]);
    return request([{ role: "user", content: text }]);
  }, [options]);

  /** Have the last question answered once more: as a retry where there is no answer, else as a branch. */
  async function again() {
    const at = said.findLastIndex((one) => one.role === "user");
    if (at < 0) return;
    const question = said[at];
    const after = said[at + 1];
    const hasAnswer = Boolean(after && (after.row || after.text));
    if (!hasAnswer || !current.current) {
      setSaid((before) => before.slice(0, at + 1));
      await request([{ role: "user", content: question.text }]);
      return;
    }
    const messages = await historyTo(question).catch(() => null);
    if (messages === null) {
      setError(new Error("This answer cannot be asked for again: the conversation holds attachments, very long messages or erased ones."));
      return;
    }
    setSaid((before) => before.slice(0, at + 1));
    await request(messages, { isHistory: true });
  }

  /** All that was said up to a question, as a client would send it; null where that cannot be told. */
  async function historyTo(question) {
    if (question.row) return historyBefore(current.current, question.row.seq + 1);
    const { messages } = await newest(current.current);
    const row = messages.findLast((one) => one.role === "user" && one.text === question.text);
    return row ? historyBefore(current.current, row.seq + 1) : null;
  }

  const newestAgain = useRef(again);
  newestAgain.current = again;
  const askAgain = useCallback(() => newestAgain.current(), []);
  const stop = useCallback(() => running.current?.abort(), []);
  return { id, said, context, error, isLoading, isBusy, announced, send, stop, again: askAgain, older, reopen: () => open(current.current, new AbortController().signal) };
}

function fromRow(row) {
  return { key: row.id, role: row.role, text: row.text, row, state: row.incomplete ? "stopped" : "whole" };
}

function replaced(said, key, change) {
  return said.map((one) => (one.key === key ? { ...one, ...change } : one));
}

/** What is shown with what is stored of it: the last of the one belong to the last of the other, role by role. */
function settled(said, rows) {
  const known = new Set(said.flatMap((one) => (one.row ? [one.row.seq] : [])));
  const fresh = rows.filter((row) => !known.has(row.seq));
  return said.map((one) => {
    if (one.row || one.state === "failed") return one;
    const at = fresh.findIndex((row) => row.role === one.role && (row.role !== "user" || row.text === one.text));
    return at < 0 ? one : { ...one, row: fresh.splice(0, at + 1).at(-1) };
  });
}

/** Calls `draw` at most every so often, the longer the text the more rarely. */
function throttled(draw) {
  let timer = null;
  let newestAnswer = null;
  const flush = () => {
    timer = null;
    draw(newestAnswer);
  };
  const come = (answer, isNow) => {
    newestAnswer = answer;
    if (isNow) {
      clearTimeout(timer);
      flush();
    } else {
      timer ??= setTimeout(flush, answer.text.length > SLOW_CHARS ? SLOW_DRAW_MS : DRAW_MS);
    }
  };
  come.end = () => clearTimeout(timer);
  return come;
}
