// How long something has been going on.
import { html, useEffect, useState } from "../lib.js";
import { duration } from "../format.js";

/** @param {{since: number}} props  milliseconds, as of `Date.now()` */
export function Elapsed({ since }) {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 250);
    return () => clearInterval(timer);
  }, []);
  const seconds = Math.max(0, (now - since) / 1000);
  return html`<span class="number soft" aria-hidden="true">${seconds < 60 ? `${seconds.toFixed(1)} s` : duration(seconds)}</span>`;
}
