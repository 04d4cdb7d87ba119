// The requests of the last minutes, and one of them as a timeline.
import { html } from "../lib.js";
import { RequestList } from "./requests/list.js";
import { RequestPage } from "./requests/one.js";

export function Requests({ route }) {
  const [, id] = route.parts;
  return id ? html`<${RequestPage} key=${id} id=${id} route=${route} />` : html`<${RequestList} route=${route} />`;
}
