// Draws the table of each `figure.plot` with uPlot. Without this script, the table is there.
"use strict";
(() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const drawn = new Map();

  // Columns are stacked: each is drawn up to its own sum, the highest first.
  const stacked = (columns) =>
    columns.map((_, top) => columns[0].map((_, x) => columns.slice(0, top + 1).reduce((sum, column) => sum + column[x], 0)));

  const draw = (figure) => {
    const table = figure.querySelector("details table");
    const canvas = figure.querySelector(".canvas");
    drawn.get(figure)?.destroy();
    drawn.delete(figure);
    canvas.replaceChildren();
    const rows = [...table.tBodies[0].rows];
    if (!rows.length || !canvas.clientWidth) return;
    const names = rows.map((row) => row.cells[0].textContent);
    const heads = [...table.tHead.rows[0].cells].slice(1).map((cell) => cell.textContent);
    const columns = heads.map((_, at) => rows.map((row) => Number(row.cells[at + 1].dataset.value)));
    const written = (at, x) => rows[x].cells[at + 1].textContent;
    const colours = heads.map((_, at) => css("--series-" + ((at % 6) + 1)));
    const sums = stacked(columns);
    const axis = { stroke: css("--faint"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const options = {
      width: canvas.clientWidth,
      height: 220,
      padding: [12, 8, 0, 0],
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      legend: { live: true },
      scales: { x: { time: false, range: () => [-0.6, names.length - 0.4] }, y: { range: (_, low, high) => [0, high || 1] } },
      axes: [
        { ...axis, grid: { show: false }, splits: () => names.map((_, at) => at), values: (_, at) => at.map((x) => (names.length > 8 && x % Math.ceil(names.length / 8) ? "" : names[x].split(" – ")[0].replace(/^\d{4}-/, ""))) },
        { ...axis, size: 48, values: (_, at) => at.map((value) => (figure.dataset.prefix || "") + short.format(value)) },
      ],
      series: [
        { label: figure.dataset.unit, value: (_, x) => (x === null ? "" : names[x]) },
        ...heads.map((head, at) => ({
          label: head,
          fill: colours[at],
          stroke: colours[at],
          width: 0,
          points: { show: false },
          paths: uPlot.paths.bars({ size: [0.72, 64], radius: 0.06 }),
          value: (_, __, ___, x) => (x === null || x === undefined ? "" : written(at, x)),
        })).reverse(),
      ],
    };
    drawn.set(figure, new uPlot(options, [names.map((_, at) => at), ...sums.reverse()], canvas));
  };

  const drawAll = () => {
    for (const figure of drawn.keys()) {
      if (!figure.isConnected) {
        drawn.get(figure).destroy();
        drawn.delete(figure);
      }
    }
    document.querySelectorAll("figure.plot").forEach(draw);
  };

  let resized;
  window.addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(drawAll, 150);
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  document.addEventListener("htmx:oobAfterSwap", (event) => {
    if (event.detail.target.querySelector?.("figure.plot")) drawAll();
  });
  drawAll();
})();
