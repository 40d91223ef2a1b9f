// A table of any number of rows: only those in sight are elements. Sorting and filtering move row numbers, not rows.

import { Virtualizer, elementScroll, observeElementOffset, observeElementRect } from "@tanstack/virtual-core";

import { el, fill } from "./dom.js";
import { integer } from "./text.js";

const ROW_HEIGHT = 30;
const HEAD_HEIGHT = 34;
const SCROLL_BAR_HEIGHT = 18;
const HEIGHT_MAX = 400;

// Firefox shows no element that is higher than 17.8 million pixels.
const ROWS_MAX = 550_000;

const PRINTED_MAX = 100;

/** Row numbers from 0 on. */
export const everyRow = (count) => Uint32Array.from({ length: count }, (_, row) => row);

/** For each index the place of its text among all texts, to sort by. */
export function ranks(values, index) {
  const order = values.map((_, at) => at).sort((a, b) => (values[a] < values[b] ? -1 : values[a] > values[b] ? 1 : 0));
  const rank = new Uint32Array(values.length);
  order.forEach((at, place) => {
    rank[at] = place;
  });
  return index.map((at) => rank[at]);
}

/**
 * Columns are `{ id, title, width, grows, numeric, cell(row), keys }`: `width` is in rem, at least if it `grows`; `cell` gives
 * a text or a node, `keys` the numbers to sort by (an array over rows, or a function that makes one). NaN stands for what is
 * not known and comes last.
 */
export class Table {
  constructor(host, { label, count, columns, sorted, onSelect }) {
    this.columns = columns;
    this.onSelect = onSelect;
    this.filtered = everyRow(count);
    this.rows = this.filtered;
    this.sorted = sorted;
    this.active = -1;
    this.id = host.id;
    const template = columns.map(({ width, grows }) => (grows ? `minmax(${width}rem, 1fr)` : `${width}rem`)).join(" ");
    const least = columns.reduce((sum, { width }) => sum + width, 0);
    this.head = el("div", { class: "row head", role: "row", "aria-rowindex": 1 });
    for (const column of columns) this.head.append(this.#headCell(column));
    this.body = el("div", { class: "rows", role: "rowgroup" });
    this.scroller = el(
      "div",
      {
        class: "scroller",
        role: "grid",
        tabindex: 0,
        "aria-label": label,
        "aria-colcount": columns.length,
        style: `--columns: ${template}; --least: ${least}rem`,
        on: { keydown: (event) => this.#onKey(event), click: (event) => this.#onClick(event) },
      },
      el("div", { class: "grid-head", role: "rowgroup" }, this.head),
      this.body,
    );
    this.note = el("p", { class: "quiet", "aria-live": "polite" });
    fill(host, this.scroller, this.note);
    this.ready = this.#arrange();
    addEventListener("beforeprint", () => this.#print());
    addEventListener("afterprint", () => this.#draw());
  }

  /** Shows these rows alone, sorted as before. */
  async show(rows) {
    this.filtered = rows;
    await this.#arrange();
  }

  #headCell(column) {
    const cell = el("div", { role: "columnheader", class: column.numeric ? "cell numeric" : "cell" });
    if (!column.keys) {
      cell.append(el("span", { text: column.title }));
      return cell;
    }
    const button = el("button", {
      type: "button",
      "data-sort": column.id,
      title: `Sort by ${column.title}`,
      on: { click: () => this.sortBy(column.id) },
    });
    button.append(el("span", { text: column.title }), el("span", { class: "arrow", "aria-hidden": "true" }));
    cell.append(button);
    return cell;
  }

  /** Sorts by a column; the second time the other way round. */
  async sortBy(id) {
    const column = this.columns.find((column) => column.id === id);
    const again = this.sorted?.id === id;
    this.sorted = { id, isFalling: again ? !this.sorted.isFalling : Boolean(column.numeric) };
    await this.#arrange();
  }

  async #arrange() {
    const asked = (this.asked = Symbol("arrangement"));
    const column = this.columns.find((column) => column.id === this.sorted?.id);
    const keys = await (typeof column?.keys === "function" ? column.keys() : column?.keys);
    if (this.asked !== asked) return;
    this.rows = keys ? this.#sort(this.filtered.slice(), keys, this.sorted.isFalling) : this.filtered;
    [...this.head.children].forEach((cell, at) => {
      const isSorted = this.columns[at].id === this.sorted?.id;
      const way = isSorted ? (this.sorted.isFalling ? "descending" : "ascending") : "none";
      if (this.columns[at].keys) cell.setAttribute("aria-sort", way);
    });
    this.active = -1;
    this.scroller.removeAttribute("aria-activedescendant");
    this.scroller.setAttribute("aria-rowcount", this.rows.length + 1);
    const shown = Math.min(this.rows.length, ROWS_MAX);
    this.note.textContent =
      this.rows.length === 0
        ? "No row matches."
        : shown < this.rows.length
          ? `The first ${integer(shown)} of ${integer(this.rows.length)} rows: search, or sort the other way, for the rest.`
          : "";
    this.#virtualize(shown);
  }

  #sort(rows, keys, isFalling) {
    const way = isFalling ? -1 : 1;
    // Rows that are alike stay in order.
    return rows.sort((a, b) => {
      const [x, y] = [keys[a], keys[b]];
      if (x === y) return a - b;
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a - b;
      return x < y ? -way : way;
    });
  }

  #virtualize(count) {
    this.stop?.();
    this.scroller.scrollTop = 0;
    this.scroller.style.height = `${Math.min(HEIGHT_MAX, HEAD_HEIGHT + SCROLL_BAR_HEIGHT + count * ROW_HEIGHT)}px`;
    this.virtualizer = new Virtualizer({
      count,
      getScrollElement: () => this.scroller,
      estimateSize: () => ROW_HEIGHT,
      overscan: 12,
      scrollToFn: elementScroll,
      observeElementRect,
      observeElementOffset,
      // The head stays above the rows, the scroll bar below them.
      scrollMargin: HEAD_HEIGHT,
      scrollPaddingStart: HEAD_HEIGHT,
      scrollPaddingEnd: SCROLL_BAR_HEIGHT,
      onChange: () => this.#draw(),
    });
    this.stop = this.virtualizer._didMount();
    this.virtualizer._willUpdate();
    this.#draw();
  }

