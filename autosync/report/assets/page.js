// Draws the charts of the page with uPlot, sorts its tables, and enlarges its pictures.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("charts").textContent);
  const HEIGHT = 300;
  const MOST_ZOOM = 16;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const faint = (name) => colour(name) + "30";
  const plots = [];

  const crosses = (u, index) => {
    const path = new Path2D();
    const size = 3 * devicePixelRatio;
    const values = u.data[index];
    for (let i = 0; i < values.length; i++) {
      if (values[i] !== null) {
        const x = u.valToPos(u.data[0][i], "x", true), y = u.valToPos(values[i], "y", true);
        path.moveTo(x - size, y - size);
        path.lineTo(x + size, y + size);
        path.moveTo(x - size, y + size);
        path.lineTo(x + size, y - size);
      }
    }
    u.ctx.save();
    u.ctx.strokeStyle = u.series[index].stroke(u, index);
    u.ctx.lineWidth = devicePixelRatio;
    u.ctx.stroke(path);
    u.ctx.restore();
    return null;
  };

  const series = (one) => {
    const name = "--colour-" + (one.colour % 6);
    const found = {
      label: one.label,
      stroke: () => colour(name),
      width: 2,
      points: { show: false },
      value: (u, value) => (value === null || value === undefined ? "" : String(Number(value.toPrecision(4)))),
    };
    if (one.style === "points") {
      Object.assign(found, { paths: () => null, points: { show: true, size: 6, fill: () => colour(name) } });
    } else if (one.style === "crosses") {
      found.paths = crosses;
    } else if (one.style === "line") {
      Object.assign(found, { dash: [6, 4], width: 1 });
    } else if (one.style === "steps") {
      Object.assign(found, { paths: uPlot.paths.stepped({ align: 1 }), spanGaps: true });
    } else if (one.style === "area") {
      Object.assign(found, { paths: uPlot.paths.stepped({ align: 1 }), fill: () => faint(name) });
    } else {
      Object.assign(found, { paths: uPlot.paths.bars({ size: [0.5, 90] }), fill: () => colour(name), width: 0 });
    }
    return found;
  };

  const axis = (label, more) => ({
    label,
    labelSize: 22,
    stroke: () => colour("--soft"),
    grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { stroke: () => colour("--line"), width: 1 },
    ...more,
  });

  const range = (chart, low, high) => {
    if (low === null || high === null) {
      return [0, 1];
    }
    const top = chart.top === null ? high : Math.min(high, chart.top);
    const margin = 0.06 * (top - low || top || 1);
    return [chart.fromZero ? 0 : low - margin, top + margin];
  };

  const draw = (place) => {
    const chart = data[Number(place.dataset.chart)];
    const named = chart.names.length > 0;
    const last = chart.x.length - 1;
    const short = (text) => (text.length > 26 ? text.slice(0, 25) + "…" : text);
    const name = (value) => (Number.isInteger(value) && chart.names[value] !== undefined ? short(chart.names[value]) : "");
    const options = {
      width: Math.max(place.clientWidth, 280),
      height: HEIGHT,
      legend: { live: !named },
      cursor: { drag: { x: !named, y: false } },
      scales: {
        x: { time: false, ...(named ? { range: [-0.6, last + 0.6] } : {}) },
        y: { range: (u, low, high) => range(chart, low, high) },
      },
      axes: [
        axis(chart.xLabel, chart.xLabel === "trial" ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] } : named ? { splits: () => chart.x, values: (u, ticks) => ticks.map(name), grid: { show: false } } : {}),
        axis(chart.yLabel, { size: 60 }),
      ],
      series: [{ label: chart.xLabel || "contestant" }, ...chart.series.map(series)],
    };
    const plot = new uPlot(options, [chart.x, ...chart.series.map((one) => one.values)], place);
    plots.push([plot, place]);
  };

  const redraw = () => {
    for (const [plot] of plots) {
      plot.redraw(true, true);
    }
  };

  const fit = () => {
    for (const [plot, place] of plots) {
      const width = Math.max(place.clientWidth, 280);
      if (width !== plot.width) {
        plot.setSize({ width, height: HEIGHT });
      }
    }
  };

  const sort = (button) => {
    const head = button.closest("th");
    const place = [...head.parentElement.children].indexOf(head);
    const down = head.getAttribute("aria-sort") === "ascending";
    const body = head.closest("table").tBodies[0];
    const rows = [...body.rows].map((row) => {
      const cell = row.cells[place];
      return { row, text: cell.textContent, number: cell.dataset.key === undefined ? null : Number(cell.dataset.key) };
    });
    const compare = (a, b) => {
      if (a.number !== null || b.number !== null) {
        // A cell without a number is last in both directions.
        if (a.number === null || b.number === null) {
          return a.number === null ? (b.number === null ? 0 : 1) : -1;
        }
        return down ? b.number - a.number : a.number - b.number;
      }
      const order = a.text.localeCompare(b.text, "en", { numeric: true });
      return down ? -order : order;
    };
    for (const other of head.parentElement.children) {
      other.removeAttribute("aria-sort");
    }
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows.sort(compare).map((one) => one.row));
  };

  // Enlarges or shrinks a picture about the middle of what is visible of it.
  const zoom = (button) => {
    const inside = button.closest("figure").querySelector(".picture");
    const image = inside.querySelector("img");
    const before = image.clientWidth, whole = inside.clientWidth;
    const after = Math.min(Math.max(before * Number(button.dataset.zoom), whole), MOST_ZOOM * whole);
    const middle = inside.scrollLeft + whole / 2;
    inside.classList.add("large");
    image.width = Math.round(after);
    inside.scrollLeft = middle * (after / before) - whole / 2;
  };

  for (const place of document.querySelectorAll("[data-chart]")) {
    draw(place);
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button !== null && button.closest("thead") !== null) {
      sort(button);
    } else if (button !== null && button.classList.contains("zoom")) {
      zoom(button);
    }
  });
  addEventListener("resize", fit);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", redraw);
  addEventListener("afterprint", redraw);
  document.documentElement.dataset.drawn = String(plots.length);
})();
