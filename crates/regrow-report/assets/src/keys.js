// Key paths as a tree of nodes. Every loop here runs over typed columns, so that a million leaves take a moment.

import { printable } from "./text.js";

const ROOT_PARENT = 0xffffffff;

export class Keys {
  /** From the columns of a tree (`names`, `name`, `parent`) and the node of each row. */
  constructor({ names, name, parent, node }) {
    this.names = names;
    this.name = name;
    this.parent = parent;
    this.node = node;
  }

  get nodeCount() {
    return this.name.length;
  }

  /** The name of a node as people read it. */
  label(node) {
    if (node === 0) return ".";
    const name = this.names[this.name[node]];
    return name === "" ? '""' : printable(name);
  }

  /** The nodes from below the root down to this one. */
  trail(node) {
    const nodes = [];
    for (let at = node; at !== 0 && at !== ROOT_PARENT; at = this.parent[at]) nodes.push(at);
    return nodes.reverse();
  }

  /** The key path of a node as people read it. */
  path(node) {
    return node === 0 ? "." : this.trail(node).map((at) => this.label(at)).join("/");
  }

  /** The key path of a row. */
  rowPath(row) {
    return this.path(this.node[row]);
  }

  /** Sums of a column of rows for each node and all below it. */
  sums(values) {
    const sums = new Float64Array(this.nodeCount);
    for (let row = 0; row < this.node.length; row += 1) sums[this.node[row]] += values ? values[row] : 1;
    for (let node = sums.length - 1; node > 0; node -= 1) sums[this.parent[node]] += sums[node];
    return sums;
  }

  /** The children of all nodes: those of node `n` are `list[first[n]]` to `list[first[n + 1]]`. */
  children() {
    const count = this.nodeCount;
    const first = new Uint32Array(count + 1);
    for (let node = 1; node < count; node += 1) first[this.parent[node] + 1] += 1;
    for (let node = 0; node < count; node += 1) first[node + 1] += first[node];
    const list = new Uint32Array(Math.max(0, count - 1));
    const next = first.slice(0, count);
    for (let node = 1; node < count; node += 1) list[next[this.parent[node]]++] = node;
    return { first, list };
  }

  /** The row of each node that is a leaf, 0xffffffff for others. */
  rows() {
    const rows = new Uint32Array(this.nodeCount).fill(ROOT_PARENT);
    for (let row = 0; row < this.node.length; row += 1) rows[this.node[row]] = row;
    return rows;
  }

  /** A function that says whether the path of a row has every word of a search, whatever the case. */
  matcher(search) {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    const tests = words.map((word) => (word.includes("/") ? this.#pathTest(word) : this.#nameTest(word)));
    return (row) => tests.every((test) => test(row));
  }

  /** Looks at each name once, then at nodes from the root down: no path is put together. */
  #nameTest(word) {
    const named = new Uint8Array(this.names.length);
    this.names.forEach((name, at) => {
      named[at] = Number(name.toLowerCase().includes(word) || printable(name).toLowerCase().includes(word));
    });
    const found = new Uint8Array(this.nodeCount);
    for (let node = 1; node < found.length; node += 1) found[node] = found[this.parent[node]] | named[this.name[node]];
    return (row) => found[this.node[row]] === 1;
  }

  #pathTest(word) {
    return (row) => this.rowPath(row).toLowerCase().includes(word);
  }
}
