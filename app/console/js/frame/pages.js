// The pages of the console: their names in the address, and who has a link to them.
import { Chat } from "../pages/chat.js";
import { Conversation } from "../pages/conversation/page.js";
import { Conversations } from "../pages/conversations.js";
import { Costs } from "../pages/costs.js";
import { Keys } from "../pages/keys.js";
import { Overview } from "../pages/overview.js";
import { Requests } from "../pages/requests.js";
import { Settings } from "../pages/settings.js";
import { isOperator } from "../session.js";

/** `operator`: only somebody who may see all tenants has a link to it. `scope`: only who has that scope. */
const PAGES = [
  { name: "conversations", text: "Conversations", view: ({ route }) => (route.parts.length > 1 ? Conversation : Conversations) },
  { name: "chat", text: "Chat", view: () => Chat },
  { name: "overview", text: "Overview", view: () => Overview },
  { name: "requests", text: "Requests", view: () => Requests, operator: true },
  { name: "costs", text: "Costs", view: () => Costs, scope: "read" },
  { name: "keys", text: "Keys", view: () => Keys, operator: true },
  { name: "settings", text: "Settings", view: () => Settings, operator: true },
];

/** The pages that somebody has links to. */
export const pagesOf = (session) => PAGES.filter((page) => (!page.operator || isOperator(session)) && (!page.scope || session.scopes.includes(page.scope)));

/** The page of an address, or undefined. */
export const findPage = (name) => PAGES.find((page) => page.name === name);
