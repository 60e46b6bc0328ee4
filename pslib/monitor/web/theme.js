// Applies the colours that the reader has chosen before anything is drawn.
"use strict";
try {
  const chosen = localStorage.getItem("pslib-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // storage is not allowed: the system's colours
}
