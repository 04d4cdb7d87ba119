// How well a text matches what somebody types: all words of it, as parts of the text or as letters in order.

const WORD_START = 3;
const INSIDE = 2;
const MAX_GAP_CHARS = 12;

/**
 * @param {string} query
 * @param {string} text
 * @returns {{score: number, places: Set<number>}|null}  null if it does not match; `places` are the matched characters
 */
export function matchText(query, text) {
  const lower = text.toLowerCase();
  const places = new Set();
  let score = 0;
  for (const word of query.toLowerCase().split(/\s+/).filter(Boolean)) {
    const found = findPart(word, lower) ?? findLetters(word, lower);
    if (!found) return null;
    score += found.score;
    found.places.forEach((place) => places.add(place));
  }
  // Of two equal matches, the shorter text is meant.
  return { score: score - lower.length / 1000, places };
}

function findPart(word, text) {
  let best = null;
  for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + 1)) {
    const weight = isWordStart(text, at) ? WORD_START : INSIDE;
    if (!best || weight > best.weight) best = { at, weight };
    if (best.weight === WORD_START) break;
  }
  return best && { score: best.weight * word.length, places: Array.from(word, (_, index) => best.at + index) };
}

/** The letters in order, near each other, beginning at the start of a word. */
function findLetters(word, text) {
  for (let start = text.indexOf(word[0]); start >= 0; start = text.indexOf(word[0], start + 1)) {
    if (!isWordStart(text, start)) continue;
    const places = [start];
    while (places.length < word.length) {
      const next = text.indexOf(word[places.length], places.at(-1) + 1);
      if (next < 0 || next - places.at(-1) > MAX_GAP_CHARS) break;
      places.push(next);
    }
    if (places.length === word.length) return { score: word.length - (places.at(-1) - start) / 100, places };
  }
  return null;
}

const isWordStart = (text, at) => at === 0 || !/[\p{L}\p{N}]/u.test(text[at - 1]);
