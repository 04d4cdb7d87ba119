// Data that comes from the gateway, for components: loading, failed, or there.
import { useCallback, useEffect, useRef, useState } from "./lib.js";

/**
 * Load something whenever `deps` change. What was there stays visible while the next is on its way.
 * @param {(signal: AbortSignal) => Promise<any>} load
 * @returns {{data: any, error: Error|null, loading: boolean, reload: () => void}}
 */
export function useLoaded(load, deps) {
  const [state, setState] = useState({ data: null, error: null, loading: true });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const leaving = new AbortController();
    setState((before) => ({ ...before, loading: true }));
    load(leaving.signal).then(
      (data) => !leaving.signal.aborted && setState({ data, error: null, loading: false }),
      (error) => !leaving.signal.aborted && setState((before) => ({ data: before.data, error, loading: false })),
    );
    return () => leaving.abort();
  }, [...deps, round]);
  const reload = useCallback(() => setRound((before) => before + 1), []);
  return { ...state, reload };
}

/** Call `tick` every `seconds` while the page can be seen. */
export function useEvery(seconds, tick) {
  const newest = useRef(tick);
  newest.current = tick;
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && newest.current(), seconds * 1000);
    return () => clearInterval(timer);
  }, [seconds]);
}

/** `value`, once it has not changed for `ms` milliseconds. */
export function useSettled(value, ms = 250) {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}
