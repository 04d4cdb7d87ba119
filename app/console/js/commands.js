// Commands that the shown page has beside those of the frame: the palette lists them.
import { useEffect, useRef } from "./lib.js";

const pages = new Set();

/**
 * Offer commands while the component is shown.
 * @param {({text: string, run: () => void}|false)[]} commands
 */
export function useCommands(commands) {
  const newest = useRef(commands);
  newest.current = commands;
  useEffect(() => {
    pages.add(newest);
    return () => pages.delete(newest);
  }, []);
}

/** @returns {{text: string, run: () => void}[]} */
export const pageCommands = () => [...pages].flatMap((commands) => commands.current).filter(Boolean);
