// Who is looking: the credential of this tab. It is kept until the tab is closed, and sent to this gateway only.
const KEY = "concertina.key";
const END_USER = "concertina.end_user";
const listeners = new Set();

/** @returns {{key: string, endUser: string}} */
export function credentials() {
  return { key: sessionStorage.getItem(KEY) ?? "", endUser: sessionStorage.getItem(END_USER) ?? "" };
}

/** Whether somebody looks with a link that the gateway printed at a start, this one or an earlier one. */
export const hasLinkToken = () => credentials().key.startsWith("cop_");

/** @param {{key?: string, endUser?: string}} shown */
export function signIn({ key = "", endUser = "" }) {
  // Whatever else a page keeps here was the former key's.
  sessionStorage.clear();
  keep(KEY, key.trim());
  keep(END_USER, endUser.trim());
  listeners.forEach((tell) => tell());
}

export function signOut() {
  signIn({});
}

/** Call `tell` whenever somebody signs in or out. @returns what ends it */
export function onSession(tell) {
  listeners.add(tell);
  return () => listeners.delete(tell);
}

function keep(name, value) {
  if (value) sessionStorage.setItem(name, value);
}

/**
 * Sign in with the token of a link, `#token=…`, which the start line of the gateway prints. It leaves the address at
 * once, so that no bookmark and no history keeps it.
 */
function followLink() {
  const token = /^#token=(.+)$/.exec(location.hash)?.[1];
  if (!token) return;
  history.replaceState(null, "", `${location.pathname}${location.search}#/conversations`);
  signIn({ key: decodeURIComponent(token) });
}

followLink();
addEventListener("hashchange", followLink);

/** Whether somebody may see all tenants. @param {object} session  as the gateway tells it */
export const isOperator = (session) => Boolean(session.operator) || session.scopes.includes("admin");
