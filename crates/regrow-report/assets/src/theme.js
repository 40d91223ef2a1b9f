// Light and dark: as the system has it, until the reader chooses.

const CHOICES = ["auto", "light", "dark"];
const listeners = new Set();

/** Calls back when colours change. */
export function onTheme(listener) {
  listeners.add(listener);
}

const tell = () => listeners.forEach((listener) => listener());

/** The value of a colour of the style sheet. */
export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** The colours that tell parts of a chart apart: soft ones of areas (`series`), strong ones of lines (`line`). */
export const palette = (kind = "series") => Array.from({ length: 8 }, (_, at) => color(`${kind}-${at + 1}`));

export function startTheme(button) {
  const root = document.documentElement;
  const show = () => {
    button.textContent = `Theme: ${root.dataset.theme}`;
  };
  button.addEventListener("click", () => {
    root.dataset.theme = CHOICES[(CHOICES.indexOf(root.dataset.theme) + 1) % CHOICES.length];
    show();
    tell();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
  // Paper is white.
  let chosen = root.dataset.theme;
  addEventListener("beforeprint", () => {
    chosen = root.dataset.theme;
    root.dataset.theme = "light";
    tell();
  });
  addEventListener("afterprint", () => {
    root.dataset.theme = chosen;
    tell();
  });
  show();
}
