// The summaries of a conversation, all pages of them.
import { get } from "../../api.js";
import { placeOf } from "./place.js";

const PAGE = 100;
const MOST_PAGES = 20;

/** @param {{all?: boolean, signal?: AbortSignal}} options  `all`: also those that no view is made of any more */
export async function allSummaries(id, { all = false, signal } = {}) {
  const found = [];
  let after = null;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const told = await get(placeOf(id, "summaries"), { limit: PAGE, after, all: all || null }, { signal });
    found.push(...told.data);
    if (!told.has_more) break;
    after = told.last_id;
  }
  return found;
}
