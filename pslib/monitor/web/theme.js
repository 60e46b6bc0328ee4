// Sets data-theme to the colours that are shown, before anything is drawn: those chosen, else the system's.
"use strict";
{
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  globalThis.chooseTheme = (name) => {
    root.dataset.chosen = name;
    root.dataset.theme = name || (dark.matches ? "dark" : "light");
  };
  let chosen = "";
  try {
    chosen = localStorage.getItem("pslib-theme");
  } catch {
    // storage is not allowed: the system's colours
  }
  chooseTheme(chosen === "light" || chosen === "dark" ? chosen : "");
  dark.addEventListener("change", () => chooseTheme(root.dataset.chosen));
}
