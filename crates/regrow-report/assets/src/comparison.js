// What differs from another checkpoint: how many leaves, the worst of them as a chart, all of them as a table.

import { axis, chart, tooltip } from "./charts.js";
import { byId, el } from "./dom.js";
import { keyPath } from "./leaves.js";
import { Keys } from "./keys.js";
import { everyRow, ranks, Table } from "./table.js";
import { integer, number, percent, printable, shorten } from "./text.js";
import { color } from "./theme.js";

const BARS_MAX = 15;

// A difference and what it means.
const STATUS = {
  values: "the values differ",
  within: "within the tolerance",
  equal: "the same bits",
  dtype: "the dtypes differ",
  kind: "the kinds differ",
  shape: "the shapes differ",
  only_a: "only here",
  only_b: "only in the other one",
  unread: "could not be read",
};

const COLUMNS = [
  "names", "name", "parent", "node", "status.values", "status.index", "form_a.values", "form_a.index", "form_b.values",
  "form_b.index", "count", "differing_count", "max_abs", "max_relative", "max_ulp", "cosine",
];

export async function showComparison(position, columns) {
  const at = await columns.all(`comparison${position}`, COLUMNS);
  const keys = new Keys(at);
  const count = at.node.length;
  if (count === 0) return;
  showWorst(byId(`comparison-${position}-chart`), keys, at);
  const status = (row) => at["status.values"][at["status.index"][row]];
  const form = (side) => (row) => printable(at[`form_${side}.values`][at[`form_${side}.index`][row]]);
  const forms = (row) => (form("a")(row) === form("b")(row) ? form("a")(row) : `${form("a")(row) || "–"} → ${form("b")(row) || "–"}`);
  const measure = (id, title, width = 7) => ({
    id, title, width, numeric: true, cell: (row) => number(at[id][row]), keys: at[id],
  });
  new Table(byId(`comparison-${position}-table`), {
    label: "Leaves that differ",
    count,
    sorted: undefined,
    columns: [
      { id: "path", title: "Key path", width: 14, grows: true, cell: (row) => keyPath(keys, keys.node[row]), keys: () => everyRow(count) },
      {
        id: "status", title: "Difference", width: 9.8,
        cell: (row) => el("span", { title: status(row), text: STATUS[status(row)] ?? printable(status(row)) }),
        keys: () => ranks(at["status.values"], at["status.index"]),
      },
      { id: "form", title: "dtype, shape", width: 11, cell: forms },
      {
        id: "differing_count", title: "Elements", width: 9.5, numeric: true, keys: at.differing_count,
        cell: (row) => (at.count[row] ? `${integer(at.differing_count[row])} (${percent(at.differing_count[row], at.count[row])})` : ""),
      },
      measure("max_abs", "Max. abs."),
      measure("max_relative", "Max. rel."),
      measure("max_ulp", "Max. ULP"),
      measure("cosine", "Cosine", 5.6),
    ],
  });
}

/** The largest distances on a logarithmic axis. */
function showWorst(host, keys, { max_abs: distance, max_relative: relative }) {
  const rows = everyRow(distance.length).filter((row) => distance[row] > 0 && Number.isFinite(distance[row]));
  const worst = Array.from(rows.sort((a, b) => distance[b] - distance[a]).subarray(0, BARS_MAX));
  if (worst.length < 2) {
    host.remove();
    return;
  }
  host.style.height = `${worst.length * 26 + 44}px`;
  const names = worst.map((row) => keys.rowPath(row));
  const least = 10 ** Math.floor(Math.log10(Math.min(...worst.map((row) => distance[row]))) - 0.3);
  const label = worst.map((row, at) => `${shorten(names[at], 60)} ${number(distance[row])}`).join(", ");
  chart(host, `Largest absolute distances: ${label}.`, () => ({
    tooltip: tooltip(({ dataIndex: at }) => [
      shorten(names[at], 160), `max. abs. ${number(distance[worst[at]])}`, `max. relative ${number(relative[worst[at]])}`,
    ]),
    grid: { left: 4, right: 70, top: 4, bottom: 36, containLabel: true },
    xAxis: axis({
      type: "log", min: least, startValue: least, name: "max. abs. distance", nameLocation: "middle", nameGap: 24,
      axisLabel: { formatter: (value) => value.toExponential(0).replace("e+", "e") },
    }),
    yAxis: axis({
      type: "category", inverse: true, data: names, axisLine: { show: false },
      axisLabel: { color: color("text"), formatter: (name) => shorten(name, 44), fontSize: 12 },
    }),
    series: [
      {
        type: "bar", data: worst.map((row) => distance[row]), barWidth: 12, itemStyle: { color: color("accent"), borderRadius: 2 },
        label: { show: true, position: "right", color: color("muted"), fontSize: 12, formatter: ({ value }) => number(value) },
      },
    ],
  }));
}
