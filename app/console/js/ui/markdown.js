// Markdown as a tree of components. No HTML is ever made from a message: what looks like HTML is shown as text, images
// become links, and a link that is not http, https or mailto becomes text.
import { html } from "../lib.js";
import { lexer } from "../../vendor/marked.js";

const MAX_CHARS = 20_000;
const SAFE = /^(https?:|mailto:)/i;

export function Markdown({ text }) {
  if (text.length > MAX_CHARS) return html`<div class="text">${text}</div>`;
  return html`<div class="markdown break">${lexer(text, { gfm: true, breaks: true }).map(block)}</div>`;
}

function block(token) {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return html`<p><strong>${inline(token.tokens)}</strong></p>`;
    case "paragraph":
      return html`<p>${inline(token.tokens)}</p>`;
    case "text":
      return token.tokens ? inline(token.tokens) : token.text;
    case "code":
      return html`<pre tabindex="0"><code>${token.text}</code></pre>`;
    case "blockquote":
      return html`<blockquote>${token.tokens.map(block)}</blockquote>`;
    case "list":
      return token.ordered
        ? html`<ol start=${token.start || 1}>${token.items.map(item)}</ol>`
        : html`<ul>${token.items.map(item)}</ul>`;
    case "table":
      return table(token);
    case "hr":
      return html`<hr />`;
    default:
      return html`<p class="text">${token.raw}</p>`;
  }
}

function item(token) {
  const box = token.task ? (token.checked ? "☑ " : "☐ ") : "";
  return html`<li>${box}${token.tokens.map(block)}</li>`;
}

function table(token) {
  return html`<div class="scroll-x" tabindex="0"><table>
    <thead><tr>${token.header.map((cell) => html`<th>${inline(cell.tokens)}</th>`)}</tr></thead>
    <tbody>${token.rows.map((row) => html`<tr>${row.map((cell) => html`<td>${inline(cell.tokens)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

function inline(tokens = []) {
  return tokens.map((token) => {
    switch (token.type) {
      case "strong":
        return html`<strong>${inline(token.tokens)}</strong>`;
      case "em":
        return html`<em>${inline(token.tokens)}</em>`;
      case "del":
        return html`<del>${inline(token.tokens)}</del>`;
      case "codespan":
        return html`<code>${token.text}</code>`;
      case "br":
        return html`<br />`;
      case "link":
        return link(token.href, inline(token.tokens), token.raw);
      case "image":
        return link(token.href, `🖼 ${token.text || token.href}`, token.raw);
      case "escape":
        return token.text;
      case "text":
        return token.tokens ? inline(token.tokens) : token.raw;
      default:
        return token.raw;
    }
  });
}

function link(href, children, raw) {
  if (!SAFE.test(href.trim())) return raw;
  return html`<a href=${href} target="_blank" rel="noopener noreferrer nofollow">${children}</a>`;
}
