// The pages of a log that were fetched, by place. Pages that are scrolled past before they come are not waited for.
const PAGE_ROWS = 100;
const KEPT_PAGES = 40;
const CALM_MS = 80;

/**
 * @param {(fromSeq: number, limit: number, signal: AbortSignal) => Promise<{total: number, data: object[]}>} load
 * @param {() => void} onChange
 */
export class LogPages {
  constructor(load, onChange) {
    this.load = load;
    this.onChange = onChange;
    this.total = 0;
    this.error = null;
    this.pages = new Map();
    this.stale = new Set();
    this.running = new Map();
    this.wanted = [0, 0];
    this.wantedAt = -Infinity;
    this.timer = null;
  }

  /** A message, or null while it is not there. */
  at(seq) {
    return this.pages.get(Math.floor(seq / PAGE_ROWS))?.[seq % PAGE_ROWS] ?? null;
  }

  /** Which rows are to be there; whoever scrolls fast asks for many and gets those where they stop. */
  want(first, last) {
    this.wanted = [Math.floor(first / PAGE_ROWS), Math.floor(last / PAGE_ROWS)];
    const now = performance.now();
    const isCalm = now - this.wantedAt > CALM_MS;
    this.wantedAt = now;
    clearTimeout(this.timer);
    if (isCalm) this.fetch();
    else this.timer = setTimeout(() => this.fetch(), CALM_MS);
  }

  /** Fetch again what is shown; it stays until the new comes. */
  refresh() {
    this.pages.forEach((_, page) => this.stale.add(page));
    this.running.forEach((leaving) => leaving.abort());
    this.running.clear();
    this.error = null;
    this.fetch();
  }

  close() {
    clearTimeout(this.timer);
    this.running.forEach((leaving) => leaving.abort());
    this.onChange = () => {};
  }

  fetch() {
    const [first, last] = this.wanted;
    this.running.forEach((leaving, page) => (page < first - 1 || page > last + 1) && leaving.abort());
    for (let page = first; page <= last; page += 1) {
      const isThere = this.pages.has(page) && !this.stale.has(page);
      if (!isThere && !this.running.has(page)) this.fetchPage(page);
    }
  }

  async fetchPage(page) {
    const leaving = new AbortController();
    this.running.set(page, leaving);
    let told = null;
    try {
      told = await this.load(page * PAGE_ROWS, PAGE_ROWS, leaving.signal);
      this.error = null;
    } catch (error) {
      if (!leaving.signal.aborted) this.error = error;
    }
    if (this.running.get(page) === leaving) this.running.delete(page);
    if (leaving.signal.aborted) return;
    if (told !== null) this.keep(page, told);
    this.onChange();
  }

  keep(page, told) {
    this.total = told.total;
    this.pages.delete(page);
    this.pages.set(page, told.data);
    this.stale.delete(page);
    for (const old of this.pages.keys()) {
      if (this.pages.size <= KEPT_PAGES) break;
      if (old < this.wanted[0] || old > this.wanted[1]) this.pages.delete(old);
    }
  }
}
