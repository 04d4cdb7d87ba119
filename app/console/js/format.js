// Numbers, times and short texts for eyes.
const MAX_TENANT_NAME_CHARS = 20; // the digests that stand for a tenant are longer
const TENANT_CHARS = 6;
const ID_CHARS = 8;
const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const date = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short" });
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const narrow = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "narrow" });

/** 6,240 */
export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

/** 1 message, 6,240 messages */
export const countOf = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

/** 1.2M */
export const short = (value) => (value === null || value === undefined ? "–" : compact.format(value));

/** 71 % */
export const percent = (part, of) => (of ? `${Math.round((100 * part) / of)} %` : "–");

/** $0.0123 */
export function dollars(value) {
  if (value === null || value === undefined) return "–";
  return `$${value.toLocaleString("en", { maximumFractionDigits: value < 1 ? 4 : 2, minimumFractionDigits: 2 })}`;
}

/** 840 ms, 1.25 s, 3 min */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 2 : seconds < 60 ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

/** The same of milliseconds: <1 ms, 840 ms, 1.25 s */
export function milliseconds(value) {
  return value > 0 && value < 1 ? "<1 ms" : duration(typeof value === "number" ? value / 1000 : null);
}

/** A moment in full. @param {number} unixSeconds */
export const moment = (unixSeconds) => date.format(new Date(unixSeconds * 1000));

/** 5 minutes ago; with `isShort` 5min ago @param {number} unixSeconds */
export function ago(unixSeconds, isShort = false) {
  const seconds = unixSeconds - Date.now() / 1000;
  for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    if (Math.abs(seconds) >= size) return (isShort ? narrow : relative).format(Math.round(seconds / size), unit);
  }
  return "just now";
}

/** A tenant's name; of a digest the last characters, by which people tell tenants apart. */
export const shortTenant = (tenant) => (tenant.length > MAX_TENANT_NAME_CHARS ? `…${tenant.slice(-TENANT_CHARS)}` : tenant);

/** Whose something is: the tenant's name, or that of its oldest key; of an end user the application's, and which one. */
export function nameTenant({ tenant, tenant_name: name }) {
  const [application, endUser] = tenant.split("/");
  return `${name ?? shortTenant(application)}${endUser ? ` / ${shortTenant(endUser)}` : ""}`;
}

/** An id by its end: ids of one family begin alike. */
export const shortId = (id) => `…${id.slice(-ID_CHARS)}`;
