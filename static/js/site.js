// The small things of every page. Without it, everything still works.
"use strict";

document.addEventListener("click", (event) => {
  const menu = event.target.closest("[data-menu]");
  if (menu) {
    const open = document.getElementById("rail").classList.toggle("open");
    menu.setAttribute("aria-expanded", String(open));
  }
  if (event.target.closest("[data-print]")) window.print();
});

// A link to a part of the page that lies in a closed block opens it.
function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let block = target.closest("details"); block; block = block.parentElement.closest("details")) block.open = true;
  target.scrollIntoView();
}
window.addEventListener("hashchange", reveal);
window.addEventListener("DOMContentLoaded", reveal);

// What is printed is complete: closed blocks open for the time of printing.
let opened = [];
window.addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("main details:not([open])")];
  for (const block of opened) block.open = true;
});
window.addEventListener("afterprint", () => {
  for (const block of opened) block.open = false;
});

// The options of a network show only while it is chosen.
function showNetwork() {
  const kind = document.querySelector("[name=kind]:checked");
  const network = document.querySelector("[name=architecture]");
  if (!network || !kind) return;
  const block = document.getElementById("network");
  block.hidden = kind.value !== "model";
  for (const part of block.querySelectorAll("[data-network]")) part.hidden = part.dataset.network !== network.value;
  for (const part of block.querySelectorAll("[data-any-network]")) part.hidden = !network.value;
}
document.addEventListener("change", showNetwork);
document.addEventListener("pagechange", showNetwork);
window.addEventListener("DOMContentLoaded", showNetwork);
