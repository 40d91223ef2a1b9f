// Where the bytes are: a treemap of the key paths below one node, and the same as a list of buttons.

import { chart, tooltip } from "./charts.js";
import { byId, el, fill } from "./dom.js";
import { bytes, counted, integer, percent, shorten } from "./text.js";
import { color, palette } from "./theme.js";

// Cells of each level; what is smaller than a share of the whole goes into "others".
const LEVELS = [40, 24, 16];

// A part shows what is inside it if its area, in pixels, has room for that.
const AREA_MIN = 9000;
const SHARE_MIN = 0.002;

const LISTED = 11;

// A node of the treemap is a node of the tree, or the children of one that were too small, from the `from`th on.
const whole = (node) => ({ node, from: 0 });

export class Treemap {
  /** `sizes` has the bytes and `counts` the leaves below each node; `onLeaf` is called with the row of a leaf. */
  constructor({ keys, sizes, counts, marks, onLeaf }) {
    Object.assign(this, { keys, sizes, counts, marks, onLeaf });
    this.children = keys.children();
    this.rowOf = keys.rows();
    this.sorted = new Map();
    this.trail = [whole(0)];
    const first = this.#end(this.at);
    if (first.node !== 0) this.trail.push(first);
    this.host = byId("treemap-chart");
    this.chart = chart(this.host, this.#label(), () => this.#option());
    this.chart.made.on("click", ({ data }) => data?.target && this.#go(data.target));
    byId("treemap").addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.trail.length > 1) this.#back(this.trail.length - 2);
    });
    this.#show();
  }

  get at() {
    return this.trail[this.trail.length - 1];
  }

  /** Children by falling size. */
  #below({ node, from }) {
    if (!this.sorted.has(node)) {
      const { first, list } = this.children;
      const below = list.slice(first[node], first[node + 1]);
      this.sorted.set(node, below.sort((a, b) => this.sizes[b] - this.sizes[a] || a - b));
    }
    return this.sorted.get(node).subarray(from);
  }

  #isLeaf(node) {
    return this.children.first[node] === this.children.first[node + 1];
  }

  #size(target) {
    return target.from === 0 ? this.sizes[target.node] : this.#below(target).reduce((sum, node) => sum + this.sizes[node], 0);
  }

  #count(target) {
    return target.from === 0 ? this.counts[target.node] : this.#below(target).reduce((sum, node) => sum + this.counts[node], 0);
  }

  /** The parts of a target: nodes, and at the end the others if there are any. */
  #parts(target, limit, least) {
    const below = this.#below(target);
    let count = 0;
    while (count < below.length && count < limit && (this.sizes[below[count]] >= least || count === 0)) count += 1;
    // One that is left over is no "others".
    if (count === below.length - 1) count += 1;
    const parts = Array.from(below.subarray(0, count), (node) => this.#end(whole(node)));
    if (count < below.length) parts.push({ node: target.node, from: target.from + count });
    return parts;
  }

  /** Its name below `above`, an ancestor; without one, its last key. */
  #name(target, above) {
    if (target.from > 0) return `${integer(this.#below(target).length)} others`;
    const trail = this.keys.trail(target.node);
    const from = above === undefined ? trail.length - 1 : trail.indexOf(above) + 1;
    return trail.slice(Math.max(0, from)).map((node) => this.keys.label(node)).join("/") || ".";
  }

  /** Down to where a node has more than one child: a chain of single keys is one step. */
  #end(target) {
    let at = target;
    while (at.from === 0) {
      const below = this.#below(at);
      if (below.length !== 1 || this.#isLeaf(below[0])) break;
      at = whole(below[0]);
    }
    return at;
  }

  #label() {
    const size = this.#size(this.at);
    const largest = this.#parts(this.at, 5, 0).filter(({ from }) => from === 0 || from === this.at.from);
    const said = largest.map((part) => `${shorten(this.#name(part, this.at.node), 40)} ${bytes(this.#size(part))}`);
    return `Treemap of ${shorten(this.keys.path(this.at.node), 80)}: ${bytes(size)}. Largest: ${said.join(", ")}.`;
  }

  /** A cell and those inside it. */
  #cell(target, above, depth, least, tint) {
    const cell = {
      name: this.#name(target, above),
      value: this.#size(target),
      target,
      // The border is the ground of what is inside.
      itemStyle: { color: tint, borderColor: color("soft") },
    };
    const isOpen = target.from === 0 && !this.#isLeaf(target.node) && depth < LEVELS.length;
    if (isOpen) {
      const parts = this.#parts(target, LEVELS[depth], least).filter((part) => this.#size(part) > 0);
      cell.children = parts.map((part) => this.#cell(part, target.node, depth + 1, least, tint));
    }
    // Not by colour alone: a pattern and a sign as well.
    if (this.marks?.[target.node] > 0 && target.from === 0 && !isOpen) {
      cell.name = `✕ ${cell.name}`;
      cell.itemStyle.decal = { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 10], rotation: -Math.PI / 4, color: color("bad") };
    }
    return cell;
  }

  #option() {
    const least = this.#size(this.at) * SHARE_MIN;
    const colors = palette();
    const parts = this.#parts(this.at, LEVELS[0], least).filter((part) => this.#size(part) > 0);
    const name = { overflow: "truncate", ellipsis: "…", fontSize: 12 };
    const group = { show: true, height: 20, fontSize: 12, fontWeight: 600, color: color("text"), backgroundColor: "transparent" };
    return {
      tooltip: tooltip(({ data }) => (data?.target ? this.#tip(data.target) : [])),
      series: [
        {
          type: "treemap",
          left: 0, right: 0, top: 0, bottom: 0,
          roam: false,
          nodeClick: false,
          breadcrumb: { show: false },
          data: parts.map((part, at) => this.#cell(part, this.at.node, 1, least, part.from ? color("series-rest") : colors[at % colors.length])),
          label: { ...name, color: color("text"), formatter: ({ name, value }) => `${shorten(name, 60)}\n${bytes(value)}`, lineHeight: 16, padding: [2, 3] },
          upperLabel: { ...name, ...group, formatter: ({ name, value }) => `${shorten(name, 60)}  ${bytes(value)}` },
          childrenVisibleMin: AREA_MIN,
          levels: [
            { upperLabel: { show: false }, itemStyle: { gapWidth: 6, borderWidth: 0, borderColor: color("surface") } },
            { itemStyle: { gapWidth: 4, borderWidth: 3 } },
            { itemStyle: { gapWidth: 2, borderWidth: 2 } },
            { itemStyle: { gapWidth: 1, borderWidth: 1 } },
          ],
          emphasis: { itemStyle: { borderColor: color("accent") }, label: { color: color("text") }, upperLabel: { color: color("text") } },
        },
      ],
    };
  }

  #tip(target) {
    const size = this.#size(target);
    return [
      shorten(target.from ? this.#name(target) : this.keys.path(target.node), 160),
      `${bytes(size)}, ${percent(size, this.sizes[0])} of all`,
      this.#isLeaf(target.node) ? "one leaf" : counted(this.#count(target), "leaf", "leaves"),
    ];
  }

  #go(target) {
    if (target.from === 0 && this.#isLeaf(target.node)) {
      const row = this.rowOf[target.node];
      if (row !== 0xffffffff) this.onLeaf(row);
      return;
    }
    // A cell may be some levels down: the way to it becomes the trail, without single keys.
    const trail = this.keys.trail(target.node);
    const between = trail.slice(trail.indexOf(this.at.node) + 1, target.from ? undefined : -1);
    const hasSiblings = (node) => this.#below(whole(node)).length > 1;
    this.trail.push(...between.filter(hasSiblings).map(whole), target);
    this.#show();
  }

  #back(to) {
    this.trail.length = to + 1;
    this.#show();
    byId("treemap-trail").querySelector("[aria-current]")?.focus();
  }

  #show() {
    fill(byId("treemap-trail"), ...this.#crumbs());
    fill(byId("treemap-list"), ...this.#list());
    this.chart.update(this.#label(), () => this.#option());
    const isEmpty = !(this.#size(this.at) > 0);
    this.host.hidden = isEmpty;
    byId("treemap-empty").hidden = !isEmpty;
  }

  #crumbs() {
    return this.trail.map((target, at) => {
      const isHere = at === this.trail.length - 1;
      const name = at === 0 ? "all leaves" : this.#name(target, this.trail[at - 1].node);
      return el("button", {
        type: "button",
        text: shorten(name, 60),
        "aria-current": isHere ? "location" : undefined,
        on: { click: () => this.#back(at) },
      });
    });
  }

  #list() {
    const all = this.#size(this.at);
    return this.#parts(this.at, LISTED, 0).map((part) => {
      const size = this.#size(part);
      const isLeaf = part.from === 0 && this.#isLeaf(part.node);
      const bar = el("span", { class: "bar", "aria-hidden": "true", style: `--part: ${all > 0 ? size / all : 0}` });
      return el(
        "li",
        {},
        el(
          "button",
          { type: "button", on: { click: () => this.#go(part) } },
          el("bdi", { class: isLeaf ? "name" : "name inner", text: shorten(this.#name(part, this.at.node), 60) }),
          el("span", { class: "size", text: bytes(size) }),
          el("span", { class: "share", text: percent(size, all) }),
          bar,
        ),
      );
    });
  }
}
