// JSON for eyes: indented without reading its values, so that long numbers and doubled names stay as they were sent.
const STEP = "  ";
const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/** `text` with line breaks, or null if it is no JSON object or array. */
export function indented(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  let depth = 0;
  let made = "";
  let before = "";
  const line = () => `\n${STEP.repeat(depth)}`;
  for (const [token] of text.matchAll(TOKEN)) {
    const isOpened = before === "{" || before === "[";
    if (token === "}" || token === "]") {
      depth -= 1;
      made += isOpened ? token : line() + token;
    } else {
      if (isOpened || before === ",") made += line();
      made += token === ":" ? ": " : token;
      if (token === "{" || token === "[") depth += 1;
    }
    before = token;
  }
  return made;
}
