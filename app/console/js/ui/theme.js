// Light, dark, or what the system says; remembered in this browser.
import { html, useEffect, useState } from "../lib.js";

const NAME = "concertina.theme";
export const THEMES = { system: "System", light: "Light", dark: "Dark" };

export const readTheme = () => (localStorage.getItem(NAME) in THEMES ? localStorage.getItem(NAME) : "system");

export function setTheme(theme) {
  localStorage.setItem(NAME, theme);
  applyTheme();
}

/** Called before anything is drawn, so that no page begins in other colours. */
export function applyTheme() {
  const theme = readTheme();
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  dispatchEvent(new Event("themechange"));
}

export function Theme() {
  const [theme, show] = useState(readTheme);
  useEffect(() => {
    const follow = () => show(readTheme());
    addEventListener("themechange", follow);
    return () => removeEventListener("themechange", follow);
  }, []);
  return html`<label class="row theme"><span class="grow">Colours</span>
    <select class="input small" value=${theme} onChange=${(event) => setTheme(event.target.value)}>
      ${Object.entries(THEMES).map(([value, text]) => html`<option value=${value}>${text}</option>`)}
    </select>
  </label>`;
}
