// Light, dark, or what the system says; remembered in this browser.
import { html, useEffect, useState } from "../lib.js";

const NAME = "concertina.theme";
const THEMES = { system: "System", light: "Light", dark: "Dark" };

export function Theme() {
  const [theme, setTheme] = useState(() => localStorage.getItem(NAME) ?? "system");
  useEffect(() => {
    localStorage.setItem(NAME, theme);
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    dispatchEvent(new Event("themechange"));
  }, [theme]);
  return html`<label class="small"><span class="visually-hidden">Colours</span>
    <select class="input small" value=${theme} onChange=${(event) => setTheme(event.target.value)}>
      ${Object.entries(THEMES).map(([value, text]) => html`<option value=${value}>${text}</option>`)}
    </select>
  </label>`;
}
