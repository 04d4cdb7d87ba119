// What to do where nothing was said yet: point a client here.
import { html } from "../../lib.js";
import { ROOT } from "../../api.js";
import { credentials } from "../../session.js";
import { Copy } from "../../ui/parts.js";

export function FirstSteps({ session }) {
  const base = new URL("v1", ROOT).href;
  const hasKeys = session.auth_mode === "keys";
  const isAnonymous = !hasKeys && !credentials().key;
  const model = session.simulated ? "sim-8k" : "gpt-4o-mini";
  const shell = `curl ${base}/chat/completions \\
  -H 'Content-Type: application/json' -H 'X-Conversation-Id: my-first' \\${isAnonymous ? "" : `
  -H "Authorization: Bearer $KEY" \\`}
  -d '{"model": "${model}", "messages": [{"role": "user", "content": "Hello"}]}'`;
  const python = `from openai import OpenAI

client = OpenAI(base_url="${base}", api_key=${isAnonymous ? '"sk-anything"' : "KEY"})`;
  return html`<section class="panel stack first-steps" aria-label="First steps">
    <h2>Nothing was said here yet</h2>
    <p>Any client of the OpenAI API works: give it this address, and what it says is kept and shown here.</p>
    <p class="row"><code class="break">${base}</code><${Copy} text=${base} label="Copy address" /></p>
    <${Sample} label="In a shell" text=${shell} />
    <${Sample} label="In Python" text=${python} />
    ${isAnonymous
      ? html`<p>You look without a key, and see what was said without one. Each key that a client sends has conversations of its own: after the
          lines in Python, look with <code>sk-anything</code> by “Change key”.</p>`
      : session.operator
        ? html`<p>You look as an operator and see the conversations of all keys. <code>KEY</code> is a key for the client: ${hasKeys ? html`make one under <a href="#/keys">Keys</a>` : "any will do"}.</p>`
        : html`<p><code>KEY</code> is the key that you look with: another one has conversations of its own.</p>`}
    ${session.scopes.includes("chat") && html`<p>Or begin with <a href="#/chat">a chat in this console</a>.</p>`}
  </section>`;
}

function Sample({ label, text }) {
  return html`<div><p class="row"><strong class="small grow">${label}</strong><${Copy} text=${text} name=${`Copy: ${label}`} /></p>
    <pre class="plain" tabindex="0">${text}</pre></div>`;
}
