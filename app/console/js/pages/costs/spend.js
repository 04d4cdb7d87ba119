// What was spent on each day: a bar, split by who or what cost most.
import { html, useMemo } from "../../lib.js";
import { dollars } from "../../format.js";
import { Chart } from "../../ui/chart.js";

const SHOWN = 4;
const COLORS = ["--chart-1", "--chart-2", "--chart-3", "--chart-4", "--chart-5"];
const DAY_SECONDS = 86_400;
const dayName = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", timeZone: "UTC" });

/**
 * @param {object} props
 * @param {object} props.of  `since`, sums as `data`, of each day as `days`, and of both as `daily`
 * @param {(row: object) => string} props.nameOf
 */
export function Spend({ of: { since, data, days, daily }, nameOf }) {
  const dates = useMemo(() => datesSince(since), [since]);
  const lines = useMemo(() => stacked(dates, data, days, daily, nameOf), [dates, data, days, daily]);
  const name = (at) => (dates[at] ? dayName.format(new Date(dates[at])) : "");
  return html`<section class="panel"><h2>Spent by day</h2><${Chart} label="What was spent on each day" x=${dates.map((_, at) => at)} xLabel="Day" lines=${lines} height=${220}
    least=${0.001} formatX=${name} formatTick=${name} formatY=${dollars} /></section>`;
}

/** The days from a moment until today, such as `2026-11-03`. */
function datesSince(since) {
  const count = Math.floor(Date.now() / 1000 / DAY_SECONDS) - Math.floor(since / DAY_SECONDS) + 1;
  return Array.from({ length: count }, (_, at) => new Date((since + at * DAY_SECONDS) * 1000).toISOString().slice(0, 10));
}

/** Lines over each other: those that cost most, then all others, so that the highest reaches what was spent in all. */
function stacked(dates, data, days, daily, nameOf) {
  const idOf = (row) => JSON.stringify([row.tenant, row.key_id, row.model]);
  const costs = new Map();
  for (const row of daily) costs.set(`${idOf(row)} ${row.day}`, row.cost_usd ?? 0);
  const totals = new Map(days.map((row) => [row.day, row.cost_usd ?? 0]));
  const chosen = data.slice(0, SHOWN).map((row) => ({ label: nameOf(row), told: dates.map((date) => costs.get(`${idOf(row)} ${date}`) ?? 0) }));
  const rest = dates.map((date, at) => Math.max(0, (totals.get(date) ?? 0) - chosen.reduce((sum, one) => sum + one.told[at], 0)));
  if (data.length > SHOWN) chosen.push({ label: "all others", told: rest });
  return chosen.map((one, number) => ({
    ...one,
    label: chosen.findIndex((other) => other.label === one.label) === number ? one.label : `${one.label} (${number + 1})`,
    values: dates.map((_, at) => chosen.slice(number).reduce((sum, other) => sum + other.told[at], 0)),
    color: COLORS[number],
    bars: true,
    format: dollars,
  }));
}
