// Draws the figures of a report from the JSON beside them, in the colours of the page, and again when these change.
"use strict";

(() => {
  const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false };
  const probe = document.createElement("span");

  // The colours as the page shows them now: tokens may be light-dark(), which only a computed style resolves.
  function colour(token) {
    probe.style.color = `var(${token})`;
    const [r, g, b] = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
    return { solid: `rgb(${r}, ${g}, ${b})`, band: `rgba(${r}, ${g}, ${b}, 0.18)` };
  }

  function palette() {
    document.body.append(probe);
    const colours = { INK: colour("--ink").solid, QUIET: colour("--quiet").solid, GRID: colour("--grid").solid };
    colours.SURFACE = colour("--surface").solid;
    for (let i = 0; i < 6; i += 1) {
      const slot = colour(`--slot-${i}`);
      colours[`SLOT_${i}`] = slot.solid;
      colours[`SLOT_${i}_BAND`] = slot.band;
    }
    probe.remove();
    return colours;
  }

  function painted(value, colours) {
    if (typeof value === "string") return Object.hasOwn(colours, value) ? colours[value] : value;
    if (Array.isArray(value)) return value.map((one) => painted(one, colours));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, painted(one, colours)]));
  }

  // Words never go through `painted`: a group that is called "INK" keeps its name.
  const WORDS = new Set(["x", "y", "text", "name", "legendgroup", "hovertemplate", "title", "customdata", "ticktext"]);

  function paintedTrace(trace, colours) {
    return Object.fromEntries(
      Object.entries(trace).map(([key, one]) => [key, WORDS.has(key) ? one : painted(one, colours)]),
    );
  }

  function axis(given, colours) {
    return {
      gridcolor: colours.GRID,
      zerolinecolor: colours.GRID,
      linecolor: colours.QUIET,
      tickcolor: colours.QUIET,
      automargin: true,
      ...given,
      title: { standoff: 10, font: { size: 13 }, ...(given?.title ?? {}) },
    };
  }

  function layoutOf(figure, colours) {
    const layout = painted(figure.layout, colours);
    const font = { color: colours.INK, family: getComputedStyle(document.body).fontFamily, size: 12.5 };
    const all = {
      ...layout,
      font,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 56, r: 20, t: 28, b: 48, ...layout.margin },
      hoverlabel: { bgcolor: colours.SURFACE, bordercolor: colours.QUIET, font: { color: colours.INK } },
      dragmode: false,
    };
    const axes = new Set(["xaxis", "yaxis", ...Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))]);
    for (const name of axes) all[name] = { ...axis(layout[name], colours), fixedrange: true };
    return all;
  }

  function draw(place, colours) {
    const figure = JSON.parse(document.getElementById(place.dataset.figure).textContent);
    const traces = figure.traces.map((trace) => paintedTrace(trace, colours));
    return Plotly.react(place, traces, layoutOf(figure, colours), CONFIG);
  }

  // A page with many figures draws those in sight first.
  const waiting = new IntersectionObserver(
    (entries) => {
      const colours = palette();
      for (const entry of entries.filter((one) => one.isIntersecting)) {
        waiting.unobserve(entry.target);
        draw(entry.target, colours);
      }
    },
    { rootMargin: "600px" },
  );

  window.addEventListener("DOMContentLoaded", () => {
    for (const place of document.querySelectorAll("[data-figure]")) waiting.observe(place);
  });
  document.addEventListener("themechange", () => {
    const colours = palette();
    for (const place of document.querySelectorAll(".js-plotly-plot")) draw(place, colours);
  });
  window.addEventListener("beforeprint", () => {
    const colours = palette();
    for (const place of document.querySelectorAll("[data-figure]")) draw(place, colours);
  });
})();
