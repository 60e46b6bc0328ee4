// Curves over examples or seconds, drawn by uPlot; each has its samples as a table too.

import { at, count, make, put, table, rows, duration, NONE } from "./format.js";

const ROWS_SHOWN = 24;
const charts = [];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86_400;
const STEPS = [
  1, 2, 5, 10, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR,
  6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 5 * DAY, 10 * DAY, 20 * DAY, 50 * DAY,
];

/** 30 s; 5 min; 1.5 h: what stands at an axis. */
function briefly(seconds) {
  const [size, unit] = seconds < MINUTE ? [1, "s"] : seconds < HOUR ? [MINUTE, "min"] : seconds < 2 * DAY ? [HOUR, "h"] : [DAY, "d"];
  return `${Number((seconds / size).toFixed(1))} ${unit}`;
}

const AXES = {
  examples: { name: "Examples", show: count, tick: count, more: {} },
  seconds: { name: "Time", show: duration, tick: briefly, more: { incrs: STEPS } },
};

function options(chart, width) {
  const axis = {
    stroke: () => colour("--soft"),
    grid: { stroke: () => colour("--grid"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
  return {
    width,
    height: chart.height,
    legend: { show: false },
    padding: [8, 24, 0, 0],
    cursor: { sync: { key: chart.over }, drag: { x: true, y: false }, points: { size: 6 } },
    scales: { x: { time: false } },
    axes: [
      { ...axis, size: 22, gap: 2, space: 64, values: (u, ticks) => ticks.map(AXES[chart.over].tick), ...AXES[chart.over].more },
      { ...axis, size: 58, gap: 4, space: 28, values: (u, ticks) => ticks.map(chart.tick) },
    ],
    series: [
      {},
      {
        stroke: () => colour(chart.colour),
        fill: () => `${colour(chart.colour)}1c`,
        width: 1.5,
        spanGaps: true,
        points: { show: false },
      },
    ],
    hooks: { setCursor: [(u) => chart.point(u.cursor.idx)] },
  };
}

class Chart {
  constructor(parent, { title, column, show, tick = show, over = "examples", colour: own = "--accent", height = 132 }) {
    Object.assign(this, { title, column, show, tick, over, colour: own, height });
    this.value = make("span.value");
    this.under = make("span.soft.under");
    this.plot = make("div.plot", { role: "img" });
    this.more = make("details", {}, make("summary", {}, "As a table"));
    this.more.addEventListener("toggle", () => this.tabulate());
    parent.append(
      make("figure", {}, make("figcaption", {}, make("h3", {}, title), make("div", {}, this.value, " ", this.under)), this.plot, this.more),
    );
    this.data = [[], []];
    new ResizeObserver(() => this.resize()).observe(this.plot);
    charts.push(this);
  }

  resize() {
    const width = Math.floor(this.plot.clientWidth);
    if (this.drawn && width > 0 && width !== this.drawn.width) this.drawn.setSize({ width, height: this.height });
  }

  draw(samples) {
    const x = samples.columns.indexOf(this.over);
    const y = samples.columns.indexOf(this.column);
    if (x < 0 || y < 0) return;
    const found = [[], []];
    let before = -Infinity;
    for (const row of samples.rows) {
      if (row[x] === null || row[x] <= before) continue;  // of a training that has not gone on
      before = row[x];
      found[0].push(before);
      found[1].push(row[y] ?? null);
    }
    this.data = found;
    const width = Math.floor(this.plot.clientWidth) || 300;
    if (this.drawn) this.drawn.setData(found);
    else if (found[0].length > 1) this.drawn = new uPlot(options(this, width), found, this.plot);
    this.point(null);
    if (this.more.open) this.tabulate();
  }

  /** Shows the value under the cursor, else the last one. */
  point(index) {
    const [xs, ys] = this.data;
    const pointed = index !== null && index !== undefined;
    let place = pointed ? index : ys.length - 1;
    while (!pointed && place > 0 && ys[place] === null) place -= 1;
    put(this.value, place >= 0 ? this.show(ys[place]) : NONE);
    put(this.under, pointed ? `at ${AXES[this.over].show(xs[index])}` : "");
    const known = ys.filter((one) => one !== null);
    const range = known.length
      ? `now ${this.show(known.at(-1))}, lowest ${this.show(Math.min(...known))}, highest ${this.show(Math.max(...known))}`
      : "no values yet";
    if (!pointed) this.plot.setAttribute("aria-label", `${this.title}: ${range}; the table below has the curve`);
    this.plot.classList.toggle("empty", !known.length);
  }

  tabulate() {
    if (!this.more.open) return;
    const columns = [[AXES[this.over].name, "number"], [this.title, "number"]];
    if (!this.table) {
      this.table = table(`${this.title} over ${this.over}`, columns);
      this.more.append(this.table);
    }
    const [xs, ys] = this.data;
    const step = Math.max(1, Math.ceil(xs.length / ROWS_SHOWN));
    const places = xs.map((_, place) => place).filter((place) => (xs.length - 1 - place) % step === 0);
    rows(this.table, places, (place) => place, columns, (place) => [
      AXES[this.over].show(xs[place]),
      this.show(ys[place]),
    ]);
  }
}

export const chart = (parent, about) => new Chart(at(parent), about);

export function drawAll(samples) {
  for (const one of charts) one.draw(samples);
}

/** Draws all again with the colours of now. */
export function recolour() {
  for (const one of charts) one.drawn?.redraw();
}
