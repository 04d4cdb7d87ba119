// What to do where nothing was said yet: point a client here.
import { html } from "../../lib.js";
import { ROOT } from "../../api.js";
import { Copy } from "../../ui/parts.js";

export function FirstSteps({ session }) {
  const base = new URL("v1", ROOT).href;
  const key = session.auth_mode === "keys" ? "sk-… (a key of this gateway)" : "sk-anything";
  const shell = `curl ${base}/chat/completions \\
  -H 'Content-Type: application/json' -H 'X-Conversation-Id: my-first' \\
  -H 'Authorization: Bearer ${key}' \\
  -d '{"model": "${session.simulated ? "sim-8k" : "gpt-4o-mini"}", "messages": [{"role": "user", "content": "Hello"}]}'`;
  const python = `from openai import OpenAI

client = OpenAI(base_url="${base}", api_key="${key}")`;
  return html`<section class="panel stack first-steps" aria-label="First steps">
    <h2>Nothing was said here yet</h2>
    <p>Any client of the OpenAI API works: give it this address, and what it says is kept and shown here.</p>
    <p class="row"><code class="break">${base}</code><${Copy} text=${base} label="Copy address" /></p>
    <${Sample} label="In a shell" text=${shell} />
    <${Sample} label="In Python" text=${python} />
    <p>Or begin with <a href="#/chat">a chat in this console</a>.
      ${session.auth_mode === "keys"
        ? " You see what the key says that you look with; another key sees something else."
        : " Each API key that a client sends sees its own conversations: “Change key” looks as that client."}</p>
  </section>`;
}

function Sample({ label, text }) {
  return html`<div><p class="row"><strong class="small grow">${label}</strong><${Copy} text=${text} /></p>
    <pre class="plain" tabindex="0">${text}</pre></div>`;
}
