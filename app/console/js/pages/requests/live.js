// The newest requests, asked for again and again. New ones wait while somebody reads.
import { useEffect, useReducer, useRef } from "../../lib.js";
import { get } from "../../api.js";
import { useEvery } from "../../load.js";
import { requestQuery } from "./filters.js";

const REFRESH_SECONDS = 3;
/** A request comes into the list when it ends, and stands where it began: so all of a page are read again. More rows take longer to draw than to read. */
const PAGE = 50;
/** The page would become slow with more rows. */
const MOST_ROWS = 1000;
const NOTHING = { known: [], shown: null, hasMore: false, error: null, isStale: true, isLoadingMore: false };

/**
 * @param {Record<string, string>} query  the filters, as the address has them
 * @param {boolean} isPaused
 * @param {() => boolean} isRead  whether somebody reads the list, so that no row may move
 * @returns `rows` is null before the first answer; `waiting` is how many new rows are not shown yet
 */
export function useLiveRequests(query, isPaused, isRead) {
  const asked = JSON.stringify(query);
  const state = useRef(NOTHING);
  const running = useRef(null);
  const [, draw] = useReducer((before) => before + 1, 0);
  const change = (changed) => {
    state.current = { ...state.current, ...changed };
    draw();
  };
  const ask = async (after, take) => {
    running.current?.abort();
    const leaving = new AbortController();
    running.current = leaving;
    try {
      const page = await get("v1/admin/requests", { ...requestQuery(JSON.parse(asked)), limit: PAGE, after }, { signal: leaving.signal });
      if (!leaving.signal.aborted) change({ ...take(page), error: null });
    } catch (error) {
      if (!leaving.signal.aborted) change({ error, isLoadingMore: false });
    } finally {
      if (running.current === leaving) running.current = null;
    }
  };
  const reload = () => ask(null, (page) => {
    const { known, shown, hasMore, isStale } = state.current;
    const next = joinNewest(page, isStale ? [] : known, hasMore);
    return { ...next, shown: !isStale && isRead() ? shown : next.known, isStale: false };
  });
  const more = () => {
    change({ isLoadingMore: true });
    return ask(state.current.known.at(-1).id, (page) => {
      const known = [...state.current.known, ...page.data];
      return { known, shown: known, hasMore: page.has_more && known.length < MOST_ROWS, isLoadingMore: false };
    });
  };
  useEffect(() => {
    change({ isStale: true });
    reload();
    return () => running.current?.abort();
  }, [asked]);
  useEvery(REFRESH_SECONDS, () => !isPaused && running.current === null && reload());
  const { known, shown, hasMore, error, isStale, isLoadingMore } = state.current;
  return {
    rows: shown, hasMore, error, isStale, isLoadingMore, more, reload,
    waiting: isStale || shown === known ? 0 : countMissing(known, shown),
    showNew: () => change({ shown: known }),
  };
}

function countMissing(rows, shown) {
  const ids = new Set(shown.map((row) => row.id));
  return rows.filter((row) => !ids.has(row.id)).length;
}

/**
 * The rows of the newest page before those that were known already. Rows that are the same stay the same objects.
 * @returns {{known: object[], hasMore: boolean}}
 */
function joinNewest(page, known, hadMore) {
  const before = new Map(known.map((row) => [row.id, row]));
  const rows = page.data.map((row) => before.get(row.id) ?? row);
  if (!page.has_more) return { known: rows, hasMore: false };
  // No row in common: there are requests in between that nobody has read.
  if (!rows.some((row) => before.has(row.id))) return { known: rows, hasMore: true };
  const inPage = new Set(page.data.map((row) => row.id));
  const older = known.filter((row) => !inPage.has(row.id) && row.started_at <= rows.at(-1).started_at);
  return { known: [...rows, ...older].slice(0, MOST_ROWS), hasMore: older.length ? hadMore : true };
}
