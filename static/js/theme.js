// Runs in the head before anything is painted, so that the page never flashes in the wrong colours.
"use strict";

(() => {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");

  function chosen() {
    try {
      return localStorage.getItem("theme");
    } catch {
      return null; // storage is switched off: the system decides
    }
  }

  function apply() {
    const theme = chosen() || (system.matches ? "dark" : "light");
    if (root.dataset.bsTheme === theme) return;
    root.dataset.bsTheme = theme;
    document.dispatchEvent(new CustomEvent("themechange"));
  }

  root.classList.add("scripted");
  apply();
  system.addEventListener("change", apply);
  window.addEventListener("storage", apply);

  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-toggle-theme]")) return;
    const next = root.dataset.bsTheme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("theme", next);
    } catch {
      root.dataset.bsTheme = next;
    }
    apply();
  });
})();
