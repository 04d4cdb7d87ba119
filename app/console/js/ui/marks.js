// Words that were looked for, marked where they stand: the text itself is left alone.
const NAME = "found";
const MOST = 2_000;

/** Mark the words of `asked` in the texts below `element`; no words take all marks away. */
export function marked(element, asked) {
  if (!globalThis.CSS?.highlights) return;
  const words = asked.match(/[\p{L}\p{N}_]{2,}/gu) ?? [];
  if (element === null || words.length === 0) {
    CSS.highlights.delete(NAME);
    return;
  }
  const pattern = new RegExp(words.sort((a, b) => b.length - a.length).join("|"), "giu");
  const ranges = [];
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node && ranges.length < MOST; node = texts.nextNode()) {
    for (const match of node.data.matchAll(pattern)) {
      const range = new Range();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      ranges.push(range);
    }
  }
  CSS.highlights.set(NAME, new Highlight(...ranges));
}
