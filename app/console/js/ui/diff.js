// What changed between two texts, word by word.
import { html } from "../lib.js";

const MAX_CELLS = 4_000_000;
/** Texts that have less than this in common are told one after the other: single words say nothing. */
const LEAST_ALIKE = 0.3;

/**
 * @returns {{kind: "same"|"gone"|"new", text: string}[]|null} null: too long to compare
 */
export function compared(before, after) {
  const old = before.match(/\s+|[^\s]+/g) ?? [];
  const now = after.match(/\s+|[^\s]+/g) ?? [];
  let start = 0;
  while (start < old.length && start < now.length && old[start] === now[start]) start += 1;
  let end = 0;
  while (end < old.length - start && end < now.length - start && old.at(-1 - end) === now.at(-1 - end)) end += 1;
  const [a, b] = [old.slice(start, old.length - end), now.slice(start, now.length - end)];
  if (a.length * b.length > MAX_CELLS) return null;
  const pieces = [["same", old.slice(0, start)], ...steps(a, b), ["same", end ? old.slice(-end) : []]];
  const found = joined(pieces.map(([kind, words]) => ({ kind, text: words.join("") })));
  const alike = found.reduce((sum, { kind, text }) => sum + (kind === "same" ? text.length : 0), 0);
  if (alike >= LEAST_ALIKE * Math.max(before.length, after.length)) return found;
  return [{ kind: "gone", text: `${before}\n` }, { kind: "new", text: after }];
}

/** The longest common subsequence, walked from the beginning. */
function steps(a, b) {
  const width = b.length + 1;
  const longest = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      const here = i * width + j;
      longest[here] = a[i] === b[j] ? longest[here + width + 1] + 1 : Math.max(longest[here + width], longest[here + 1]);
    }
  }
  const found = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      found.push(["same", [a[i]]]);
      i += 1;
      j += 1;
    } else if (j === b.length || (i < a.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) {
      found.push(["gone", [a[i]]]);
      i += 1;
    } else {
      found.push(["new", [b[j]]]);
      j += 1;
    }
  }
  return found;
}

function joined(pieces) {
  const made = [];
  for (const piece of pieces) {
    if (!piece.text) continue;
    if (made.at(-1)?.kind === piece.kind) made.at(-1).text += piece.text;
    else made.push({ ...piece });
  }
  return made;
}

export function Diff({ before, after }) {
  const pieces = compared(before, after);
  if (pieces === null) return html`<p class="soft small">These texts are too long to be compared here.</p>`;
  if (pieces.every((piece) => piece.kind === "same")) return html`<p class="soft small">The texts are the same.</p>`;
  return html`<p class="text diff">${pieces.map((piece) => {
    if (piece.kind === "gone") return html`<del>${piece.text}</del>`;
    return piece.kind === "new" ? html`<ins>${piece.text}</ins>` : piece.text;
  })}</p>`;
}
