// A button with a panel below it: links, buttons, a control.
import { html, useEffect, useId, useRef, useState } from "../lib.js";

/**
 * Escape, a click elsewhere, another address and a focus that leaves close the panel.
 * @param {object} props
 * @param {string} props.label  what the button is called
 * @param {any} props.face  what it shows
 * @param {string} [props.kind]  a CSS class
 * @param {(close: () => void) => any} props.children  the panel; `close` gives the focus back to the button
 */
export function Menu({ label, face, kind = "", children }) {
  const [isOpen, setOpen] = useState(false);
  const whole = useRef(null);
  const id = useId();
  const close = () => {
    setOpen(false);
    whole.current?.querySelector("button")?.focus();
  };
  useEffect(() => {
    if (!isOpen) return undefined;
    const leave = (event) => { if (!whole.current.contains(event.target)) setOpen(false); };
    const shut = () => setOpen(false);
    addEventListener("pointerdown", leave);
    addEventListener("hashchange", shut);
    return () => {
      removeEventListener("pointerdown", leave);
      removeEventListener("hashchange", shut);
    };
  }, [isOpen]);
  const onKey = (event) => {
    if (event.key === "Escape" && isOpen) close();
  };
  const onLeave = ({ relatedTarget }) => {
    if (relatedTarget && !whole.current.contains(relatedTarget)) setOpen(false);
  };
  return html`<div class="menu ${kind}" ref=${whole} onKeyDown=${onKey} onFocusOut=${onLeave}>
    <button type="button" class="bar-button" aria-label=${label} aria-expanded=${isOpen} aria-controls=${isOpen ? id : undefined}
      onClick=${() => setOpen(!isOpen)}>${face}</button>
    ${isOpen && html`<div class="menu-panel" id=${id}>${children(close)}</div>`}
  </div>`;
}