  #draw() {
    this.body.style.height = `${this.virtualizer.getTotalSize()}px`;
    fill(this.body, ...this.virtualizer.getVirtualItems().map(({ index, start }) => this.#row(index, start - HEAD_HEIGHT)));
  }

  /** On paper the first rows are there, one after another. */
  #print() {
    this.body.style.height = "";
    const count = Math.min(this.rows.length, PRINTED_MAX);
    fill(this.body, ...Array.from({ length: count }, (_, index) => this.#row(index)));
    if (count < this.rows.length) {
      this.body.append(el("p", { class: "quiet", text: `and ${integer(this.rows.length - count)} more` }));
    }
  }

  #row(index, start) {
    const row = this.rows[index];
    const element = el("div", {
      class: index === this.active ? "row active" : "row",
      role: "row",
      id: `${this.id}-row-${index}`,
      "aria-rowindex": index + 2,
      "aria-selected": index === this.active ? "true" : "false",
      "data-index": index,
      style: start === undefined ? undefined : `transform: translateY(${start}px)`,
    });
    for (const column of this.columns) {
      const cell = el("div", { role: "gridcell", class: column.numeric ? "cell numeric" : "cell" });
      cell.append(column.cell(row));
      element.append(cell);
    }
    return element;
  }

  /** Makes a row the active one, and brings it into sight. */
  select(index, { open = true } = {}) {
    if (!(index >= 0 && index < this.virtualizer.options.count)) return;
    this.active = index;
    this.virtualizer.scrollToIndex(index, { align: "auto" });
    this.#draw();
    this.scroller.setAttribute("aria-activedescendant", `${this.id}-row-${index}`);
    if (open) this.onSelect?.(this.rows[index]);
  }

  #onClick(event) {
    const index = event.target.closest("[data-index]")?.dataset.index;
    if (index !== undefined) this.select(Number(index));
  }

  #onKey(event) {
    if (event.target !== this.scroller) return;
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / ROW_HEIGHT) - 2);
    const last = this.virtualizer.options.count - 1;
    const moves = {
      ArrowDown: this.active + 1,
      ArrowUp: Math.max(0, this.active - 1),
      PageDown: this.active + page,
      PageUp: this.active - page,
      Home: 0,
      End: last,
    };
    if (event.key in moves) {
      event.preventDefault();
      this.select(Math.min(last, Math.max(0, moves[event.key])));
    }
  }
}
