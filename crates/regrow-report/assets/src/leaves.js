// The table of all leaves, and what is known of the one that is chosen.

import { axis, chart, tooltip } from "./charts.js";
import { byId, el, facts, fill } from "./dom.js";
import { everyRow, ranks, Table } from "./table.js";
import { bytes, counted, integer, number, percent, printable, shorten } from "./text.js";
import { color } from "./theme.js";

// As the states are numbered in the page's column.
export const STATES = [
  { sign: "✓", word: "verified", title: "All bytes were read, and their checksums are right." },
  { sign: "✕", word: "damaged", title: "Its bytes are not what was written, or cannot be read." },
  { sign: "–", word: "not read", title: "Not all of its bytes were read." },
  { sign: "○", word: "unprotected", title: "Nothing protects its bytes: damage could go unseen." },
];
export const DAMAGED = 1;

const TYPING_PAUSE_MS = 120;
const NONE = 0xffffffff;

/** A key path as elements: each key isolated, so that its writing direction is its own affair. */
export function keyPath(keys, node) {
  const trail = keys.trail(node);
  const box = el("span", { class: "path" });
  if (trail.length === 0) box.append(el("bdi", { text: "." }));
  trail.forEach((at, depth) => {
    if (depth) box.append(el("span", { class: "slash", text: "/" }));
    const isLast = depth === trail.length - 1;
    box.append(el("bdi", { class: isLast ? "last" : "", text: shorten(keys.label(at), 120) }));
  });
  return box;
}

export function stateBadge(state) {
  const { sign, word, title } = STATES[state];
  return el("span", { class: `state state-${state}`, title }, el("span", { class: "sign", "aria-hidden": "true", text: sign }), ` ${word}`);
}

export class LeafTable {
  /** `leaves` has the columns, `statistics` those of numbers or nothing. */
  constructor({ keys, leaves, statistics, columns, report }) {
    Object.assign(this, { keys, leaves, statistics, columns, report });
    this.count = keys.node.length;
    this.table = new Table(byId("leaf-table"), {
      label: "Leaves",
      count: this.count,
      columns: this.#tableColumns(),
      sorted: { id: "bytes", isFalling: true },
      onSelect: (row) => this.#detail(row),
    });
    this.search = byId("leaf-search");
    this.filter = byId("leaf-filter");
    for (const [value, { title, where }] of Object.entries(this.#filters())) {
      if (where) this.filter.append(el("option", { value, text: title }));
    }
    let pause;
    this.search.addEventListener("input", () => {
      clearTimeout(pause);
      pause = setTimeout(() => this.apply(), TYPING_PAUSE_MS);
    });
    this.filter.addEventListener("change", () => this.apply());
    this.#tell(this.count);
  }

  /** Chooses a leaf, wherever it is: the search is emptied if it hides it. */
  async choose(row) {
    let at = this.table.rows.indexOf(row);
    if (at < 0 || at >= this.table.virtualizer.options.count) {
      this.search.value = this.keys.rowPath(row).includes("\\u") ? "" : this.keys.rowPath(row).replaceAll(" ", "/");
      this.filter.value = "all";
      await this.apply();
      at = this.table.rows.indexOf(row);
      if (at < 0) {
        this.search.value = "";
        await this.apply();
        at = this.table.rows.indexOf(row);
      }
    }
    byId("leaves").scrollIntoView();
    this.table.select(at);
    this.table.scroller.focus({ preventScroll: true });
  }

  /** Shows what the search and the filter leave. */
  async apply() {
    const { where } = this.#filters()[this.filter.value] ?? {};
    const search = this.search.value.trim();
    let rows = everyRow(this.count);
    if (where) rows = rows.filter(where);
    if (search) rows = rows.filter(this.keys.matcher(search));
    await this.table.show(rows);
    this.#tell(rows.length);
  }

  #tell(count) {
    const all = counted(this.count, "leaf", "leaves");
    byId("leaf-count").textContent = count === this.count ? all : `${integer(count)} of ${all}`;
  }

