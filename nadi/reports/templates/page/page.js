"use strict";
(() => {
  const root = document.documentElement;
  const wantsDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : wantsDark.matches);

  function colours() {
    const style = getComputedStyle(document.body);
    const line = isDark() ? "#363e4a" : "#d9dee6";
    const found = { font: { color: style.color, family: style.fontFamily } };
    found.paper_bgcolor = found.plot_bgcolor = "rgba(0,0,0,0)";
    found.axis = { gridcolor: line, linecolor: line, zerolinecolor: line };
    found.raised = isDark() ? "#1e232b" : "#f4f6f9";
    return found;
  }

  const isNarrow = () => innerWidth < 640;
  const barPixels = 34; // height of Plotly's tool bar, which is above the plot so that it covers no legend

  function themed(layout) {
    const { axis, raised, ...rest } = colours();
    const made = { ...layout, ...rest, font: { ...layout.font, ...rest.font } };
    for (const key of Object.keys(made)) {
      if (/^[xy]axis\d*$/.test(key)) made[key] = { ...made[key], ...axis, automargin: true };
    }
    made.hoverlabel = { bgcolor: raised, font: rest.font, namelength: -1 };
    if (isNarrow()) made.legend = { ...made.legend, orientation: "h", x: 0, y: 1, yanchor: "bottom", maxheight: 1 };
    else made.margin = { ...made.margin, t: barPixels + (made.margin?.t ?? 0) };
    return made;
  }

  // On narrow screens the legend is above the plot, in place of the tool bar. The plot grows by what either takes.
  function legendPixels(figure, width) {
    const names = figure.data.filter((trace) => trace.showlegend !== false).map((trace) => trace.name ?? "");
    if (names.length < 2) return 0;
    const each = 60 + 7 * Math.max(...names.map((name) => name.length));
    return 20 * Math.ceil(names.length / Math.max(1, Math.floor(width / each)));
  }

  const drawn = new Map();

  function draw(place) {
    const source = document.querySelector(`script[data-plot="${place.id}"]`);
    const figure = JSON.parse(source.textContent);
    drawn.set(place, figure);
    for (const trace of figure.data) {
      if (trace.type === "table") {
        const { raised, axis, font } = colours();
        trace.header = { ...trace.header, fill: { color: raised }, font, line: { color: axis.linecolor } };
        trace.cells = { ...trace.cells, fill: { color: "rgba(0,0,0,0)" }, font, line: { color: axis.linecolor } };
      }
    }
    const options = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };
    options.displayModeBar = isNarrow() ? false : "hover";
    const above = isNarrow() ? legendPixels(figure, place.clientWidth) : barPixels;
    place.style.height = `${Number(place.dataset.height) + above}px`;
    Plotly.newPlot(place, figure.data, themed(figure.layout), options);
  }

  const plots = [...document.querySelectorAll(".plot")];
  if (plots.length) {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        seen.unobserve(entry.target);
        draw(entry.target);
      }
    }, { rootMargin: "600px" });
    plots.forEach((place) => seen.observe(place));
    addEventListener("beforeprint", () => plots.filter((place) => !drawn.has(place)).forEach(draw));
  }

  function again() {
    for (const place of drawn.keys()) draw(place);
  }

  wantsDark.addEventListener("change", again);
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    again();
  });
})();
