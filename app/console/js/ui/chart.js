// Lines or stacked bars over something: uPlot, loaded where a chart is shown, and always the same numbers as a table.
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { count } from "../format.js";
import { Button, Loading } from "./parts.js";

const AXIS_FONT = "12px system-ui, sans-serif";
const TABLE_ROWS = 200;
const WHOLE_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000];
const PIXELS_PER_MARK = 6;
/** Room for a time of day with seconds. */
const PIXELS_PER_TIME = 72;
const HALF_DAY_SECONDS = 43_200;
const days = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });
const hours = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const seconds = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

/** Times of day, told apart where several are in the same minute; days where ticks are days apart. */
function clockTimes(ticks) {
  const format = ticks.length > 1 && ticks[1] - ticks[0] >= HALF_DAY_SECONDS ? days : ticks.length > 1 && ticks[1] - ticks[0] < 60 ? seconds : hours;
  return ticks.map((unixSeconds) => format.format(new Date(unixSeconds * 1000)));
}

/**
 * @typedef {object} Line
 * @property {string} label
 * @property {(number|null)[]} values  one per x
 * @property {string} [color]  name of a CSS variable, such as `--chart-1`
 * @property {boolean} [dashed]
 * @property {boolean} [area]  filled down to zero
 * @property {boolean} [filled]  the same, without anything to be seen through it: of several lines the first is the highest, so that they stack
 * @property {boolean} [stepped]
 * @property {boolean} [bars]  a bar at each x; of several lines the first is the highest and drawn first, so that they stack
 * @property {(number|null)[]} [told]  what the read-out and the table say, in place of the values
 * @property {(value: number|null) => string} [format]
 */

/**
 * A chart with a read-out, which follows the pointer and the arrow keys, and a table of what it shows.
 *
 * @param {object} props
 * @param {string} props.label  what the chart shows, for those who do not see it
 * @param {number[]} props.x  ascending; Unix seconds where `time` is set
 * @param {string} props.xLabel
 * @param {Line[]} props.lines
 * @param {boolean} [props.time]
 * @param {(value: number) => string} [props.formatX]
 * @param {(value: number) => string} [props.formatY]  of the axis
 * @param {(value: number) => string} [props.formatTick]  of the axis below, without `time`
 * @param {number} [props.least]  the axis reaches at least this far
 * @param {{index: number, color: string}[]} [props.marks]  upright lines
 * @param {{label: string, value: (index: number) => any}[]} [props.columns]  further columns of the table
 * @param {(index: number) => any} [props.more]  what the read-out says beside the lines
 * @param {(index: number) => void} [props.onPick]  a click or Enter
 * @param {string} [props.pickHint]  what that does
 * @param {number} [props.height]  in pixels
 */
export function Chart(props) {
  const { label, x, lines, formatX = String, more, height = 280, pickHint } = props;
  const [index, setIndex] = useState(null);
  const [isTable, setTable] = useState(false);
  const shown = index !== null && index < x.length ? index : null;
  const table = useMemo(() => isTable && html`<${Table} ...${props} />`, [isTable, x, lines]);
  return html`<figure class="chart">
    <div class="chart-head">
      <ul class="chart-key">
        ${lines.map((line) => html`<li key=${line.label}><span class="swatch ${line.dashed ? "dashed" : ""} ${line.filled ? "filled" : ""}"
          style=${{ borderColor: `var(${line.color})` }}></span>${line.label}${shown !== null && html`: <strong
          class="number">${(line.format ?? count)((line.told ?? line.values)[shown])}</strong>`}</li>`)}
      </ul>
      <${Button} small aria-expanded=${isTable} aria-label=${`${isTable ? "Hide table" : "Show as table"}: ${label}`} onClick=${() => setTable(!isTable)}>${isTable ? "Hide table" : "Show as table"}<//>
    </div>
    <${Plot} ...${props} index=${shown} onIndex=${setIndex} height=${height} />
    <figcaption class="small soft chart-readout" aria-live="polite">
      ${shown === null
        ? html`${label}.${pickHint && ` ${pickHint}`}`
        : html`<strong>${formatX(x[shown])}</strong><span class="visually-hidden">${lines.map((line) => `, ${line.label} ${(line.format ?? count)((line.told ?? line.values)[shown])}`)}</span>${more && html` · ${more(shown)}`}`}
    </figcaption>
    ${table}
  </figure>`;
}

