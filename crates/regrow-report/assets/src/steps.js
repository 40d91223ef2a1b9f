// A folder of steps over time: norms, sizes, times, metrics; and all of it as a table.

import { axis, chart, tooltip } from "./charts.js";
import { byId, el } from "./dom.js";
import { everyRow, Table } from "./table.js";
import { bytes, integer, number, printable, shorten, time } from "./text.js";
import { color, palette } from "./theme.js";

const METRICS_CHARTED = 12;
const METRICS_IN_TABLE = 6;
const NORMS_MAX = 12;

// Lines are told apart by their marks and dashes, too.
const MARKS = ["circle", "rect", "triangle", "diamond", "emptyCircle", "emptyRect", "emptyTriangle", "emptyDiamond"];
const DASHES = ["solid", "dashed", "dotted"];

/** Lines over steps. Each line is `{ name, values }`. */
function lines(host, title, steps, series, write, fromZero = false) {
  const box = el("div");
  host.append(el("figure", {}, el("figcaption", { text: title }), box));
  const isMany = series.length > 1;
  const last = (values) => values.findLast((value) => value !== null && value !== undefined);
  const said = series.slice(0, 5).map(({ name, values }) => `${shorten(name, 40)} ends at ${write(last(values))}`);
  chart(box, `${title} over ${steps.length} steps: ${said.join(", ")}.`, () => ({
    tooltip: {
      trigger: "axis",
      ...tooltip((points) => [
        `step ${integer(Number(points[0]?.value[0]))}`,
        ...points.filter(({ value }) => value[1] !== null).map(({ seriesName, value }) => (isMany ? `${shorten(seriesName, 60)}  ${write(value[1])}` : write(value[1]))),
      ]),
    },
    grid: { left: 8, right: isMany ? 150 : 24, top: 12, bottom: 8, containLabel: true },
    xAxis: axis({ type: "value", min: "dataMin", max: "dataMax", splitLine: { show: false }, axisLabel: { formatter: integer, hideOverlap: true, showMaxLabel: true } }),
    yAxis: axis({ type: "value", scale: !fromZero, axisLabel: { formatter: write } }),
    color: palette("line"),
    series: series.map(({ name, values }, at) => ({
      type: "line",
      name: printable(name),
      data: steps.map((step, row) => [step.step, values[row] ?? null]),
      symbol: MARKS[at % MARKS.length],
      symbolSize: 6,
      showSymbol: steps.length <= 60,
      showAllSymbol: true,
      sampling: "lttb",
      lineStyle: { width: 2, type: DASHES[Math.floor(at / 3) % DASHES.length] },
      endLabel: isMany ? { show: true, color: color("text"), fontSize: 12, formatter: () => shorten(printable(name), 20) } : undefined,
      labelLayout: isMany ? { moveOverlap: "shiftY" } : undefined,
    })),
  }));
}

export function showSteps({ steps, norms }) {
  const host = byId("steps-charts");
  const has = (values) => values.some((value) => value !== null && value !== undefined);
  const column = (name) => steps.map((step) => step[name]);
  const known = norms.filter(({ l2_norm }) => has(l2_norm));
  if (steps.length > 1) {
    if (known.length) {
      lines(host, "L2 norm", steps, known.slice(0, NORMS_MAX).map(({ name, l2_norm }) => ({ name, values: l2_norm })), number);
    }
    const names = [...new Set(steps.flatMap(({ metrics }) => Object.keys(metrics)))];
    for (const name of names.slice(0, METRICS_CHARTED)) {
      lines(host, shorten(printable(name), 60), steps, [{ name, values: steps.map(({ metrics }) => metrics[name] ?? null) }], number);
    }
    if (has(column("stored_bytes"))) lines(host, "Bytes of files", steps, [{ name: "bytes", values: column("stored_bytes") }], bytes, true);
    if (has(column("save_seconds"))) {
      lines(host, "Seconds that the save took", steps, [{ name: "seconds", values: column("save_seconds") }], number, true);
    }
  }
  showTable(steps);
}

function showTable(steps) {
  const has = (name) => steps.some((step) => step[name] !== null && step[name] !== undefined);
  const numbers = (id, title, write, width = 8) => ({
    id, title, width, numeric: true,
    cell: (row) => write(steps[row][id]),
    keys: steps.map((step) => step[id] ?? Number.NaN),
  });
  const metrics = [...new Set(steps.flatMap((step) => Object.keys(step.metrics)))].slice(0, METRICS_IN_TABLE);
  const state = ({ is_damaged }) => (is_damaged === null ? "" : is_damaged ? "✕ damaged" : "✓ sound");
  new Table(byId("steps-table"), {
    label: "Steps",
    count: steps.length,
    sorted: { id: "step", isFalling: true },
    columns: [
      numbers("step", "Step", integer, 7),
      ...(has("written_seconds") ? [{ ...numbers("written_seconds", "Written (UTC)", time, 12) }] : []),
      ...(has("stored_bytes") ? [numbers("stored_bytes", "Bytes", bytes)] : []),
      ...(has("save_seconds") ? [numbers("save_seconds", "Save, s", number)] : []),
      ...metrics.map((name) => ({
        id: `metric-${name}`, title: shorten(printable(name), 30), width: 8, numeric: true,
        cell: (row) => number(steps[row].metrics[name]),
        keys: steps.map((step) => step.metrics[name] ?? Number.NaN),
      })),
      ...(has("is_damaged") ? [{ id: "state", title: "Data", width: 7.5, cell: (row) => el("span", { class: steps[row].is_damaged ? "state state-1" : "state", text: state(steps[row]) }), keys: steps.map(({ is_damaged }) => Number(is_damaged)) }] : []),
      ...(steps.some(({ note }) => note) ? [{ id: "note", title: "Note", width: 14, grows: true, cell: (row) => shorten(printable(steps[row].note), 300) }] : []),
    ],
  });
}
