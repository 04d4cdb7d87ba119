// Where we are, in the fragment of the address: `#/conversations/conv_1/log?seq=40`.
import { useEffect, useState } from "./lib.js";

/** @returns {{parts: string[], query: URLSearchParams}} */
export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

/** Somebody may have typed the address: what is no encoding stands for itself. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** An address for `href`. @param {string[]} parts  @param {Record<string, any>} query */
export function to(parts, query = {}) {
  const known = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const asked = new URLSearchParams(known.map(([name, value]) => [name, String(value)])).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${asked ? `?${asked}` : ""}`;
}

/** Go somewhere; `replace` leaves no entry in the history (filters that change as one types). */
export function go(parts, query = {}, { replace = false } = {}) {
  const address = to(parts, query);
  if (replace) {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = address;
  }
}

export function useRoute() {
  const [route, setRoute] = useState(here);
  useEffect(() => {
    const follow = () => setRoute(here());
    addEventListener("hashchange", follow);
    follow(); // the address may have changed since the first drawing
    return () => removeEventListener("hashchange", follow);
  }, []);
  return route;
}