  #filters() {
    const { statistics, leaves } = this;
    const isZero = (row) => statistics.count[row] > 0 && statistics.zero_count[row] === statistics.count[row];
    return {
      all: { title: "All leaves", where: () => true },
      damaged: { title: "Damaged", where: (row) => leaves.state[row] === DAMAGED },
      unprotected: { title: "Nothing protects them", where: (row) => leaves.checksum.index[row] === leaves.checksum.empty && leaves.bytes[row] > 0 },
      nan: { title: "With NaN or infinity", where: statistics && ((row) => statistics.nan_count[row] + statistics.infinity_count[row] > 0) },
      zero: { title: "All zeros", where: statistics && isZero },
    };
  }

  #word(column) {
    const { values, index } = this.leaves[column];
    return (row) => printable(values[index[row]]);
  }

  #tableColumns() {
    const { leaves, statistics } = this;
    const words = (id, title, width) => ({
      id, title, width, cell: this.#word(id), keys: () => ranks(leaves[id].values, leaves[id].index),
    });
    const numbers = (id, title, width, values, write) => ({
      id, title, width, numeric: true, cell: (row) => write(values[row]), keys: values,
    });
    const columns = [
      { id: "path", title: "Key path", width: 15, grows: true, cell: (row) => keyPath(this.keys, this.keys.node[row]), keys: () => everyRow(this.count) },
      words("dtype", "dtype", 6),
      words("shape", "Shape", 8),
      numbers("bytes", "Bytes", 5.8, leaves.bytes, bytes),
      { id: "state", title: "Data", width: 8, cell: (row) => stateBadge(leaves.state[row]), keys: leaves.state },
    ];
    if (!statistics) return columns;
    return [
      ...columns,
      numbers("l2_norm", "L2 norm", 6.3, statistics.l2_norm, number),
      numbers("min", "Min", 6.3, statistics.min, number),
      numbers("max", "Max", 6.3, statistics.max, number),
      numbers("mean", "Mean", 6.3, statistics.mean, number),
      numbers("nan_count", "NaN", 4.2, statistics.nan_count, (count) => (count ? integer(count) : "")),
      numbers("infinity_count", "∞", 4.2, statistics.infinity_count, (count) => (count ? integer(count) : "")),
    ];
  }

  async #detail(row) {
    const { leaves, statistics } = this;
    const looked = statistics?.count[row] ?? 0;
    const elements = leaves.elements[row];
    const sharding = leaves.sharding[row];
    const of = (count) => (count ? `${integer(count)} (${percent(count, looked)})` : "0");
    const value = (name) => (statistics ? number(statistics[name][row]) : undefined);
    const finding = this.report.findings.filter(({ leaf }) => leaf === row);
    const known = facts([
      ["Kind", this.#word("kind")(row)],
      ["dtype", this.#word("dtype")(row)],
      ["Shape", this.#word("shape")(row)],
      ["Elements", elements ? integer(elements) : ""],
      ["Bytes", bytes(leaves.bytes[row])],
      ["Coding", this.#word("coding")(row)],
      ["Chunks", leaves.chunk_count[row] > 1 ? `${integer(leaves.chunk_count[row])} of ${this.#word("chunk_shape")(row)}` : "one piece"],
      ["Checksum", this.#word("checksum")(row) || "none"],
      ["Data", stateBadge(leaves.state[row])],
      ["File", this.#word("file")(row)],
      ["On devices", sharding === NONE ? "" : printable(this.report.shardings[sharding]?.words ?? "")],
    ]);
    const numbers = facts([
      ["Min", value("min")],
      ["Max", value("max")],
      ["Mean", value("mean")],
      ["Std. deviation", value("standard_deviation")],
      ["L2 norm", value("l2_norm")],
      ["Zeros", looked && of(statistics.zero_count[row])],
      ["NaN", looked && of(statistics.nan_count[row])],
      ["Infinite", looked && of(statistics.infinity_count[row])],
    ]);
    const sampled = looked < elements ? `Numbers of ${integer(looked)} sampled elements` : "Numbers";
    const distribution = el("div");
    fill(
      byId("leaf-detail"),
      el("h3", {}, keyPath(this.keys, this.keys.node[row])),
      ...finding.map(({ what }) => el("p", { class: "wrong", text: `✕ ${printable(what)}` })),
      el(
        "div",
        { class: "detail-columns" },
        el("div", {}, el("h4", { text: "Stored as" }), known),
        looked ? el("div", {}, el("h4", { text: sampled }), numbers) : undefined,
        distribution,
      ),
    );
    if (looked) await this.#histogram(row, distribution);
  }

  async #histogram(row, box) {
    const at = await this.columns.all("histograms", ["first", "lower", "upper", "count"]);
    const [from, to] = [at.first[row], at.first[row + 1]];
    if (!(to > from)) {
      const hasNumbers = !Number.isNaN(this.statistics.min[row]);
      if (hasNumbers) fill(box, el("p", { class: "quiet", text: "Of a large tree only the largest leaves have a histogram." }));
      return;
    }
    const bins = Array.from({ length: to - from }, (_, bin) => ({
      lower: at.lower[from + bin], upper: at.upper[from + bin], count: at.count[from + bin],
    }));
    const host = el("div", { class: "histogram" });
    fill(box, el("h4", { text: "Distribution" }), host);
    const range = ({ lower, upper }) => (lower === upper ? number(lower) : `${number(lower)} to ${number(upper)}`);
    const most = bins.reduce((a, b) => (b.count > a.count ? b : a));
    chart(host, `Histogram with ${bins.length} bins; most elements, ${integer(most.count)}, are in ${range(most)}.`, () => ({
      tooltip: { trigger: "axis", axisPointer: { type: "shadow" }, ...tooltip(([{ dataIndex }]) => [range(bins[dataIndex]), counted(bins[dataIndex].count, "element", "elements")]) },
      grid: { left: 8, right: 8, top: 8, bottom: 24 },
      xAxis: axis({
        type: "category",
        data: bins.map(({ lower }) => number(lower)),
        axisLabel: { hideOverlap: true, showMaxLabel: true, alignMinLabel: "left", alignMaxLabel: "right" },
        splitLine: { show: false },
      }),
      yAxis: axis({ type: "value", axisLabel: { show: false }, splitLine: { show: false } }),
      series: [{ type: "bar", data: bins.map(({ count }) => count), barCategoryGap: "8%", itemStyle: { color: color("accent") } }],
    }));
  }
}
