// Begins the console: asks the gateway who is looking, and shows the frame or the sign-in.
import { html, render, useEffect, useState } from "./lib.js";
import { actAsOperator, get, nameEndUserHeader } from "./api.js";
import { credentials, onSession } from "./session.js";
import { useLoaded } from "./load.js";
import { Bar } from "./frame/bar.js";
import { Frame } from "./frame/frame.js";
import { Failure, Loading } from "./ui/parts.js";
import { applyTheme } from "./ui/theme.js";
import { SignIn } from "./pages/sign_in.js";

function App() {
  const [round, setRound] = useState(0);
  useEffect(() => onSession(() => setRound((before) => before + 1)), []);
  const session = useLoaded(async (signal) => {
    actAsOperator(false);
    const told = await get("console/session", {}, { signal });
    actAsOperator(told.operator);
    nameEndUserHeader(told.end_user_header);
    return told;
  }, [round]);
  const { key, endUser } = credentials();
  const isRefused = [401, 403].includes(session.error?.status);
  if (isRefused || (session.error && session.data === null && (key || endUser))) return html`<${SignIn} error=${session.error} />`;
  if (session.data === null) {
    return html`<${Bar} />${session.error
      ? html`<main class="page stack"><h1>Concertina</h1><${Failure} error=${session.error} retry=${session.reload} /></main>`
      : html`<${Loading} />`}`;
  }
  return html`${session.error && html`<${Failure} error=${session.error} />`}<${Frame} key=${round} session=${session.data} />`;
}

applyTheme();
render(html`<${App} />`, document.getElementById("app"));