/** The drawing itself. */
function Plot({ label, x, lines, time, formatY, formatTick, least, marks, onPick, index, onIndex, height }) {
  const place = useRef(null);
  const plot = useRef(null);
  const newest = useRef(null);
  newest.current = { marks: marks ?? [], onPick, onIndex, formatY, formatTick, least: least ?? 1, x };
  const uPlot = useLibrary();
  const colors = useColors();
  const data = useMemo(() => [x, ...lines.map((line) => line.values)], [x, lines]);
  const shape = lines.map((line) => [line.label, line.color, line.dashed, line.area, line.filled, line.stepped, line.bars].join()).join("|");

  useEffect(() => {
    if (!uPlot) return undefined;
    const element = place.current;
    const made = new uPlot(options(uPlot, { lines, time, height, width: widthOf(element), colors, newest }), data, element);
    made.over.addEventListener("click", () => pick(made, newest.current));
    plot.current = made;
    const sized = new ResizeObserver(() => made.setSize({ width: widthOf(element), height }));
    sized.observe(element);
    return () => {
      sized.disconnect();
      plot.current = null;
      made.destroy();
    };
  }, [uPlot, shape, height, colors, time]);

  useEffect(() => {
    if (plot.current && plot.current.data !== data) plot.current.setData(data);
  }, [data, marks]);

  const move = (to) => {
    const next = Math.max(0, Math.min(x.length - 1, to));
    onIndex(next);
    const made = plot.current;
    made?.setCursor({ left: made.valToPos(x[next], "x"), top: made.over.clientHeight / 2 }, false);
  };
  const onKey = (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    if (event.key in steps && x.length) move((index ?? (steps[event.key] > 0 ? -1 : x.length)) + steps[event.key]);
    else if (event.key === "Enter" && index !== null && onPick) onPick(index);
    else if (event.key === "Escape") onIndex(null);
    else return;
    event.preventDefault();
  };
  return html`<div class="chart-place" ref=${place} tabindex="0" role="group" aria-roledescription="chart"
    aria-label="${label}. Arrow keys move along it." style=${{ height: `${height}px` }} onKeyDown=${onKey}>
    ${!uPlot && html`<${Loading}>Loading the chart…<//>`}
  </div>`;
}

function options(uPlot, { lines, time, height, width, colors, newest }) {
  const axis = { stroke: colors["--ink-soft"], font: AXIS_FONT, grid: { stroke: colors["--chart-grid"], width: 1 }, ticks: { show: false } };
  return {
    width,
    height,
    legend: { show: false },
    padding: [10, 24, 0, 0],
    cursor: {
      y: false,
      drag: { x: false, y: false },
      points: { size: 7 },
    },
    scales: {
      x: { time: Boolean(time), ...(lines.some((line) => line.bars) && { range: (_, low, high) => [(low ?? 0) - 0.6, (high ?? 0) + 0.6] }) },
      y: { range: (_, low, high) => [0, Math.max(newest.current.least, high ?? 0) * 1.06] },
    },
    axes: [
      { ...axis, size: 32, ...(time ? { space: PIXELS_PER_TIME, values: (_, ticks) => clockTimes(ticks) } : { incrs: WHOLE_STEPS, values: (_, ticks) => ticks.map(newest.current.formatTick ?? count) }) },
      { ...axis, size: 56, values: (_, ticks) => ticks.map((value) => (newest.current.formatY ?? count)(value)) },
    ],
    series: [{}, ...lines.map((line) => series(uPlot, line, colors))],
    hooks: {
      setCursor: [(made) => newest.current.onIndex(made.cursor.idx ?? null)],
      draw: [(made) => drawMarks(made, newest.current, colors)],
    },
  };
}

function series(uPlot, line, colors) {
  const color = colors[line.color];
  return {
    label: line.label,
    stroke: color,
    width: line.filled ? 1 : 2,
    dash: line.dashed ? [6, 5] : undefined,
    fill: line.bars || line.filled ? color : line.area ? `${color}22` : undefined,
    paths: line.bars ? uPlot.paths.bars({ size: [0.7, 48] }) : line.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
    points: { show: false, size: 5, fill: color, filter: (made, at) => lonePoints(made.data[at]) },
    spanGaps: false,
  };
}

/** Where a value has no neighbour: no line goes there, so it is drawn as a point. */
const lonePoints = (values) => [...values.keys()].filter((at) => values[at] != null && values[at - 1] == null && values[at + 1] == null);

function pick(made, { onPick }) {
  if (onPick && made.cursor.idx !== null && made.cursor.idx !== undefined) onPick(made.cursor.idx);
}

function drawMarks(made, { marks, x }, colors) {
  const { ctx, bbox } = made;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  const areDense = marks.length * PIXELS_PER_MARK * devicePixelRatio > bbox.width;
  for (const mark of marks) {
    const left = Math.round(made.valToPos(x[mark.index], "x", true));
    ctx.strokeStyle = colors[mark.color];
    ctx.fillStyle = colors[mark.color];
    ctx.globalAlpha = 0.6;
    ctx.beginPath();
    ctx.moveTo(left, bbox.top);
    ctx.lineTo(left, bbox.top + (areDense ? 0 : bbox.height));
    ctx.stroke();
    ctx.globalAlpha = 1;
    ctx.beginPath();
    ctx.arc(left, bbox.top, 3 * devicePixelRatio, 0, 2 * Math.PI);
    ctx.fill();
  }
  ctx.restore();
}

function Table({ label, x, xLabel, lines, columns = [], formatX = String }) {
  const [page, setPage] = useState(0);
  const pages = Math.max(1, Math.ceil(x.length / TABLE_ROWS));
  const at = Math.min(page, pages - 1);
  const rows = Array.from({ length: Math.min(TABLE_ROWS, x.length - at * TABLE_ROWS) }, (_, row) => at * TABLE_ROWS + row);
  return html`<div class="chart-table">
    <div class="scroll-x" tabindex="0" role="region" aria-label="Table: ${label}">
      <table class="data">
        <thead><tr>
          <th scope="col">${xLabel}</th>
          ${lines.map((line) => html`<th scope="col" class="number">${line.label}</th>`)}
          ${columns.map((column) => html`<th scope="col">${column.label}</th>`)}
        </tr></thead>
        <tbody>${rows.map((row) => html`<tr key=${row}>
          <th scope="row">${formatX(x[row])}</th>
          ${lines.map((line) => html`<td class="number">${(line.format ?? count)((line.told ?? line.values)[row])}</td>`)}
          ${columns.map((column) => html`<td>${column.value(row)}</td>`)}
        </tr>`)}</tbody>
      </table>
    </div>
    ${pages > 1 && html`<div class="row"><${Button} small disabled=${at === 0} onClick=${() => setPage(at - 1)}>Earlier rows<//>
      <span class="small" aria-live="polite">Rows ${count(at * TABLE_ROWS + 1)} to ${count(at * TABLE_ROWS + rows.length)} of ${count(x.length)}</span>
      <${Button} small disabled=${at === pages - 1} onClick=${() => setPage(at + 1)}>Later rows<//></div>`}
  </div>`;
}

let library = null;

/** uPlot, fetched when the first chart is shown. */
function useLibrary() {
  const [loaded, setLoaded] = useState(() => library);
  useEffect(() => {
    let left = false;
    import("../../vendor/uplot.js").then((module) => {
      library = { uPlot: module.default };
      if (!left) setLoaded(library);
    });
    return () => { left = true; };
  }, []);
  return loaded?.uPlot ?? null;
}

const NAMES = ["--ink", "--ink-soft", "--chart-grid", "--chart-1", "--chart-2", "--chart-3", "--chart-4", "--chart-5", "--gone"];

/** The theme's colours, read anew when the theme changes. */
function useColors() {
  const [colors, setColors] = useState(readColors);
  useEffect(() => {
    const follow = () => setColors(readColors());
    const system = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("themechange", follow);
    system.addEventListener("change", follow);
    return () => {
      removeEventListener("themechange", follow);
      system.removeEventListener("change", follow);
    };
  }, []);
  return colors;
}

function readColors() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(name).trim()]));
}

const widthOf = (element) => Math.max(200, element.clientWidth);
