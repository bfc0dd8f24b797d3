// Sends the upload form in the background, so that a long upload shows how far it is. Without it the form goes as forms go.
"use strict";

document.addEventListener("submit", (event) => {
  const form = event.target.closest("form[data-upload]");
  if (!form || !form.reportValidity()) return;
  event.preventDefault();
  const button = form.querySelector("[type=submit]");
  const bar = form.querySelector("progress");
  const said = form.querySelector("[data-said]");
  const file = form.querySelector("[type=file]");
  const request = new XMLHttpRequest();
  let spoken = 0;

  function failed(words) {
    button.disabled = false;
    bar.hidden = true;
    said.textContent = words;
  }

  request.upload.addEventListener("progress", (step) => {
    if (!step.lengthComputable) return;
    const share = Math.round((100 * step.loaded) / step.total);
    bar.value = share;
    if (share === 100) said.textContent = "Sent. The server is storing it.";
    else if (share >= spoken + 10 || spoken === 0) {
      spoken = share;
      said.textContent = `Sending: ${share} %`;
    }
  });
  request.addEventListener("error", () => failed("The connection broke. Nothing was stored; send it again."));
  request.addEventListener("abort", () => failed("Stopped. Nothing was stored."));
  request.addEventListener("load", () => {
    if (request.status < 300) return location.assign(request.responseURL);
    const answer = new DOMParser().parseFromString(request.responseText, "text/html");
    const again = answer.querySelector("form[data-upload]");
    if (!again) return failed(answer.querySelector("main p")?.textContent.trim() || "The server refused the file.");
    again.querySelector("[type=file]").replaceWith(file); // the chosen file stays chosen
    form.replaceWith(again);
    document.dispatchEvent(new CustomEvent("pagechange"));
    (again.querySelector("[aria-invalid=true]") || again.querySelector("[type=file]")).focus();
  });

  button.disabled = true;
  bar.hidden = false;
  bar.value = 0;
  said.textContent = "Sending…";
  request.open("POST", form.action);
  request.send(new FormData(form));
});
