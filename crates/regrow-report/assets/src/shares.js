// Bytes by dtype, by coding, by file and by what vouches for them: bars, the largest first.

import { axis, chart, tooltip } from "./charts.js";
import { bytes, counted, percent, printable, shorten } from "./text.js";
import { color } from "./theme.js";

const BARS_MAX = 10;
const BAR_HEIGHT = 28;

/** Bytes and leaves of each value of a column of words. */
export function shares({ values, index }, sizes, nameless) {
  const parts = values.map((value) => ({ name: printable(value) || nameless, bytes: 0, leaves: 0 }));
  index.forEach((at, row) => {
    parts[at].bytes += sizes[row];
    parts[at].leaves += 1;
  });
  const sorted = parts.filter(({ leaves }) => leaves > 0).sort((a, b) => b.bytes - a.bytes || b.leaves - a.leaves);
  if (sorted.length <= BARS_MAX) return sorted;
  const rest = sorted.slice(BARS_MAX - 1);
  const sum = (name) => rest.reduce((sum, part) => sum + part[name], 0);
  return [...sorted.slice(0, BARS_MAX - 1), { name: `${rest.length} others`, bytes: sum("bytes"), leaves: sum("leaves") }];
}

/** A bar for each part. */
export function showShares(host, title, parts) {
  const all = parts.reduce((sum, part) => sum + part.bytes, 0);
  host.style.height = `${parts.length * BAR_HEIGHT + 8}px`;
  const said = parts.map(({ name, bytes: size }) => `${shorten(name, 40)} ${bytes(size)}`);
  const value = (at) => `${bytes(parts[at].bytes)}  ${percent(parts[at].bytes, all)}`;
  chart(host, `${title}: ${said.join(", ")}.`, () => ({
    tooltip: tooltip(({ dataIndex: at }) => [parts[at].name, value(at), counted(parts[at].leaves, "leaf", "leaves")]),
    grid: { left: 4, right: 130, top: 4, bottom: 4, containLabel: true },
    xAxis: axis({ type: "value", show: false }),
    yAxis: axis({
      type: "category",
      inverse: true,
      data: parts.map(({ name }) => name),
      axisLine: { show: false },
      axisLabel: { color: color("text"), formatter: (name) => shorten(name, 34), fontSize: 12.5 },
    }),
    series: [
      {
        type: "bar",
        data: parts.map(({ bytes: size }) => size),
        barWidth: 14,
        itemStyle: { color: color("accent"), borderRadius: 2 },
        label: { show: true, position: "right", color: color("muted"), fontSize: 12, formatter: ({ dataIndex }) => value(dataIndex) },
      },
    ],
  }));
}
